# SPDX-License-Identifier: Apache-2.0
"""Atomic replacement of files. Uses the standard library only, because it runs on the node."""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import struct
from contextlib import contextmanager
from pathlib import Path

from ansible_collections.hyperpod.lifecycle.plugins.module_utils.commands import Fault

#: ioctl that reads the attributes that chattr sets (linux/fs.h), and the flags that block writes even by root.
_GET_FLAGS, _IMMUTABLE, _APPEND_ONLY = 0x80086601, 0x10, 0x20


def _locked(path):
    """Return whether chattr makes a file or directory immutable; False if the file system has no such flags."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    except OSError:
        return False
    try:
        (flags,) = struct.unpack("l", fcntl.ioctl(descriptor, _GET_FLAGS, struct.pack("l", 0)))
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return bool(flags & (_IMMUTABLE | _APPEND_ONLY))


def refusal(path, error):
    """Return cause and remedy of a failed write, in one sentence."""
    if isinstance(error, ConnectionError):  # it was no file
        return str(error)
    folder = os.path.dirname(path)
    if error.errno == errno.ENOSPC:
        return f"{path} was not written: its disk is full (df -h {folder}; df -i {folder}); make room and run again"
    if error.errno == errno.EDQUOT:
        return f"{path} was not written: the quota there is used up; make room and run again"
    if error.errno == errno.EROFS:
        return f"{path} was not written: its file system is read-only; see dmesg, and mount it read-write"
    held = [each for each in (path, folder) if _locked(each)]
    if error.errno == errno.EPERM and held:
        return (
            f"{path} was not written: {held[0]} is immutable (lsattr -d {held[0]}); chattr -ia {held[0]}, and run again"
        )
    return f"{path} was not written: {error.strerror or error}"


@contextmanager
def writing(path):
    """Convert an OSError into a Fault with a remedy."""
    try:
        yield
    except OSError as error:
        raise Fault(refusal(str(path), error)) from error


def make_folder(path, mode=0o755):
    """Create a directory and its parents if they are missing."""
    with writing(path):
        os.makedirs(path, mode, exist_ok=True)


def replace(module, path, before, after, mode=None):
    """Replace `before` with `after`, except in check mode. Return whether they differ.

    The replacement is atomic. Without `mode`, an existing file keeps owner and mode.
    """
    if before == after or module.check_mode:
        return before != after
    try:
        write(path, after, mode)
    except Fault as fault:
        module.fail_json(msg=str(fault))
    return True


def write(path, text, mode=None):
    """Replace a file atomically. It keeps its owner, and its mode unless `mode` is given. A new file has mode 0644."""
    path = Path(path)
    make_folder(path.parent)
    old = path.stat() if path.exists() else None
    uid, gid = (old.st_uid, old.st_gid) if old else (os.geteuid(), os.getegid())
    write_owned(path, text, uid, gid, mode if mode is not None else old.st_mode & 0o7777 if old else 0o644)


def write_owned(path, text, uid, gid, mode):
    """Replace a file atomically, owner and mode set before the content. A symbolic link is kept, its target replaced.

    The temporary file has a name of this node's own, because the directory may be shared with other nodes, and is
    hidden, because programs read directories as ``*.conf`` or ``*``.
    """
    path = Path(os.path.realpath(path))
    new = path.with_name(f".{path.name}.{socket.gethostname()}.new")
    with writing(path):
        new.unlink(missing_ok=True)
        try:
            handle = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(handle, "w", encoding="utf-8", errors="surrogateescape") as file:
                os.fchown(file.fileno(), uid, gid)
                os.fchmod(file.fileno(), mode)
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            new.rename(path)
        except OSError:
            new.unlink(missing_ok=True)
            raise


def difference(path, before, after):
    """Return a module's result for ``--diff``."""
    return {"before": before, "after": after, "before_header": str(path), "after_header": str(path)}
