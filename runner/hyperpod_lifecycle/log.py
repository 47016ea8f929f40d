# SPDX-License-Identifier: Apache-2.0
"""The log of this node's runs: a file of limited size that only root can read."""

from __future__ import annotations

import os
from datetime import datetime, timezone
from pathlib import Path

LIMIT = 5_000_000  #: bytes; a larger log is renamed, and one old log is kept


class Log:
    """Appends lines with time and process id. Errors do not end the run; see :attr:`fault`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.fault = ""  #: why it cannot be written
        self._file: int | None = None  # nothing is buffered that could fail later, on close

    def write(self, text: str) -> None:
        """Write one entry; of a very long text, its beginning and end."""
        if self.fault:
            return
        now = datetime.now(timezone.utc).isoformat(timespec="seconds")
        part = LIMIT // 10
        if len(text) > 2 * part:
            text = f"{text[:part]}\n… {len(text) - 2 * part} characters left out …\n{text[-part:]}"
        try:
            if self._file is None:
                self._file = self._open()
            elif os.fstat(self._file).st_size > LIMIT:
                self.close()
                self._file = self._open()
            os.write(self._file, f"{now} [{os.getpid()}] {text}\n".encode(errors="replace"))
        except OSError as error:
            self.fault = f"the log {self.path} cannot be written: {error.strerror}"

    def close(self) -> None:
        """Close the file until the next entry."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _open(self) -> int:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        if self.path.exists() and self.path.stat().st_size > LIMIT:
            self.path.replace(self.path.with_suffix(".log.1"))
        return os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
