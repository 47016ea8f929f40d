# SPDX-License-Identifier: Apache-2.0
"""Bring a user's home to shared storage, as many nodes do it at once. Standard library only: it runs on the node.

Nothing is ever deleted, overwritten or moved: the old home is copied and stays. What is written to shared storage is
written by a child process that has become the user, so that it neither needs root there (root squash) nor follows a
user's link as root. No step needs another node: each can stop anywhere, and any node's next run goes on from there.
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
#: In an old home that was copied: where to. What is deleted there later does not come back from the old one.
MARK = ".hyperpod-lifecycle-home"
#: In the new home, while files are copied; the node and the process follow.
STAGING = ".hyperpod-lifecycle-copy-"
KEYS = os.path.join(".ssh", "authorized_keys")
DEFAULT_MODE = 0o750
ATTEMPTS = 3
SHOWN = 5
AGAIN = "then run again: hyperpod-lifecycle apply --tags homes"

#: open_tree(2): the number is the same on every architecture; Python has no name for it.
_OPEN_TREE, _AT_FDCWD, _OPEN_TREE_CLONE = 428, -100, 1
#: What a file system answers that has no hard links.
_NO_LINKS = (errno.EPERM, errno.EXDEV, errno.EOPNOTSUPP, errno.EMLINK, errno.ENOSYS)
#: What one answers that has no locks.
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)

Account = namedtuple("Account", "name uid gid home")


# --- text ---


def account(passwd, name):
    """The account as passwd has it, or None."""
    for line in passwd.splitlines():
        fields = line.split(":")
        if len(fields) == 7 and fields[0] == name:
            return Account(name, int(fields[2]), int(fields[3]), os.path.normpath(fields[5] or "/"))
    return None


def with_home(passwd, name, home):
    """The passwd in which this account has another home; everything else stays as it is."""
    lines = passwd.splitlines(keepends=True)
    for number, line in enumerate(lines):
        fields = line.split(":")
        if fields[0] == name:
            lines[number] = ":".join([*fields[:5], home, *fields[6:]])
    return "".join(lines)


def key_of(line):
    """What tells one line of authorized_keys from another: the key itself, whatever its options and comment."""
    match = re.search(r"\bAAAA[0-9A-Za-z+/]+=*", line)
    return match.group() if match else line.strip()


def missing_keys(ours, theirs):
    """Lines of `ours` whose keys `theirs` does not have."""
    known = {key_of(line) for line in theirs.splitlines()}
    lines = [line.strip() for line in ours.splitlines()]
    return [line for line in lines if line and not line.startswith("#") and key_of(line) not in known]


# --- copying, as the user ---


class Copy:
    """Everything of one folder that another does not have."""

    def __init__(self, source, target):
        self.source, self.target = source, target
        self.copied = 0
        self.kept = []  # there is something else in the target
        self.unread = []
        self._made = []
        node = socket.gethostname()
        self._staging_of_node = f"{STAGING}{node}-"
        self._staging = os.path.join(target, f"{self._staging_of_node}{os.getpid()}")

    def run(self, top):
        """Copy all of the source, or only its folder `top`."""
        self._sweep()
        try:
            self._folders(self._one("", top) if top else [""])
            for path, mode in reversed(self._made):
                os.chmod(path, mode)
        finally:
            with suppress(FileNotFoundError):
                os.rmdir(self._staging)

    def _sweep(self):
        """Remove what a killed run of this node has left."""
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
        """Copy what is no folder, make what is one; return the folders to go on with."""
        path = os.path.join(folder, name)
        if not folder and (name == MARK or name.startswith(STAGING)):
            return []
        try:
            found = os.lstat(os.path.join(self.source, path))
        except FileNotFoundError:
            return []  # it has gone meanwhile, as temporary files do
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
        # At the end: nothing can be made in a folder that is read-only.
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
                # A link is made whole or not at all, and never in the place of something.
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
        """Is this the public half of an ssh key whose private half is another node's there?"""
        private = path[: -len(".pub")] if path.endswith(".pub") else path
        ours = os.path.join(self.source, private)
        return private != path and os.path.lexists(ours) and not same(ours, os.path.join(self.target, private))

    def _compare(self, path):
        if not same(os.path.join(self.source, path), os.path.join(self.target, path)):
            self.kept.append(path)

    def _keys(self, path):
        """Add lines to a file that others add to. Under its lock; where there are no locks, in one append."""
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
                # Lustre without the option flock. There, unlike on NFS, an append is one step among all nodes.
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
    """Are these two files, or two links, alike? Nothing is like something that is not there."""
    try:
        modes = [os.lstat(path).st_mode for path in (one, other)]
        if all(map(stat.S_ISLNK, modes)):
            return os.readlink(one) == os.readlink(other)
        return all(map(stat.S_ISREG, modes)) and filecmp.cmp(one, other, shallow=False)
    except (FileNotFoundError, PermissionError):
        return False


