# SPDX-License-Identifier: GPL-3.0-or-later
"""Keep Ansible's packed modules for the next run.

Ansible packs a module with its imports at its first use in a run and deletes it at the end; packing takes a third of
the CPU time of a converged run. Here the directory of packed modules is a link to a permanent one.
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

#: Name of the directory in Ansible's temporary directory (`ansible.executor.module_common`).
NAME = "ansiballz_cache"


def keep(folder: Path) -> None:
    """Link this run's packed modules to a directory in `folder` that belongs to the current sources.

    `folder` must not survive a reboot: nothing is synced to disk.
    """
    packed = folder / fingerprint()
    try:
        for other in folder.iterdir() if folder.exists() else ():
            if other != packed:
                shutil.rmtree(other)
        packed.mkdir(mode=0o700, parents=True, exist_ok=True)
        Path(constants.DEFAULT_LOCAL_TMP, NAME).symlink_to(packed)
    except OSError as error:  # then it packs them again
        display.vvv(f"cannot keep packed modules: {error}")


def plugins() -> Path:
    """Return the collection's directory of plugins."""
    return Path(_get_collection_path(COLLECTION)) / "plugins"


def fingerprint() -> str:
    """Return a digest of path, time and size of every file that may be packed, so that edits in place have effect."""
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
