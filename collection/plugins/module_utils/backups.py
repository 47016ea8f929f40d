# SPDX-License-Identifier: Apache-2.0
"""Backups of a cluster's accounting database and of slurmctld's state. Uses the standard library only.

A location of backups has a directory per cluster, and below it one per backup, named after its time, in S3 also after
the host::

    <cluster name>-<last part of its ARN>/20261130T140509Z/
        manifest.json      cluster and versions, and size and SHA-256 of each other file
        accounting.sql     the whole database; absent if the controller has none
        state.tar.gz       StateSaveLocation, with owners by name and modes

The manifest is written last. A directory without one is not a backup.
"""

from __future__ import annotations

import calendar
import errno
import grp
import hashlib
import json
import os
import pwd
import re
import shutil
import tarfile
import time
import zlib

from ansible_collections.hyperpod.lifecycle.plugins.module_utils.commands import Fault
from ansible_collections.hyperpod.lifecycle.plugins.module_utils.dump import is_whole
from ansible_collections.hyperpod.lifecycle.plugins.module_utils.leftovers import own_folder

MANIFEST = "manifest.json"
DATABASE = "accounting.sql"
STATE = "state.tar.gz"
FORMAT = 1
#: Format and pattern of a backup's name.
TIME = "%Y%m%dT%H%M%SZ"
NAME = re.compile(r"\d{8}T\d{6}Z(-[A-Za-z0-9-]+)?")


def key(cluster, arn):
    """Return the directory name of a cluster, which is unique among clusters of the same name."""
    return re.sub(r"[^A-Za-z0-9._-]", "_", "-".join(filter(None, (cluster, arn.rpartition("/")[2]))))


def digest(path):
    """Return the SHA-256 of a file."""
    found = hashlib.sha256()
    with open(path, "rb") as file:
        while part := file.read(1 << 20):
            found.update(part)
    return found.hexdigest()


# --- creating a backup ---


def add(folder, created, save):
    """Return the path of a new backup below `folder`. It gets its name after `save(path)` succeeds, else it is removed.

    Other controllers may write to the same directory. Leftovers of killed runs of this controller are removed.
    """
    os.makedirs(folder, exist_ok=True)
    with own_folder("part", folder) as work:
        part = os.path.join(work, created)
        os.mkdir(part)
        save(part)
        name = created
        while True:
            try:
                os.rename(part, os.path.join(folder, name))
            except OSError as error:
                if error.errno not in (errno.EEXIST, errno.ENOTEMPTY):
                    raise
                # Another controller started one in the same second.
                seconds = calendar.timegm(time.strptime(name, TIME))
                name = time.strftime(TIME, time.gmtime(seconds + 1))
            else:
                return os.path.join(folder, name)


# --- slurmctld's state ---


def pack(state_dir, path):
    """Archive a directory with owners by name. A file replaced meanwhile is archived in one of its versions."""
    state_dir = os.path.realpath(state_dir)  # a symbolic link with several controllers
    with tarfile.open(path, "w:gz", compresslevel=1) as archive:
        for folder, folders, files in os.walk(state_dir):
            folders.sort()
            for name in [None, *sorted(files)]:
                source = folder if name is None else os.path.join(folder, name)
                try:
                    archive.add(source, arcname=os.path.relpath(source, state_dir), recursive=False)
                except FileNotFoundError:  # its job has ended
                    continue


def unpack(path, folder):
    """Extract an archive into a directory, with modes, and owners by name."""
    with tarfile.open(path, "r:gz") as archive:
        for member in archive:
            if not (member.isfile() or member.isdir()) or member.name.startswith("/") or ".." in member.name.split("/"):
                raise Fault(f"{path}: {member.name} is no part of a backup")
            dest = os.path.join(folder, member.name)
            if member.isdir():
                os.makedirs(dest, exist_ok=True)
            else:
                with archive.extractfile(member) as source, open(dest, "wb") as file:
                    shutil.copyfileobj(source, file)
                os.utime(dest, (member.mtime, member.mtime))
            os.chmod(dest, member.mode & 0o7777)
            os.chown(dest, _user(member), _group(member))


def _user(member):
    try:
        return pwd.getpwnam(member.uname).pw_uid
    except KeyError:
        return member.uid


def _group(member):
    try:
        return grp.getgrnam(member.gname).gr_gid
    except KeyError:
        return member.gid


def replace(path, folder):
    """Replace the content of a directory with an archive. The directory itself, maybe a mount or a link, is kept."""
    for name in os.listdir(folder):
        there = os.path.join(folder, name)
        if os.path.isdir(there) and not os.path.islink(there):
            shutil.rmtree(there)
        else:
            os.unlink(there)
    unpack(path, folder)


