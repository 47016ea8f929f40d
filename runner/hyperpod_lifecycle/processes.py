# SPDX-License-Identifier: Apache-2.0
"""Every process that a run started, found by a mark in its environment, also when it left our session and group.

Ansible's workers and what they start make sessions of their own, and a killed run cannot end its children.
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

#: Its value is the run's private directory, so the mark says whose lock the run held.
MARK = "HYPERPOD_LIFECYCLE_RUN"

PROC = Path("/proc")


def sweep(run_dir: Path, limit: float = 5.0) -> list[int]:
    """Kill every process of every run below `run_dir`; the caller holds the lock, so none of them is another's.

    Returns those that are still there after `limit` seconds, which only a process stuck in the kernel can be.
    """
    deadline = time.monotonic() + limit
    while found := _family(run_dir):
        if time.monotonic() > deadline:
            return sorted(found)
        for pid in found:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        time.sleep(0.02)
    return []


def _family(run_dir: Path) -> set[int]:
    """Marked processes with all their descendants: `sudo` starts children without the mark."""
    parents = _parents()
    spared = _line(os.getpid(), parents)  # a run may be started from within another
    found = {pid for pid in parents if pid not in spared and _is_marked(pid, run_dir)}
    more = found
    while more:
        more = {pid for pid, parent in parents.items() if parent in more} - found - spared
        found |= more
    return found


def _parents() -> dict[int, int]:
    """Each live process and its parent."""
    parents: dict[int, int] = {}
    for entry in PROC.iterdir():
        if entry.name.isdigit():
            try:
                # pid (command) state ppid …, and the command may hold spaces and brackets
                state, parent = (entry / "stat").read_bytes().rpartition(b")")[2].split()[:2]
            except OSError:
                continue  # it ended meanwhile
            if state not in (b"Z", b"X"):
                parents[int(entry.name)] = int(parent)
    return parents


def _line(pid: int, parents: dict[int, int]) -> set[int]:
    line: set[int] = set()
    while pid and pid not in line:
        line.add(pid)
        pid = parents.get(pid, 0)
    return line


def _is_marked(pid: int, run_dir: Path) -> bool:
    process = PROC / str(pid)
    prefix = f"{MARK}={run_dir}/".encode()
    try:
        if not any(entry.startswith(prefix) for entry in (process / "environ").read_bytes().split(b"\0")):
            return False
        # A container on this machine may run us too, with the same paths and a lock of its own.
        return (process / "ns/pid").readlink() == (PROC / "self/ns/pid").readlink()
    except OSError:
        return False  # it ended meanwhile, or it is not ours to look at
