# SPDX-License-Identifier: Apache-2.0
"""Whole files, replaced at once. Standard library only: it runs on the node."""

from __future__ import annotations

import os
import socket
import tempfile
from pathlib import Path


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


def write_owned(path, text, uid, gid, mode):
    """Replace a file whole; owner and mode come before the words. A link stays one, and what it leads to is replaced.

    What a killed run has left is under a name of this node's own, since the folder may be shared with other nodes.
    """
    path = Path(os.path.realpath(path))
    new = path.with_name(f"{path.name}.{socket.gethostname()}.new")
    new.unlink(missing_ok=True)
    handle = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(handle, "w", encoding="utf-8", errors="surrogateescape") as file:
        os.fchown(file.fileno(), uid, gid)
        os.fchmod(file.fileno(), mode)
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    new.rename(path)


def difference(path, before, after):
    """What a module shows of a file with ``--diff``."""
    return {"before": before, "after": after, "before_header": str(path), "after_header": str(path)}