# --- the manifest ---


def seal(folder, about):
    """Check the written files, then write the manifest, which completes the backup."""
    files = {
        name: {"size": os.path.getsize(os.path.join(folder, name)), "sha256": digest(os.path.join(folder, name))}
        for name in (DATABASE, STATE)
        if os.path.exists(os.path.join(folder, name))
    }
    check_content(folder)
    temporary = os.path.join(folder, MANIFEST + ".new")
    with open(temporary, "w", encoding="utf-8") as file:
        json.dump({"format": FORMAT, **about, "files": files}, file, indent=2)
        file.write("\n")
        file.flush()
        os.fsync(file.fileno())
    os.rename(temporary, os.path.join(folder, MANIFEST))


def read(folder):
    """Return the manifest of a backup after checking its files. Raises Fault if one differs."""
    path = os.path.join(folder, MANIFEST)
    try:
        with open(path, encoding="utf-8") as file:
            manifest = json.load(file)
        files = dict(manifest["files"])
        known = manifest["format"] == FORMAT
    except FileNotFoundError:
        raise Fault(f"{folder} is not a backup: it has no {MANIFEST}") from None
    except (ValueError, KeyError, TypeError) as error:
        raise Fault(f"{path} is not a backup manifest ({error})") from error
    if not known:
        raise Fault(f"{path}: its format is {manifest['format']}, and this version reads {FORMAT}")
    for name, facts in files.items():
        there = os.path.join(folder, name)
        if name not in (DATABASE, STATE) or not os.path.exists(there):
            raise Fault(f"{folder}: {name} is missing")
        if os.path.getsize(there) != facts["size"] or digest(there) != facts["sha256"]:
            raise Fault(f"{there} is not as it was written: its size or checksum differs from {MANIFEST}")
    check_content(folder)
    return manifest


def check_content(folder):
    """Read every file to its end. Raises Fault if one is truncated."""
    database = os.path.join(folder, DATABASE)
    if os.path.exists(database) and not is_whole(database):
        raise Fault(f"{database} does not hold the whole database")
    try:
        with tarfile.open(os.path.join(folder, STATE), "r:gz") as archive:
            for _member in archive:
                pass
    except (EOFError, OSError, tarfile.TarError, zlib.error) as error:
        raise Fault(f"{folder} cannot be read: {error}") from error


# --- selecting a backup ---


def choose(place, cluster, arn):
    """Return the directory of a backup: `place` itself, else this cluster's newest below it. Raises Fault."""
    if os.path.exists(os.path.join(place, MANIFEST)):
        return place
    mine = os.path.join(place, key(cluster, arn))
    names = sorted(finished(mine), reverse=True)
    if names:
        return os.path.join(mine, names[0])
    others = sorted(
        os.path.join(place, folder, max(finished(os.path.join(place, folder))))
        for folder in (os.listdir(place) if os.path.isdir(place) else [])
        if finished(os.path.join(place, folder))
    )
    if others:
        raise Fault(
            f"{place} has no backup of this cluster ({key(cluster, arn)}); to restore another cluster's, name it: "
            + ", ".join(others)
        )
    raise Fault(f"{place} holds no backup")


def finished(folder):
    """Return the names of the backups in a cluster's directory."""
    if not os.path.isdir(folder):
        return []
    return [
        name for name in os.listdir(folder) if NAME.fullmatch(name) and os.path.exists(f"{folder}/{name}/{MANIFEST}")
    ]


def version(text):
    """Parse ``slurm 24.11.5`` as (24, 11)."""
    match = re.search(r"(\d+)\.(\d+)", text)
    return (int(match[1]), int(match[2])) if match else (0, 0)


def obstacles(manifest, cluster, slurm, present):
    """Return the reasons why a backup cannot be restored here, and what would be lost, which a user may allow.

    `present` is the present state: the number of ``jobs`` newer than the backup, and the ``clusters`` in the database.
    """
    never, lost = [], []
    if manifest["cluster"].lower() != cluster.lower():
        never.append(
            f"it is of cluster {manifest['cluster']}, and this is {cluster}: Slurm's state and tables carry the name"
        )
    if version(manifest["slurm"]) > version(slurm):
        never.append(f"it is of {manifest['slurm']}, and {slurm} cannot read the state of a newer version")
    if present["jobs"]:
        number = present["jobs"]
        lost.append(f"{number} job{'s' if number > 1 else ''} of the time since {manifest['created']}")
    others = sorted({name.lower() for name in present["clusters"]} - {cluster.lower(), *manifest["clusters"]})
    if others:
        lost.append(f"the other clusters in the database: {', '.join(others)}")
    return never, lost
