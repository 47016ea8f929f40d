# SPDX-License-Identifier: Apache-2.0
"""Waiting for a condition. The limit only ends a test that would wait for ever, so it is generous."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

Answer = TypeVar("Answer")


def wait_for(ask: Callable[[], Answer], what: str = "the condition", seconds: float = 120) -> Answer:
    """Return the first answer that is not empty."""
    deadline = time.monotonic() + seconds
    while not (answer := ask()):
        assert time.monotonic() < deadline, f"waited {seconds:g} s for {what}"
        time.sleep(0.02)
    return answer
