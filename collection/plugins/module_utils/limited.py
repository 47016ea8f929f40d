# SPDX-License-Identifier: Apache-2.0
"""Run what may hang in a child with a time limit. Standard library only: it runs on the node.

A process that waits for a dead file server cannot be interrupted from inside, and often not even killed.
"""

from __future__ import annotations

import json
import os
import select
import signal
import time


def limited(function, seconds):
    """The result (anything JSON can carry) of `function()`; its OSError; or TimeoutError after `seconds`.

    Any other exception comes back as ChildProcessError. The child holds none of our files, so that nobody waits for one
    that cannot be killed; it ends when the kernel lets it.
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
    """Never returns."""
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
        except Exception as error:  # it is raised again on the other side
            answer = ["other", f"{type(error).__name__}: {error}"]
        os.write(writer, json.dumps(answer).encode())
    finally:
        os._exit(0)


def _read(reader, deadline):
    """All that the child writes until it ends, or None if the deadline comes first."""
    parts = []
    while True:
        ready, _, _ = select.select([reader], [], [], max(0, deadline - time.monotonic()))
        if not ready:
            return None
        part = os.read(reader, 65536)
        if not part:
            return b"".join(parts).decode()
        parts.append(part)
