# SPDX-License-Identifier: GPL-3.0-or-later
"""Keep packed modules for the next run of a test: packing one takes longer than to run it."""

from __future__ import annotations

import os
from pathlib import Path

from ansible.plugins.callback import CallbackBase

from hyperpod_lifecycle.in_ansible import module_cache


class CallbackModule(CallbackBase):  # type: ignore[misc]
    CALLBACK_VERSION = 2.0
    CALLBACK_TYPE = "aggregate"
    CALLBACK_NAME = "packed"

    def __init__(self) -> None:
        super().__init__()
        module_cache.keep(Path(os.environ["PACKED_MODULES"]))
