# SPDX-License-Identifier: Apache-2.0
"""The folder that a user would upload, made from this checkout."""

from __future__ import annotations

import platform
import shutil
from collections.abc import Callable
from pathlib import Path

from hyperpod_lab.shape import PARAMETERS, Shape
from hyperpod_lifecycle import bundle

#: The lab's own settings.
SETTINGS = Path(__file__).resolve().parents[1] / "group_vars"


def build(shape: Shape, dest: Path, say: Callable[[str], object]) -> Path:
    """on_create.sh, the inventory and the wheels for the image's Python, with the user's provisioning parameters.

    If all settings of the inventory are commented out, it gets the lab's own.
    """
    shutil.rmtree(dest, ignore_errors=True)  # a bundle keeps what is not its own, such as an earlier lab's settings
    folder = bundle.build(dest, [shape.release.python], platform.machine(), say=say)
    settings = folder / "inventory/group_vars"
    if not any(_sets_something(path) for path in settings.glob("**/[!.]*") if path.is_file()):
        shutil.copytree(SETTINGS, settings, dirs_exist_ok=True)
    if shape.provisioning_parameters is not None:
        (folder / PARAMETERS).write_text(shape.provisioning_parameters, encoding="utf-8")
    return folder


def _sets_something(path: Path) -> bool:
    """Return whether a file of variables has more than comments."""
    lines = (line.strip() for line in path.read_text(encoding="utf-8").splitlines())
    return any(line and line != "---" and not line.startswith("#") for line in lines)
