# SPDX-License-Identifier: Apache-2.0
"""Whole files, replaced at once. Standard library only: it runs on the node."""

from __future__ import annotations

import os
import tempfile


def replace(module, path, before, after, mode=None):
    """Let `after` stand where `before` does, unless they are equal or the module only checks. Do they differ?

    A reader, and a run that is killed, sees one of the two. Without `mode` a file that is there keeps owner and mode.
    """
    if before == after or module.check_mode:
        return before != after
    handle, temporary = tempfile.mkstemp(dir=module.tmpdir)
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        file.write(after)
    if mode is not None:
        os.chmod(temporary, mode)
    module.atomic_move(temporary, str(path))
    return True
