# SPDX-License-Identifier: Apache-2.0
"""The folder that a user would upload, made from this checkout."""

from __future__ import annotations

import platform
from collections.abc import Callable
from pathlib import Path

from hyperpod_lab.shape import PARAMETERS, Shape
from hyperpod_lifecycle import bundle


def build(shape: Shape, dest: Path, say: Callable[[str], object]) -> Path:
    """on_create.sh, the inventory and the wheels for the image's Python, with the user's provisioning parameters."""
    folder = bundle.build(dest, [shape.release.python], platform.machine(), say=say)
    if shape.provisioning_parameters is not None:
        (folder / PARAMETERS).write_text(shape.provisioning_parameters, encoding="utf-8")
    return folder
