# SPDX-License-Identifier: Apache-2.0
"""What the mount helper and the file server of fake_lustre and fake_nfs share. Standard library only.

The store is one folder of the host, mounted into every node of a lab: `<DNS name>/exports/<name>/` is a file system,
`<DNS name>/switches.json` says how its server misbehaves.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import time
from dataclasses import asdict, dataclass
from pathlib import Path

STORE = Path("/srv/fake_fsx")
#: Nodes on which the kernel has no Lustre module; made and removed by the lab.
NO_MODULE = Path("/etc/fake_lustre_has_no_module")

FLAGS = {
    "ro": 1,
    "nosuid": 2,
    "nodev": 4,
    "noexec": 8,
    "sync": 16,
    "remount": 32,
    "noatime": 1 << 10,
    "nodiratime": 1 << 11,
    "relatime": 1 << 21,
    "strictatime": 1 << 24,
}
#: Options that are for mount(8), systemd or nobody.
IGNORED = {"rw", "suid", "dev", "exec", "async", "atime", "diratime", "defaults", "auto", "noauto", "_netdev", "nofail"}
KNOWN = {
    "lustre": {"flock", "localflock", "noflock", "user_xattr", "lazystatfs", "nolazystatfs", "skpath", "checksum"},
    "nfs": {
        *("nfsvers", "vers", "minorversion", "nconnect", "hard", "soft", "softerr", "timeo", "retrans", "retry"),
        *("rsize", "wsize", "proto", "port", "sec", "lock", "nolock", "ac", "noac", "actimeo", "acregmin", "acregmax"),
        *("acdirmin", "acdirmax", "resvport", "noresvport", "lookupcache", "fsc", "nofsc", "bg", "fg", "addr"),
    },
}
VALUES = {
    "nconnect": {str(number) for number in range(1, 17)},
    "nfsvers": {"3", "4", "4.0", "4.1", "4.2"},
    "vers": {"3", "4", "4.0", "4.1", "4.2"},
}


@dataclass(frozen=True)
class Switches:
    """How a file server misbehaves; `hyperpod_lab/storage.py`, which sets them, says what each means."""

    fail_mounts: int = 0
    fail_writes: int = 0
    writable_at: float = 0
    read_only: bool = False
    root_squash: bool = False
    hang: bool = False

    @staticmethod
    def read(path: Path) -> Switches:
        try:
            return Switches(**json.loads(path.read_text()))
        except FileNotFoundError:
            return Switches()

    def write(self, path: Path) -> None:
        new = path.with_suffix(f".{os.getpid()}")
        new.write_text(json.dumps(asdict(self)))
        new.replace(path)


class Server:
    """One file server of the store: its switches as they are now."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._path = folder / "switches.json"
        self._seen: tuple[int, int] | None = None
        self._switches = Switches()

    @property
    def switches(self) -> Switches:
        try:
            found = self._path.stat()
            seen = (found.st_ino, found.st_mtime_ns)
        except FileNotFoundError:
            seen = None
        if seen != self._seen or seen is None:
            self._seen, self._switches = seen, Switches.read(self._path)
        return self._switches

    def take(self, counter: str) -> bool:
        """Count one failure down, if any is left; all nodes share the counter."""
        if not getattr(self.switches, counter):
            return False
        with (self.folder / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            values = asdict(Switches.read(self._path))
            left = values[counter]
            if left:
                Switches(**{**values, counter: left - 1}).write(self._path)
        return bool(left)

    def refuses_changes(self) -> bool:
        """Whether a change fails now with an input/output error."""
        return time.time() < self.switches.writable_at or self.take("fail_writes")


def split_source(kind: str, source: str) -> tuple[str, str]:
    """The DNS name and the file system's name there; ValueError if the source has another form."""
    form = r"([^@:/]+)@tcp:/([A-Za-z0-9_-]{1,8})" if kind == "lustre" else r"([^@:/]+):/+(.+?)/*"
    match = re.fullmatch(form, source)
    if not match or ".." in match[2].split("/"):
        raise ValueError(source)
    return match[1], match[2]


def flags(kind: str, options: str) -> int:
    """The flags of mount(2); ValueError with the first option that the real client would not take."""
    found = 0
    for option in filter(None, options.split(",")):
        name, _, value = option.partition("=")
        known = name in FLAGS or name in IGNORED | KNOWN[kind] or name.lower().startswith("x-")
        if not known or value not in VALUES.get(name, {value}):
            raise ValueError(option)
        found |= FLAGS.get(name, 0)
    return found
