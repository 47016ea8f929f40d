# SPDX-License-Identifier: Apache-2.0
"""Put a user's home on shared storage while other nodes do the same. Uses the standard library only.

Nothing is deleted, overwritten or moved: the old home is copied and kept. A child process that runs as the user writes
to shared storage, so that it works with root squash and never follows a user's symbolic link as root. No step depends
on another node: a run may be killed at any time, and the next run on any node continues.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import filecmp
import os
import re
import shutil
import socket
import stat
from collections import namedtuple
from contextlib import suppress

from ansible_collections.hyperpod.lifecycle.plugins.module_utils import mounts
from ansible_collections.hyperpod.lifecycle.plugins.module_utils.commands import Fault
from ansible_collections.hyperpod.lifecycle.plugins.module_utils.files import write_owned
from ansible_collections.hyperpod.lifecycle.plugins.module_utils.limited import limited
from ansible_collections.hyperpod.lifecycle.plugins.module_utils.waits import pause

ACCOUNTS = "/etc/passwd"
SKELETON = "/etc/skel"
#: File in a copied old home that names the new one. Files deleted later in the new home are not copied again.
MARK = ".hyperpod-lifecycle-home"
#: Prefix of temporary files in the new home, followed by node and process.
STAGING = ".hyperpod-lifecycle-copy-"
KEYS = os.path.join(".ssh", "authorized_keys")
DEFAULT_MODE = 0o750
ATTEMPTS = 3
SHOWN = 5
AGAIN = "then run again: hyperpod-lifecycle apply --tags homes"

#: Number of open_tree(2), the same on every architecture. Python does not define it.
_OPEN_TREE, _AT_FDCWD, _OPEN_TREE_CLONE = 428, -100, 1
#: Errors of file systems without hard links.
_NO_LINKS = (errno.EPERM, errno.EXDEV, errno.EOPNOTSUPP, errno.EMLINK, errno.ENOSYS)
#: Errors of file systems without locks.
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)

Account = namedtuple("Account", "name uid gid home")


# --- text ---


def account(passwd, name):
    """Return the account in passwd, or None."""
    for line in passwd.splitlines():
        fields = line.split(":")
        if len(fields) == 7 and fields[0] == name:
            return Account(name, int(fields[2]), int(fields[3]), os.path.normpath(fields[5] or "/"))
    return None


def with_home(passwd, name, home):
    """Return passwd with another home for this account, otherwise unchanged."""
    lines = passwd.splitlines(keepends=True)
    for number, line in enumerate(lines):
        fields = line.split(":")
        if fields[0] == name:
            lines[number] = ":".join([*fields[:5], home, *fields[6:]])
    return "".join(lines)


def key_of(line):
    """Return what identifies a line of authorized_keys: the key itself, without options and comment."""
    match = re.search(r"\bAAAA[0-9A-Za-z+/]+=*", line)
    return match.group() if match else line.strip()


def missing_keys(ours, theirs):
    """Return the lines of `ours` whose keys are not in `theirs`."""
    known = {key_of(line) for line in theirs.splitlines()}
    lines = [line.strip() for line in ours.splitlines()]
    return [line for line in lines if line and not line.startswith("#") and key_of(line) not in known]


# --- copying, as the user ---


class Copy:
    """Copies what a target directory lacks from a source directory."""

    def __init__(self, source, target):
        self.source, self.target = source, target
        self.copied = 0
        self.kept = []  # names whose target differs
        self.unread = []
        self._made = []
        node = socket.gethostname()
        self._staging_of_node = f"{STAGING}{node}-"
        self._staging = os.path.join(target, f"{self._staging_of_node}{os.getpid()}")

    def run(self, top):
        """Copy the whole source, or only its directory `top`."""
        self._sweep()
        try:
            self._folders(self._one("", top) if top else [""])
            for path, mode in reversed(self._made):
                os.chmod(path, mode)
        finally:
            with suppress(FileNotFoundError):
                os.rmdir(self._staging)

    def _sweep(self):
        """Remove temporary files of killed runs of this node."""
        for name in os.listdir(self.target):
            pid = name[len(self._staging_of_node) :]
            if name.startswith(self._staging_of_node) and pid.isdecimal() and not os.path.exists(f"/proc/{pid}"):
                shutil.rmtree(os.path.join(self.target, name))

    def _folders(self, waiting):
        while waiting:
            folder = waiting.pop()
            try:
                names = sorted(os.listdir(os.path.join(self.source, folder)))
            except PermissionError:
                self.unread.append(folder)
                continue
            # In order, because a public key follows its private key.
            waiting += [path for name in names for path in self._one(folder, name)]

    def _one(self, folder, name):
        """Copy a file or create a directory. Return the directories to continue with."""
        path = os.path.join(folder, name)
        if not folder and (name == MARK or name.startswith(STAGING)):
            return []
        try:
            found = os.lstat(os.path.join(self.source, path))
        except FileNotFoundError:
            return []  # deleted meanwhile, such as a temporary file
        if stat.S_ISDIR(found.st_mode):
            return [path] if self._folder(path, found) else []
        if stat.S_ISLNK(found.st_mode):
            self._link(path)
        elif path == KEYS:
            self._keys(path)
        elif stat.S_ISREG(found.st_mode):
            self._file(path, found)
        return []  # a socket or a pipe belongs to a process, not to a home

    def _folder(self, path, found):
        target = os.path.join(self.target, path)
        try:
            os.mkdir(target, 0o700)
        except FileExistsError:
            if os.path.isdir(target):
                return True
            self.kept.append(path)
            return False
        # At the end, because nothing can be created in a read-only directory.
        self._made.append((target, found.st_mode & 0o777))
        self.copied += 1
        return True

    def _link(self, path):
        source, target = os.path.join(self.source, path), os.path.join(self.target, path)
        try:
            os.symlink(os.readlink(source), target)
            self.copied += 1
        except FileExistsError:
            self._compare(path)

    def _file(self, path, found):
        target = os.path.join(self.target, path)
        if os.path.lexists(target) or self._is_half_of_another_pair(path):
            self._compare(path)
            return
        with suppress(FileExistsError):
            os.mkdir(self._staging, 0o700)
        temporary = os.path.join(self._staging, "file")
        try:
            try:
                self._write(path, temporary, found)
            except PermissionError:
                self.unread.append(path)
                return
            try:
                # A link is created atomically and never replaces anything.
                os.link(temporary, target)
            except OSError as error:
                if error.errno not in _NO_LINKS:
                    raise
                self._write(path, target, found)
            self.copied += 1
        except FileExistsError:
            self._compare(path)
        finally:
            with suppress(FileNotFoundError):
                os.unlink(temporary)

    def _write(self, path, target, found):
        source = os.open(os.path.join(self.source, path), os.O_RDONLY | os.O_NOFOLLOW)
        with os.fdopen(source, "rb") as reader, open(target, "xb", opener=_private) as writer:
            shutil.copyfileobj(reader, writer)
            os.fchmod(writer.fileno(), found.st_mode & 0o777)
            writer.flush()
            os.fsync(writer.fileno())
        os.utime(target, ns=(found.st_atime_ns, found.st_mtime_ns))

    def _is_half_of_another_pair(self, path):
        """Return whether this is the public key of a private key that differs in the target."""
        private = path[: -len(".pub")] if path.endswith(".pub") else path
        ours = os.path.join(self.source, private)
        return private != path and os.path.lexists(ours) and not same(ours, os.path.join(self.target, private))

    def _compare(self, path):
        if not same(os.path.join(self.source, path), os.path.join(self.target, path)):
            self.kept.append(path)

    def _keys(self, path):
        """Append lines to a file that other nodes append to, under its lock, or in one write if there are no locks."""
        try:
            with open(os.path.join(self.source, path), encoding="utf-8", errors="surrogateescape") as file:
                ours = file.read()
        except PermissionError:
            self.unread.append(path)
            return
        target = os.path.join(self.target, path)
        handle = os.open(target, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
        with os.fdopen(handle, "r+b", buffering=0) as file:
            try:
                fcntl.lockf(file, fcntl.LOCK_EX)
            except OSError as error:
                # Lustre without the option flock. There, unlike on NFS, appends are atomic among nodes.
                if error.errno not in _NO_LOCKS:
                    raise
            theirs = file.read().decode(errors="surrogateescape")
            lines = missing_keys(ours, theirs)
            if lines:
                start = "\n" if theirs and not theirs.endswith("\n") else ""
                file.write((start + "".join(f"{line}\n" for line in lines)).encode(errors="surrogateescape"))
                os.fsync(handle)
                self.copied += 1


def _private(path, flags):
    return os.open(path, flags, 0o600)


def same(one, other):
    """Return whether two files or two symbolic links are equal; False if one is missing."""
    try:
        modes = [os.lstat(path).st_mode for path in (one, other)]
        if all(map(stat.S_ISLNK, modes)):
            return os.readlink(one) == os.readlink(other)
        return all(map(stat.S_ISREG, modes)) and filecmp.cmp(one, other, shallow=False)
    except (FileNotFoundError, PermissionError):
        return False


# --- one user ---


class Home:
    """A user's home on this node, and its target."""

    def __init__(self, account, target, limit):
        self.account = account
        self.name = account.name
        self.target = target
        self.limit = limit

    def look(self):
        """Return the home's owner (None if missing), whether it is usable, the old one's mode, and whether to copy."""
        return self._step(self._look)

    def make(self):
        """Set up the home. Return whether anything changed, and a note on what was not copied."""
        changed = False
        before = self.look()
        if before["owner"] != self.account.uid:
            self._make(before["mode"])
            changed = True
        copied = {"copied": 0, "note": ""}
        if before["pending"] or changed:
            copied = self._copy_among_others()
        if self.account.home != self.target:
            self._set_home()
            changed = True
        if not self.look()["usable"]:
            raise Fault(f"{self.name} cannot write to its home {self.target}: correct the owner and the mode, {AGAIN}")
        return changed or copied["copied"] > 0, copied["note"]

    # In children.

    def _step(self, function, passed=()):
        """Return the result of `function` in a child process. Raises Fault if it fails, or the errors in `passed`."""

        def named():
            os.umask(0)
            try:
                return function()
            except OSError as error:
                where = f"{os.fsdecode(error.filename)}: " if error.filename else ""
                raise OSError(error.errno, where + (error.strerror or str(error))) from error

        try:
            return limited(named, self.limit)
        except OSError as error:
            if error.errno in passed:
                raise
            said = error.strerror or error
            raise Fault(f"{self.name} gets no home at {self.target}: {said}; correct that, {AGAIN}") from error

    def _become_user(self):
        os.initgroups(self.name, self.account.gid)
        os.setgid(self.account.gid)
        os.setuid(self.account.uid)

    def _enter_old_home(self):
        """Return the path of the old home, maybe relative to a directory that this process changes to. Needs root."""
        if self.account.home != self.target:
            return self.account.home
        # It is hidden below a file system that was mounted over it.
        parent, name = os.path.split(self.target)
        parent = os.path.realpath(parent)
        above = os.path.dirname(_mount_of(parent).path)
        os.fchdir(_without_mounts(above))
        return os.path.relpath(os.path.join(parent, name), above)

    def _old(self, path):
        """Return its status if it belongs to the user, else None. Runs as the user."""
        try:
            found = os.stat(path)
        except (FileNotFoundError, NotADirectoryError, PermissionError):
            return None
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != self.account.uid:
            return None
        if os.path.isdir(self.target) and os.path.samefile(path, self.target):
            return None
        return found

    def _look(self):
        path = self._enter_old_home()
        self._become_user()
        old = self._old(path)
        try:
            owner = os.stat(self.target).st_uid
        except FileNotFoundError:
            owner = None
        return {
            "owner": owner,
            "usable": owner == self.account.uid
            and os.path.isdir(self.target)
            and os.access(self.target, os.R_OK | os.W_OK | os.X_OK),
            "mode": old.st_mode & 0o777 if old else None,
            "pending": bool(old) and not os.path.lexists(os.path.join(path, MARK)),
        }

    def _copy(self):
        path = self._enter_old_home()
        local = os.stat("/").st_dev
        self._become_user()
        old = self._old(path)
        note = ""
        if old is None:
            copy = Copy(SKELETON, self.target)
            copy.run(None)
        else:
            copy = Copy(path, self.target)
            # A home on other shared storage may be of any size. Only its keys are needed to log in.
            copy.run(None if old.st_dev == local else ".ssh")
            where = self.account.home if self.account.home != self.target else f"{self.target} below the mount"
            if old.st_dev != local:
                note = f"{self.name}: the files in {where} stay there; only .ssh was copied to {self.target}"
            elif copy.kept:
                some = _some(copy.kept)
                note = f"{self.name}: other files are in {self.target}, so these were not copied from {where}: {some}"
            if copy.unread:
                note += ("; " if note else f"{self.name}: ") + f"not readable in {where}: {_some(copy.unread)}"
            with open(os.path.join(path, MARK), "w", encoding="utf-8", opener=_private) as file:
                file.write(f"{self.target}\n")
        return {"copied": copy.copied, "note": note}

    def _make_parents(self):
        os.umask(0o022)
        os.makedirs(os.path.dirname(self.target), exist_ok=True)

    def _make_as_user(self, mode):
        self._become_user()
        os.mkdir(self.target, mode)

    def _make_as_root(self, mode):
        """Create the home, or complete what another node has started."""
        made = False
        with suppress(FileExistsError):
            os.mkdir(self.target, 0o700)
            made = True
        found = os.lstat(self.target)
        if found.st_uid == self.account.uid or not stat.S_ISDIR(found.st_mode):
            return
        if made or (found.st_uid == 0 and not os.listdir(self.target)):
            try:
                os.chown(self.target, self.account.uid, self.account.gid, follow_symlinks=False)
                os.chmod(self.target, mode)
            except PermissionError:
                if made:
                    os.rmdir(self.target)
                raise

    # In this process.

    def _make(self, mode):
        mode = DEFAULT_MODE if mode is None else mode
        denied = (errno.EACCES, errno.EPERM)
        try:
            self._step(self._make_parents, passed=denied)
            try:
                self._step(lambda: self._make_as_user(mode), passed=(*denied, errno.EEXIST))
            except OSError:
                self._step(lambda: self._make_as_root(mode), passed=denied)
        except OSError as error:
            raise Fault(
                f"neither root nor {self.name} can make {self.target}: {error.strerror}; where root is squashed, give "
                f"{os.path.dirname(self.target)} mode 1777, or make {self.target} for uid {self.account.uid}, {AGAIN}"
            ) from error
        owner = self.look()["owner"]
        if owner != self.account.uid:
            raise Fault(
                f"{self.target} belongs to uid {owner}, and {self.name} has uid {self.account.uid} on this node; give "
                f"{self.name} one uid on all nodes, or the folder to it, {AGAIN}"
            )

    def _copy_among_others(self):
        """Retry, because a file that another node replaces may be missing for a moment."""
        for _attempt in range(ATTEMPTS - 1):
            try:
                return self._step(self._copy, passed=(errno.ENOENT, errno.ESTALE))
            except OSError:
                pause(0.3)
        return self._step(self._copy)

    def _set_home(self):
        """Set the home as `usermod --home` does, which refuses while the user has a process."""
        libc = ctypes.CDLL(None)
        if libc.lckpwdf() != 0:
            raise Fault(f"{ACCOUNTS} is locked by another program; wait until it ends, {AGAIN}")
        try:
            found = os.stat(ACCOUNTS)
            text = with_home(read_accounts(), self.name, self.target)
            write_owned(ACCOUNTS, text, found.st_uid, found.st_gid, stat.S_IMODE(found.st_mode))
        finally:
            libc.ulckpwdf()


