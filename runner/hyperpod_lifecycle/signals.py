# SPDX-License-Identifier: Apache-2.0
"""The signals that end a run."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from hyperpod_lifecycle.errors import ExitCode, LifecycleError


class InterruptedRun(LifecycleError):
    """A signal has stopped the run."""

    exit_code = ExitCode.INTERRUPTED


class Signals:
    """Handles SIGTERM, SIGINT and SIGHUP: records the first, and raises InterruptedRun inside :meth:`raising`."""

    def __init__(self) -> None:
        self.received = ""  #: name of the first one
        self._raise = False
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Signals:
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            if signal.getsignal(number) is not signal.SIG_IGN:  # nohup
                self._before[number] = signal.signal(number, self._take)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _take(self, number: int, frame: FrameType | None) -> None:
        self.received = self.received or signal.Signals(number).name
        if self._raise:
            self._raise = False
            self._stop()

    def _stop(self) -> None:
        raise InterruptedRun(f"stopped by {self.received} before the first task")

    @contextmanager
    def raising(self) -> Iterator[None]:
        """Raise InterruptedRun at a signal while the context is active; otherwise poll :attr:`received`."""
        if self.received:
            self._stop()
        self._raise = True
        try:
            yield
        finally:
            self._raise = False
