# SPDX-License-Identifier: Apache-2.0
"""What a person sees while a run lasts: plain lines, the log, and on a terminal one live line."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from hyperpod_lifecycle.log import Log

if TYPE_CHECKING:
    from rich.status import Status

#: How long a run may say nothing before it gives a sign of life.
ALIVE_SECONDS = 30.0


class Progress:
    """Lines for the screen and the log. A screen that went away or a full disk never ends the run."""

    def __init__(self, screen: TextIO, log: Path | None) -> None:
        self._screen: TextIO | None = screen
        self._log = Log(log) if log else None
        self._status: Status | None = None
        self._last = time.monotonic()

    @property
    def fault(self) -> str:
        """Why the log cannot be written, for the report."""
        return self._log.fault if self._log else ""

    def say(self, line: str) -> None:
        """A line for both."""
        self.show(line)
        self.log(line)

    def show(self, text: str) -> None:
        """Text for the screen only."""
        self._last = time.monotonic()
        if self._screen is None:
            return
        try:
            if self._status is not None:
                self._status.console.print(text, markup=False, highlight=False, soft_wrap=True)
            else:
                self._screen.write(f"{text}\n")
            self._screen.flush()
        except OSError:
            # The reader went away. What is still in the buffer must not make Python's exit fail.
            os.dup2(os.open(os.devnull, os.O_WRONLY), self._screen.fileno())
            self._screen = None

    def log(self, text: str) -> None:
        """Text for the log only."""
        if self._log is not None:
            self._log.write(text)

    def alive(self, text: str) -> None:
        """A line for both if nothing was said for a while; a terminal has its live line."""
        if time.monotonic() - self._last >= ALIVE_SECONDS:
            self._last = time.monotonic()
            (self.say if self._status is None else self.log)(text)

    def trace(self, text: str) -> None:
        """A traceback: for the log, or for the screen if there is none."""
        self.log(text)
        if self._log is None or self._log.fault:
            self.show(text)

    def live(self, text: str) -> None:
        """Replace the live line of a terminal."""
        if self._screen is None or not self._screen.isatty():
            return
        from rich.console import Console
        from rich.text import Text

        if self._status is None:
            self._status = Console(file=self._screen).status(Text(text))
            self._status.start()
        else:
            self._status.update(Text(text))

    def close_live(self) -> None:
        """Take the live line away."""
        if self._status is not None:
            self._status.stop()
            self._status = None

    def close(self) -> None:
        """No more lines will come."""
        self.close_live()
        if self._log is not None:
            self._log.close()