def read_accounts():
    """Return the text of passwd."""
    with open(ACCOUNTS, encoding="utf-8", errors="surrogateescape") as file:
        return file.read()


def _without_mounts(path):
    """Open a directory without the mounts below it."""
    libc = ctypes.CDLL(None, use_errno=True)
    handle = libc.syscall(_OPEN_TREE, _AT_FDCWD, os.fsencode(path), _OPEN_TREE_CLONE | os.O_CLOEXEC)
    if handle < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), path)
    return handle


def _some(paths):
    shown = [os.fsencode(path).decode(errors="backslashreplace") for path in paths[:SHOWN]]
    more = len(paths) - len(shown)
    return ", ".join(shown) + (f" and {more} more" if more else "")


# --- storage ---


def _mount_of(path):
    """Return the mount of a path without symbolic links."""
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
        return mounts.covering(mounts.parse(file.read()), path)


def _existing(path):
    """Return the nearest existing directory, the path itself or a parent. Opening it triggers automount."""
    while True:
        try:
            os.close(os.open(path, os.O_RDONLY | os.O_DIRECTORY))
        except PermissionError:
            return path  # it exists on a server that squashes root
        except (FileNotFoundError, NotADirectoryError):
            path = os.path.dirname(path)
        else:
            return path


def storage_fault(path, limit):
    """Return why homes cannot be created below `path`, which may be missing; empty if they can."""
    try:
        found = limited(lambda: os.path.realpath(_existing(path)), limit)
    except OSError as error:
        return f"{path} cannot be entered: {error.strerror or error}"
    mount = _mount_of(found)
    if mount is None or mount.path == "/" or mounts.is_automount(mount):
        return f"no shared file system is mounted at {path}"
    return ""


def stays(home, storage, limit):
    """Return whether a home is not on this node's own disk: below a path of `storage`, or on another device."""
    if any(f"{home}/".startswith(f"{os.path.normpath(path)}/") for path in storage):
        return True
    try:
        return limited(lambda: os.stat(_existing(home)).st_dev != os.stat("/").st_dev, limit)
    except OSError:
        return True  # storage that does not answer
