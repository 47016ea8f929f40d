# SPDX-License-Identifier: Apache-2.0
"""Find the processes of a run, and end them or report those left running on purpose.

Ansible's workers and what they start make sessions of their own, and a killed run cannot end its children. So each
process of a run is found in three ways: by a mark in its environment, by the systemd scope that Ansible runs in where
there is systemd, and as a descendant of one that was found (`sudo` clears the environment, a login session changes the
scope). The mark and the scope name the run's private directory, which goes last: the processes of a run belong to it
only as long as that directory is there. What is alive when Ansible has ended by itself is thereby released: a task
started it on purpose (the process behind a FUSE mount, say). It is left running, and the summary names it.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import time
from pathlib import Path

#: Environment variable with the run's private directory, which identifies the run.
MARK = "HYPERPOD_LIFECYCLE_RUN"

PROC = Path("/proc")

SYSTEMD = Path("/run/systemd/system")

#: Seconds between SIGTERM and SIGKILL; less than what most supervisors give us between the two.
GRACE_SECONDS = 5.0

POLL_SECONDS = 0.02


def scope(private: Path) -> str:
    """Return the systemd scope of the run with this private directory."""
    return f"hyperpod-lifecycle-{private.name}.scope"


def in_scope(private: Path, path: str) -> list[str]:
    """Return the command prefix that starts a program in the run's scope; empty without systemd."""
    program = shutil.which("systemd-run", path=path) if SYSTEMD.is_dir() else None
    return [program, "--scope", "--quiet", "--collect", f"--unit={scope(private)}", "--"] if program else []


def end(run_dir: Path, grace: float | None = None, limit: float = 5.0) -> list[int]:
    """End every process of every run in `run_dir`; the caller holds the lock, so none of them is another's.

    SIGTERM first, and after `grace` seconds (GRACE_SECONDS) SIGKILL. Returns those that are still there `limit` seconds
    later, which only a process stuck in the kernel can be.
    """
    told: set[int] = set()
    deadline = time.monotonic() + (GRACE_SECONDS if grace is None else grace)
    while found := family(run_dir):
        if time.monotonic() >= deadline:
            return _kill(run_dir, limit)
        for pid in found.keys() - told:
            if found[pid] not in told:  # or it is part of how its parent cleans up
                _send(pid, signal.SIGTERM)
                _send(pid, signal.SIGCONT)  # a stopped process takes no other signal
        told |= found.keys()
        time.sleep(POLL_SECONDS)
    return []


def _kill(run_dir: Path, limit: float) -> list[int]:
    deadline = time.monotonic() + limit
    while found := family(run_dir):
        if time.monotonic() > deadline:
            return sorted(found)
        for pid in found:
            _send(pid, signal.SIGKILL)
        time.sleep(POLL_SECONDS)
    return []


def left(run_dir: Path, settle: float = 2.0) -> list[str]:
    """Return the command lines of processes that still run `settle` seconds after Ansible has ended."""
    deadline = time.monotonic() + settle
    while (found := family(run_dir)) and time.monotonic() < deadline:
        time.sleep(POLL_SECONDS)
    return [f"{pid} ({command})" for pid in sorted(found) if (command := _command(pid))]


def family(run_dir: Path) -> dict[int, int]:
    """Return the processes, with their parents, of the runs with a private directory in `run_dir`."""
    runs = list(run_dir.glob("run-*"))
    if not runs:
        return {}
    marks = {f"{MARK}={private}".encode() for private in runs}
    scopes = [f"/{scope(private)}".encode() for private in runs]
    parents = _parents()
    spared = _line(os.getpid(), parents)  # a run may be started from within another
    found = {pid for pid in parents if pid not in spared and _belongs(pid, marks, scopes)}
    more = found
    while more:
        more = {pid for pid, parent in parents.items() if parent in more} - found - spared
        found |= more
    return {pid: parents[pid] for pid in found}


def _send(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):  # it ended meanwhile
        os.kill(pid, number)


def _command(pid: int) -> str:
    try:
        return (PROC / str(pid) / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        return ""  # it ended meanwhile


def _parents() -> dict[int, int]:
    """Return the parent of each live process."""
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


def _belongs(pid: int, marks: set[bytes], scopes: list[bytes]) -> bool:
    process = PROC / str(pid)
    try:
        if marks.isdisjoint((process / "environ").read_bytes().split(b"\0")):
            groups = (process / "cgroup").read_bytes()
            if not any(each in groups for each in scopes):
                return False
        # A container on this machine may run us too, with the same paths and a lock of its own.
        return (process / "ns/pid").readlink() == (PROC / "self/ns/pid").readlink()
    except OSError:
        return False  # it ended meanwhile, or it is not ours to look at
