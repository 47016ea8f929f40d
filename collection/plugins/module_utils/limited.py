# SPDX-License-Identifier: Apache-2.0
"""Run functions that may hang in a child process with a time limit. Uses the standard library only.

A process that waits for a dead file server cannot interrupt itself, and often cannot even be killed.
"""

from __future__ import annotations

import json
import os
import select
import signal
import time


def limited(function, seconds):
    """Return the JSON-serializable result of `function()`. Raises its OSError, or TimeoutError after `seconds`.

    Other exceptions are raised as ChildProcessError. The child has no open files of this process, so that nothing waits
    for a child that cannot be killed.
    """
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        _child(function, writer)
    os.close(writer)
    try:
        answer = _read(reader, time.monotonic() + seconds)
    finally:
        os.close(reader)
        os.kill(pid, signal.SIGKILL)
    if answer is None:
        os.waitpid(pid, os.WNOHANG)
        raise TimeoutError(f"no answer within {seconds:g} s")
    os.waitpid(pid, 0)
    kind, value = json.loads(answer or '["other", "the child process was killed"]')
    if kind == "os":
        raise OSError(*value)
    if kind == "other":
        raise ChildProcessError(value)
    return value


def _child(function, writer):
    """Run the child. Never returns."""
    try:
        null = os.open(os.devnull, os.O_RDWR)
        for number in range(3):
            os.dup2(null, number)
        os.closerange(3, writer)
        os.closerange(writer + 1, os.sysconf("SC_OPEN_MAX"))
        try:
            answer = ["result", function()]
        except OSError as error:
            answer = ["os", [error.errno, error.strerror or str(error)]]
        except Exception as error:  # raised again in the parent
            answer = ["other", f"{type(error).__name__}: {error}"]
        os.write(writer, json.dumps(answer).encode())
    finally:
        os._exit(0)


def _read(reader, deadline):
    """Return the output of the child, or None if the deadline passes first."""
    parts = []
    while True:
        ready = select.select([reader], [], [], max(0, deadline - time.monotonic()))[0]
        if not ready:
            return None
        part = os.read(reader, 65536)
        if not part:
            return b"".join(parts).decode()
        parts.append(part)
