# SPDX-License-Identifier: Apache-2.0
"""Allow one run per node at a time. The kernel releases the lock when the process ends.

``on_create.sh`` takes the lock before it replaces the package and the settings, and passes it on.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timezone
from pathlib import Path

from hyperpod_lifecycle.errors import ExitCode, LifecycleError

POLL_SECONDS = 0.2

#: Variable with the file descriptor of the lock that on_create.sh holds.
HANDED_OVER = "HYPERPOD_LIFECYCLE_LOCK"


class LockedError(LifecycleError):
    """Another run holds this node."""

    exit_code = ExitCode.LOCKED


@contextmanager
def hold(path: Path, command: str, wait: float, say: Callable[[str], None]) -> Iterator[None]:
    """Hold the lock at `path`, waiting up to `wait` seconds for another run; `say` gets a line about that run."""
    descriptor = _open(path)
    try:
        deadline = time.monotonic() + wait
        told = False
        while not _try(descriptor):
            if time.monotonic() >= deadline:
                raise LockedError(f"another run holds this node: {holder(path)}")
            if not told:
                say(f"waiting up to {wait:g} s for another run: {holder(path)}")
                told = True
            time.sleep(POLL_SECONDS)
        since = datetime.now(timezone.utc).isoformat(timespec="seconds")
        content = json.dumps({"pid": os.getpid(), "since": since, "command": command})
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, content.encode(), 0)
        yield
        os.ftruncate(descriptor, 0)
    finally:
        os.close(descriptor)


def holder(path: Path) -> str:
    """Return a description of the run that holds the lock."""
    try:
        content = json.loads(path.read_bytes())
        return f"pid {content['pid']} since {content['since']}, {content['command']}"
    except (OSError, ValueError, KeyError, TypeError):
        # It has the lock and has not written its name yet.
        return "a run that is just starting"


def _open(path: Path) -> int:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    own = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    handed_over = os.environ.pop(HANDED_OVER, "")
    if not handed_over or not os.path.sameopenfile(own, int(handed_over)):
        return own
    os.close(own)
    os.set_inheritable(int(handed_over), False)  # what a run starts may outlive it
    return int(handed_over)


def is_held(path: Path) -> bool:
    """Return whether a run holds the lock."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def _try(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
