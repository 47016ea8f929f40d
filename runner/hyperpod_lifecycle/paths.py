# SPDX-License-Identifier: Apache-2.0
"""Where things live on a node. Tests pass their own."""

from __future__ import annotations

import os
import tempfile
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Paths:
    """The four directories of a node that a run reads and writes."""

    log_dir: Path = Path("/var/log/provision")  #: the logs and the last report
    run_dir: Path = Path("/run/hyperpod-lifecycle")  #: the lock, packed modules and, while a run lasts, its own
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
    """Put a file in place at once and readable by its owner only, whatever the umask and whenever we are killed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    data = content.encode() if isinstance(content, str) else content
    descriptor, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)  # made with mode 0600
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
