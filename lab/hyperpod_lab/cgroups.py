# SPDX-License-Identifier: Apache-2.0
"""A cgroup v2 hierarchy for a node whose systemd needs one, on a host that still has the first version."""

from __future__ import annotations

import subprocess
from pathlib import Path

UNIFIED = Path("/sys/fs/cgroup/unified")


def options(container: str) -> list[str]:
    """Make the node's folder, and return podman's options for it."""
    if not (UNIFIED / "cgroup.procs").exists():
        UNIFIED.mkdir(exist_ok=True)
        subprocess.run(["mount", "-t", "cgroup2", "cgroup2", str(UNIFIED)], check=True, capture_output=True, timeout=10)
    folder = UNIFIED / container
    folder.mkdir(exist_ok=True)
    return ["--cgroupns=host", f"--volume={folder}:/sys/fs/cgroup:rw"]


def remove(container: str) -> None:
    """Remove the folder of a node that is gone; nothing where it had none."""
    folder = UNIFIED / container
    if folder.is_dir():
        below = sorted((path for path in folder.rglob("*") if path.is_dir()), key=lambda path: -len(path.parts))
        for each in (*below, folder):
            each.rmdir()
