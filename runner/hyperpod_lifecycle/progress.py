# SPDX-License-Identifier: Apache-2.0
"""What a person sees while a run lasts: plain lines, the log, and on a terminal one live line."""

from __future__ import annotations

import os
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from rich.status import Status

LOG_LIMIT = 5_000_000  #: bytes; a longer log makes room for a new one and is kept once


class Progress:
    """Lines for the screen and the log. A screen that went away or a full disk never ends the run."""

    def __init__(self, screen: TextIO, log: Path | None) -> None:
        self._screen: TextIO | None = screen
        self._log = log
        self._log_file: int | None = None  # nothing is buffered that could fail later, on close
        self._status: Status | None = None
        self.faults: list[str] = []  #: what could not be written, for the report

    def say(self, line: str) -> None:
        """A line for both."""
        self.show(line)
        self.log(line)

    def show(self, text: str) -> None:
        """Text for the screen only."""
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
        if self._log is None:
            return
        try:
            if self._log_file is None:
                self._log_file = _open_log(self._log)
            now = datetime.now(timezone.utc).isoformat(timespec="seconds")
            os.write(self._log_file, f"{now} [{os.getpid()}] {text}\n".encode(errors="replace"))
        except OSError as error:
            self.faults.append(f"the log {self._log} cannot be written: {error.strerror}")
            self._log = None

    def trace(self, text: str) -> None:
        """A traceback: for the log, or for the screen if there is none."""
        if self._log is None:
            self.show(text)
        else:
            self.log(text)

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
        if self._log_file is not None:
            os.close(self._log_file)
            self._log_file = None


def _open_log(path: Path) -> int:
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.exists() and path.stat().st_size > LOG_LIMIT:
        path.replace(path.with_suffix(".log.1"))
    return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
