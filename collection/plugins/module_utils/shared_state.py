# SPDX-License-Identifier: Apache-2.0
"""slurmctld's state in a directory that all controllers share. Uses the standard library only.

Each step is one rename, so that the next run, on any controller, can continue after a run that was killed: the state is
either absent or complete, and belongs to the cluster that :data:`IDENTITY` names.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import shutil
import stat
import time
from contextlib import contextmanager, suppress
from pathlib import Path

from ansible_collections.hyperpod.lifecycle.plugins.module_utils.commands import Fault
from ansible_collections.hyperpod.lifecycle.plugins.module_utils.waits import pause

#: Names in the cluster's shared directory. The state is where the public sample scripts put it, so it can be adopted.
STATE = "var/spool/slurmctld"
IDENTITY = "hyperpod-lifecycle.json"
LOCK = "hyperpod-lifecycle.lock"

#: Value of settings for state without an identity.
UNKNOWN = "unknown"

#: A standby slurmctld of Slurm 22.05 writes this file before there is any state.
NO_STATE = frozenset({"clustername"})

POLL_SECONDS = 0.2


# --- the lock ---


@contextmanager
def lock(path, who, seconds):
    """Hold the lock at `path`, with the holder's name in the file. The kernel or the file server releases it."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)
    try:
        deadline = time.monotonic() + seconds
        while not _try(descriptor, path):
            if time.monotonic() >= deadline:
                raise Fault(
                    f"{holder(path)} holds {path} and has not ended within {seconds:g} s; look at its run, or wait "
                    "until the file server has given a dead node's lock up, and run again"
                )
            pause(POLL_SECONDS)
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, json.dumps({"holder": who, "since": now()}).encode(), 0)
        os.fsync(descriptor)
        try:
            yield
        finally:
            os.ftruncate(descriptor, 0)
    finally:
        os.close(descriptor)


def _try(descriptor, path):
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        raise Fault(f"{path}: this file system has no locks: {error.strerror}") from error
    return True


def holder(path):
    """Return the holder named in a lock."""
    try:
        content = json.loads(Path(path).read_bytes())
        return f"{content['holder']} (since {content['since']})"
    except (OSError, ValueError, KeyError, TypeError):
        return "another controller"


def now():
    """Return the time for messages and file names."""
    return time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())


# --- trees of files ---


def used(folder):
    """Return whether a directory has slurmctld state."""
    try:
        return bool(set(os.listdir(folder)) - NO_STATE)
    except FileNotFoundError:
        return False


def digest(folder):
    """Return a digest of the names and contents of all files below a directory."""
    found = hashlib.sha256()
    for path in sorted(Path(folder).rglob("*")):
        kind = path.lstat().st_mode
        content = path.read_bytes() if stat.S_ISREG(kind) else b""
        name = str(path.relative_to(folder))
        found.update(f"{len(name)} {name} {stat.S_IFMT(kind)} {len(content)} ".encode() + content)
    return found.hexdigest()


def make(folder, uid, gid):
    """Create an empty directory with mode 0700 for a user."""
    os.mkdir(folder, 0o700)
    os.chown(folder, uid, gid)


def copy(source, dest, uid, gid):
    """Copy a tree with modes and times, and sync it to disk."""
    for path in sorted(Path(source).rglob("*")):
        target, kind = os.path.join(dest, path.relative_to(source)), path.lstat().st_mode
        if stat.S_ISDIR(kind):
            os.mkdir(target)
        elif stat.S_ISREG(kind):
            shutil.copyfile(path, target)
            shutil.copystat(path, target)
            _flush(target)
        else:
            continue
        os.chown(target, uid, gid)
        os.chmod(target, stat.S_IMODE(kind))


def write(path, text):
    """Replace a file atomically."""
    new = f"{path}.new"
    with open(new, "w", encoding="utf-8") as file:
        file.write(text)
    _flush(new)
    os.replace(new, path)


def _flush(path):
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def aside(path):
    """Rename a path to a name with the time. Nothing is deleted."""
    kept = f"{path}.aside-{now()}"
    while os.path.lexists(kept):
        kept += "-"
    os.rename(path, kept)
    return kept


# --- the state ---