# --- one user ---


class Home:
    """One user's home on this node, and where it should be."""

    def __init__(self, account, target, limit):
        self.account = account
        self.name = account.name
        self.target = target
        self.limit = limit

    def look(self):
        """The home's owner (None if it is not there), may the user use it, the old one's mode, is that to be copied."""
        return self._step(self._look)

    def make(self):
        """Make it right; whether anything was changed, and what stayed in the old home."""
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
        """What `function` returns in a child; a Fault if it fails, but for the errors that are `passed` on."""

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
        """The path of the old home, which may be relative to a folder that this process goes to; needs root."""
        if self.account.home != self.target:
            return self.account.home
        # It lies below the file system that was mounted over it.
        parent, name = os.path.split(self.target)
        parent = os.path.realpath(parent)
        above = os.path.dirname(_mount_of(parent).path)
        os.fchdir(_without_mounts(above))
        return os.path.relpath(os.path.join(parent, name), above)

    def _old(self, path):
        """Its state if it is the user's, else None; as the user."""
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
            # A home on other shared storage may be of any size. Its keys are needed to log in.
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
        """Make it, or finish what another node has begun."""
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
        """What another node has just replaced can be gone for a moment."""
        for _ in range(ATTEMPTS - 1):
            try:
                return self._step(self._copy, passed=(errno.ENOENT, errno.ESTALE))
            except OSError:
                pause(0.3)
        return self._step(self._copy)

    def _set_home(self):
        """As `usermod --home` does, which refuses while the user has a process."""
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
    """The text of passwd."""
    with open(ACCOUNTS, encoding="utf-8", errors="surrogateescape") as file:
        return file.read()


def _without_mounts(path):
    """An open folder in which nothing that is mounted below it is seen."""
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
    """The mount that a path without symbolic links lies on."""
    with open("/proc/self/mountinfo", encoding="utf-8", errors="surrogateescape") as file:
        return mounts.covering(mounts.parse(file.read()), path)


def _existing(path):
    """The nearest folder that is there: the path itself or one above. Opening it makes an automount act."""
    while True:
        try:
            os.close(os.open(path, os.O_RDONLY | os.O_DIRECTORY))
        except PermissionError:
            return path  # it is there, and on a server that squashes root
        except (FileNotFoundError, NotADirectoryError):
            path = os.path.dirname(path)
        else:
            return path


def storage_fault(path, limit):
    """Why homes cannot be made below `path`, which may be missing; empty if they can."""
    try:
        found = limited(lambda: os.path.realpath(_existing(path)), limit)
    except OSError as error:
        return f"{path} cannot be entered: {error.strerror or error}"
    mount = _mount_of(found)
    if mount is None or mount.path == "/" or mounts.is_automount(mount):
        return f"no shared file system is mounted at {path}"
    return ""


def stays(home, storage, limit):
    """Is a home where this node's own disk is not: below a path of `storage`, mounted or not, or on another device?"""
    if any(f"{home}/".startswith(f"{os.path.normpath(path)}/") for path in storage):
        return True
    try:
        return limited(lambda: os.stat(_existing(home)).st_dev != os.stat("/").st_dev, limit)
    except OSError:
        return True  # storage that does not answer
