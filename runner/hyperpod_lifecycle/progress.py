# SPDX-License-Identifier: Apache-2.0
"""Show the progress of a run: lines on the screen and in the log, and a live line on a terminal."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from hyperpod_lifecycle.log import Log

if TYPE_CHECKING:
    from rich.status import Status

#: Seconds without output after which a run reports that it is still running.
ALIVE_SECONDS = 30.0


class Progress:
    """Writes lines to the screen and the log. A closed screen or a full disk does not end the run."""

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
        """Write a line to screen and log."""
        self.show(line)
        self.log(line)

    def show(self, text: str) -> None:
        """Write text to the screen only."""
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
            # The reader has closed the pipe. Discard the buffer, or Python's exit would fail.
            os.dup2(os.open(os.devnull, os.O_WRONLY), self._screen.fileno())
            self._screen = None

    def log(self, text: str) -> None:
        """Write text to the log only."""
        if self._log is not None:
            self._log.write(text)

    def alive(self, text: str) -> None:
        """Write a line to both if there was no output for a while, except on a terminal."""
        if time.monotonic() - self._last >= ALIVE_SECONDS:
            self._last = time.monotonic()
            (self.say if self._status is None else self.log)(text)

    def trace(self, text: str) -> None:
        """Write a traceback to the log, or to the screen if there is no log."""
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
        """Remove the live line."""
        if self._status is not None:
            self._status.stop()
            self._status = None

    def close(self) -> None:
        """Remove the live line and close the log."""
        self.close_live()
        if self._log is not None:
            self._log.close()