class SharedState:
    """The state of a cluster, and the path where slurmctld on this node looks for it.

    `local` is StateSaveLocation. It becomes a symbolic link to the state below `folder`.
    """

    def __init__(self, folder, local, cluster, arn, uid, gid):
        self.folder, self.local = str(folder), str(local)
        self.cluster, self.arn, self.uid, self.gid = cluster, arn, uid, gid
        self.state = os.path.join(self.folder, STATE)
        self.identity_file = os.path.join(self.folder, IDENTITY)
        self.said = []

    def identity(self):
        """Return the identity of the state, or None."""
        try:
            found = json.loads(Path(self.identity_file).read_bytes())
            return {**found, "arn": str(found["arn"]), "cluster": str(found["cluster"])}
        except FileNotFoundError:
            return None
        except (ValueError, KeyError, TypeError) as error:
            raise Fault(
                f"{self.identity_file} does not say whose state it is ({error}); if it is this cluster's, move the "
                f"file away and set controllers_adopt_state_of: {UNKNOWN}"
            ) from error

    def linked(self):
        """Return whether slurmctld on this node uses the shared state."""
        if not os.path.islink(self.local):
            return False
        target = os.path.join(os.path.dirname(self.local), os.readlink(self.local))
        if os.path.normpath(target) != self.state:
            raise Fault(f"{self.local} is a link to {target} and should lead to {self.state}; remove it and run again")
        return True

    # Planning, without changes.

    def steps(self, adopt="", set_aside="", set_aside_local=False):
        """Return the remaining steps, in order. Raises Fault if a setting has to decide."""
        steps, identity, there = [], self.identity(), used(self.state)
        if identity is None or identity["arn"] != self.arn or identity["cluster"] != self.cluster:
            whose = (identity["arn"] or identity["cluster"]) if identity else UNKNOWN
            if there and whose not in (adopt, set_aside):
                raise Fault(self._foreign(whose, identity))
            if there and whose != adopt:
                steps.append(self.set_state_aside)
                there = False
            steps.append(self.claim)
        if not self.linked() and used(self.local):
            if not there:
                steps.append(self.take_local_state)
            elif not set_aside_local and digest(self.local) != (identity or {}).get("taken_from"):
                raise Fault(self._differs())
        elif not os.path.isdir(self.state) or self.set_state_aside in steps:
            steps.append(self.make_state)
        if not self.linked():
            steps.append(self.link)
        if os.path.isdir(self.state) and self.set_state_aside not in steps:
            self._check_owner()
        return steps

    def _check_owner(self):
        """Check that Slurm's user has the same uid on every controller."""
        owner = os.stat(self.state).st_uid
        if owner != self.uid:
            raise Fault(
                f"{self.state} belongs to uid {owner}, and on this node Slurm's user has uid {self.uid}; give it the "
                "same uid and gid on all controllers"
            )

    def _foreign(self, whose, identity):
        about = f"of another cluster, {whose}" if identity else "that names no cluster"
        since = f" (since {identity['since']})" if identity and "since" in identity else ""
        return (
            f"{self.state} has Slurm state {about}{since}, and this cluster is {self.arn or self.cluster}; nothing was "
            "changed. In inventory/group_vars/controller.yml write "
            f'controllers_adopt_state_of: "{whose}" to take over its jobs, or '
            f'controllers_set_aside_state_of: "{whose}" to start fresh and keep it under another name'
        )

    def _differs(self):
        return (
            f"{self.local} on this node has Slurm state of its own, and it is not the shared one in {self.state}; "
            "nothing was changed. To use the shared one, and keep this node's under another name, set "
            "controllers_set_aside_local_state: true. To use this node's, stop slurmctld on all controllers, "
            f"rename {self.state}, and run again here first"
        )

    # Steps.

    def set_state_aside(self):
        """Rename another cluster's state."""
        self.said.append(f"the state of before is kept in {aside(self.state)}")

    def claim(self, **more):
        """Write the identity of the state."""
        os.makedirs(os.path.dirname(self.state), exist_ok=True)
        found = {"cluster": self.cluster, "arn": self.arn, "since": now(), **more}
        write(self.identity_file, json.dumps(found, indent=2) + "\n")

    def make_state(self):
        """Create an empty state directory."""
        self._place()

    def take_local_state(self):
        """Make this node's own state the shared state."""
        # If this run is killed before the link exists, the next one recognizes the state by this digest.
        self.claim(taken_from=digest(self.local))
        self._place(self.local)
        self.said.append(f"this node's state is now in {self.state}")

    def _place(self, source=None):
        new = f"{self.state}.new"
        if os.path.isdir(new):
            shutil.rmtree(new)
        make(new, self.uid, self.gid)
        if source:
            copy(source, new, self.uid, self.gid)
        if os.path.isdir(self.state):
            for name in NO_STATE & set(os.listdir(self.state)):
                os.unlink(os.path.join(self.state, name))
        os.rename(new, self.state)

    def link(self):
        """Link StateSaveLocation to the shared state, the last step."""
        new = f"{self.local}.new"
        with suppress(FileNotFoundError):
            os.unlink(new)
        os.symlink(self.state, new)
        if os.path.isdir(self.local):
            try:
                os.rmdir(self.local)
            except OSError as error:
                if error.errno != errno.ENOTEMPTY:
                    raise
                self.said.append(f"this node's own state of before is kept in {aside(self.local)}")
        os.rename(new, self.local)
