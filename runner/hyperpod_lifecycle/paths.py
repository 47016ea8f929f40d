# SPDX-License-Identifier: Apache-2.0
"""Paths on a node."""

from __future__ import annotations

import os
import tempfile
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Paths:
    """The directories that a run reads and writes; tests use their own."""

    log_dir: Path = Path("/var/log/provision")  #: the logs and the last report
    run_dir: Path = Path("/run/hyperpod-lifecycle")  #: the lock, packed modules and each run's private directory
    etc_dir: Path = Path("/etc/hyperpod-lifecycle")  #: the user's inventory and copies of the platform's files
    platform_dir: Path = Path("/opt/ml/config")  #: the platform's files

    @property
    def log_file(self) -> Path:
        return self.log_dir / "hyperpod-lifecycle.log"

    @property
    def ansible_log(self) -> Path:
        return self.log_dir / "ansible.log"

    @property
    def report_file(self) -> Path:
        return self.log_dir / "report.json"

    @property
    def lock_file(self) -> Path:
        return self.run_dir / "lock"

    @property
    def inventory(self) -> Path:
        return self.etc_dir / "inventory"


def write_private(path: Path, content: str | bytes) -> None:
    """Write a file atomically with mode 0600, whatever the umask."""
    path.parent.mkdir(parents=True, exist_ok=True)
    data = content.encode() if isinstance(content, str) else content
    descriptor, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)  # created with mode 0600
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
