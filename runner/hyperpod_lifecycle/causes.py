# SPDX-License-Identifier: Apache-2.0
"""Find the cause of an unspecific error on this machine: a full disk, lack of memory, an immutable file."""

from __future__ import annotations

import array
import fcntl
import os
import re
from pathlib import Path

_FULL = re.compile(r"No space left on device|Disk quota exceeded|\[Errno (?:28|122)\]")
_MEMORY = re.compile(r"\bMemoryError\b|Cannot allocate memory|\[Errno 12\]")
_REFUSED = re.compile(r"Operation not permitted|\[Errno 1\]")
_PATH = re.compile(r"/[\w.@+/-]+")

#: File systems on which a system call may block.
_REMOTE = ("nfs", "lustre", "fuse", "9p", "cifs", "autofs", "efivarfs")

_GET_FLAGS = 0x80086601  # FS_IOC_GETFLAGS
_IMMUTABLE, _APPEND_ONLY = 0x10, 0x20

_ROOM = 64 * 1024  #: bytes; a disk with less is full

VMSTAT = Path("/proc/vmstat")


def explain(text: str, killed_before: int | None = None) -> str:
    """Return the cause of an error text in one sentence, or an empty string if it is unknown.

    `killed_before` is the result of :func:`killed` at the run's start; give it only if a process may have been killed.
    """
    if _FULL.search(text):
        disks = full_disks()
        return f"no space left on {', '.join(disks)}" if disks else "no space left on a disk"
    if _MEMORY.search(text):
        return "out of memory"
    if killed_before is not None and killed() > killed_before:
        return "out of memory: the kernel has killed a process during this run (journalctl -k)"
    if _REFUSED.search(text):
        for path in _PATH.findall(text):
            for each in (Path(path), Path(path).parent):
                if file_flags(each) & (_IMMUTABLE | _APPEND_ONLY):
                    return f"{each} is immutable (chattr -ia {each})"
    return ""


def killed() -> int:
    """Return the number of processes killed by the kernel's OOM killer since boot."""
    found = re.search(r"^oom_kill (\d+)$", VMSTAT.read_text(), re.MULTILINE)
    return int(found[1]) if found else 0


def full_disks() -> list[str]:
    """Return the mount points of full local file systems."""
    found = []
    for line in Path("/proc/self/mounts").read_text().splitlines():
        _source, folder, kind, options = line.split()[:4]
        if not kind.startswith(_REMOTE) and "ro" not in options.split(","):
            folder = folder.replace("\\040", " ")
            if is_full(Path(folder)) and folder not in found:
                found.append(folder)
    return found


def is_full(folder: Path) -> bool:
    """Return whether the file system of `folder` has no space or no inodes left."""
    try:
        disk = os.statvfs(folder)
    except OSError:
        return False
    return bool(disk.f_blocks) and (disk.f_bavail * disk.f_frsize < _ROOM or (disk.f_files > 0 and disk.f_ffree == 0))


def file_flags(path: Path) -> int:
    """Return the file's attributes as `chattr` sets them; 0 if it does not exist or its file system has none."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return 0
    flags = array.array("l", [0])
    try:
        fcntl.ioctl(descriptor, _GET_FLAGS, flags)
    except OSError:
        return 0
    finally:
        os.close(descriptor)
    return flags[0]
