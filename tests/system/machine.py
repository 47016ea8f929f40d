# SPDX-License-Identifier: Apache-2.0
"""A throwaway copy of this machine: its files in an overlay, its own processes. Root in it changes nothing here."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from polling import wait_for

# The first process of the copy: ending it ends the others and takes the mounts along.
BOOT = """
set -eu
mount -t tmpfs tmpfs "$1"
mkdir "$1/upper" "$1/work" "$1/root"
mount -t overlay overlay -o "lowerdir=/,upperdir=$1/upper,workdir=$1/work" "$1/root"
mount --bind /dev "$1/root/dev"
mount -t proc proc "$1/root/proc"
echo up
exec chroot "$1/root" sleep infinity
"""


class Machine:
    """The copy, seen from outside."""

    def __init__(self, pid: int) -> None:
        self.pid = pid

    def path(self, path: str | Path) -> Path:
        """Where a file of the copy is, for reading and writing from here. Absolute symlinks lead astray."""
        return Path(f"/proc/{self.pid}/root", str(path).lstrip("/"))

    def command(self, *command: str | Path) -> list[str]:
        enter = ["nsenter", f"--target={self.pid}", "--mount", "--pid", "--root", "--wd"]
        return [*enter, *map(str, command)]

    def run(self, *command: str | Path) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.command(*command),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            timeout=600,
        )

    def processes(self) -> list[str]:
        """The command lines of all that runs there, the first process aside."""
        lines = []
        for folder in self.path("/proc").glob("[0-9]*"):
            try:
                words = (folder / "cmdline").read_bytes().decode().split("\0")
            except (FileNotFoundError, ProcessLookupError):
                continue
            if folder.name != "1" and any(words):
                lines.append(" ".join(words))
        return lines


@contextmanager
def copy_of_this_machine(mount_point: Path) -> Iterator[Machine]:
    unshare = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", "-c", BOOT, "sh", str(mount_point)]
    with subprocess.Popen(unshare, stdout=subprocess.PIPE, text=True) as outer:
        assert outer.stdout
        try:
            assert outer.stdout.readline() == "up\n", "no overlay of / can be mounted here"
            inner = Path(f"/proc/{outer.pid}/task/{outer.pid}/children").read_text().split()[0]
            wait_for(lambda: Path(f"/proc/{inner}/root").readlink() != Path("/"), "the copy's root")
            yield Machine(int(inner))
        finally:
            outer.kill()


def lines_with(text: str, lines: Sequence[str]) -> list[str]:
    return [line for line in lines if text in line]
