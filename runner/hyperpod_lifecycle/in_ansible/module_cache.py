# SPDX-License-Identifier: GPL-3.0-or-later
"""Modules that Ansible has packed stay packed for the next run.

Ansible packs a module with all that it imports when a run first uses it, keeps it for that run, and throws it away: a
third of a converged run's processor time. What it keeps lies in one folder; here that is a link to a folder that stays.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import ansible
from ansible import constants
from ansible.utils.collection_loader._collection_finder import _get_collection_path
from ansible.utils.display import Display

from hyperpod_lifecycle.argument_specs import COLLECTION

display = Display()

#: Where in a run's own temporary folder Ansible looks (`ansible.executor.module_common`).
NAME = "ansiballz_cache"


def keep(folder: Path) -> None:
    """Let this run use and fill what is in `folder` for exactly the modules there are now.

    `folder` should be gone after a restart of the machine: nothing here is synced to a disk.
    """
    packed = folder / fingerprint()
    try:
        for other in folder.iterdir() if folder.exists() else ():
            if other != packed:
                shutil.rmtree(other)
        packed.mkdir(mode=0o700, parents=True, exist_ok=True)
        Path(constants.DEFAULT_LOCAL_TMP, NAME).symlink_to(packed)
    except OSError as error:  # then it packs them again
        display.vvv(f"modules are not kept packed: {error}")


def plugins() -> Path:
    """Our modules and what they import."""
    return Path(_get_collection_path(COLLECTION)) / "plugins"


def fingerprint() -> str:
    """Of every file that may get into a packed module: what is edited in place on a node counts at once."""
    core = Path(ansible.__file__).parent
    folders = [core / "modules", core / "module_utils", core / "_internal", plugins()]
    folders += map(Path, (*constants.DEFAULT_MODULE_PATH, *constants.DEFAULT_MODULE_UTILS_PATH))
    digest = hashlib.sha256(ansible.__version__.encode())
    for folder in folders:
        for path, status in sorted(_files(folder)):
            digest.update(f"{path} {status.st_mtime_ns} {status.st_size}\n".encode())
    return digest.hexdigest()[:16]


def _files(folder: Path) -> Iterator[tuple[str, os.stat_result]]:
    for parent, _, names in os.walk(folder, followlinks=True):
        for name in names:
            if name.endswith(".py"):
                yield f"{parent}/{name}", Path(parent, name).stat()
