# SPDX-License-Identifier: Apache-2.0
"""Backups of a cluster's accounting database and of slurmctld's state, as folders. Standard library only.

A place for backups holds a folder for each cluster, and that one for each backup, named by its time::

    <cluster name>-<last part of its ARN>/20261130T140509Z/
        manifest.json      what the backup is of, and size and SHA-256 of each other file
        accounting.sql     the whole database; absent where the controller has none
        state.tar.gz       StateSaveLocation, with owners by name and modes

The manifest comes last, so a folder without one is no backup.
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
#: The name of a backup, and what the name looks like.
TIME = "%Y%m%dT%H%M%SZ"
NAME = re.compile(r"\d{8}T\d{6}Z")


def key(cluster, arn):
    """The folder of a cluster: two clusters of one name do not share it."""
    return re.sub(r"[^A-Za-z0-9._-]", "_", "-".join(filter(None, (cluster, arn.rpartition("/")[2]))))


def digest(path):
    """SHA-256 of a file."""
    found = hashlib.sha256()
    with open(path, "rb") as file:
        while part := file.read(1 << 20):
            found.update(part)
    return found.hexdigest()


# --- a folder that is not a backup yet ---


def add(folder, created, save):
    """The path of a new backup below `folder`: it has its name once `save(path)` has filled it, and else nothing stays.

    Others may be writing beside it: on shared storage, other controllers. What killed runs of this one have left goes.
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
                # Another controller has begun one in the same second.
                seconds = calendar.timegm(time.strptime(name, TIME))
                name = time.strftime(TIME, time.gmtime(seconds + 1))
            else:
                return os.path.join(folder, name)


# --- slurmctld's state ---


def pack(state_dir, path):
    """Write a folder into an archive, owners by name; of a file that slurmctld replaces meanwhile, one of the two."""
    state_dir = os.path.realpath(state_dir)  # with several controllers it is a link
    with tarfile.open(path, "w:gz", compresslevel=1) as archive:
        for folder, folders, files in os.walk(state_dir):
            folders.sort()
            for name in [None, *sorted(files)]:
                source = folder if name is None else os.path.join(folder, name)
                try:
                    archive.add(source, arcname=os.path.relpath(source, state_dir), recursive=False)
                except FileNotFoundError:  # a job has ended
                    continue


def unpack(path, folder):
    """Write an archive's files into a folder, with their modes, and their owners by name."""
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
    """Let an archive's files be all that a folder holds; the folder itself, which may be a mount or a link, stays."""
    for name in os.listdir(folder):
        there = os.path.join(folder, name)
        if os.path.isdir(there) and not os.path.islink(there):
            shutil.rmtree(there)
        else:
            os.unlink(there)
    unpack(path, folder)


# --- the manifest ---


def seal(folder, about):
    """Check what was written, then write the manifest, which makes the folder a backup."""
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
    """The manifest of a backup whose files are all as they were written; Fault if they are not."""
    path = os.path.join(folder, MANIFEST)
    try:
        with open(path, encoding="utf-8") as file:
            manifest = json.load(file)
        files = dict(manifest["files"])
        known = manifest["format"] == FORMAT
    except FileNotFoundError:
        raise Fault(f"{folder} is no backup: it has no {MANIFEST}") from None
    except (ValueError, KeyError, TypeError) as error:
        raise Fault(f"{path} is no manifest of a backup ({error})") from error
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
    """Read every file to its end; Fault if one is cut off."""
    database = os.path.join(folder, DATABASE)
    if os.path.exists(database) and not is_whole(database):
        raise Fault(f"{database} does not hold the whole database")
    try:
        with tarfile.open(os.path.join(folder, STATE), "r:gz") as archive:
            for _member in archive:
                pass
    except (EOFError, OSError, tarfile.TarError, zlib.error) as error:
        raise Fault(f"{folder} cannot be read: {error}") from error


# --- which backup ---


def choose(place, cluster, arn):
    """The folder of a backup: `place` itself if it is one, else this cluster's last below it; Fault without one."""
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
    """Names of the backups in a cluster's folder."""
    if not os.path.isdir(folder):
        return []
    return [
        name for name in os.listdir(folder) if NAME.fullmatch(name) and os.path.exists(f"{folder}/{name}/{MANIFEST}")
    ]


def version(text):
    """``slurm 24.11.5`` as (24, 11)."""
    match = re.search(r"(\d+)\.(\d+)", text)
    return (int(match[1]), int(match[2])) if match else (0, 0)


def obstacles(manifest, cluster, slurm, present):
    """Why a backup must not be restored here, in sentences; and what would be lost, which a user may allow.

    `present` has what there is now: ``jobs`` that are younger than the backup, ``clusters`` in the database.
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
