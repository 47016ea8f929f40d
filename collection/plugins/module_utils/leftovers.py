# SPDX-License-Identifier: Apache-2.0
"""Names of temporary files and other leftovers of killed runs.

A name says which process of which node it belongs to, so that the next run can tell its own litter from what another
process, or another node on a shared file system, is working with. Standard library only: it runs on the node.
"""

from __future__ import annotations

import os
import re
import shutil
import socket
import tempfile
from contextlib import contextmanager, suppress

PREFIX = "hyperpod-lifecycle"
#: Parent of large temporary directories, because /tmp may be in memory.
LARGE = "/var/tmp"  # noqa: S108


def _node():
    return re.sub(r"[^a-z0-9]+", "-", socket.gethostname().split(".")[0].lower())


def own_name(kind):
    """Return a name for this process: ``hyperpod-lifecycle-<kind>-<node>-p<process>``."""
    return f"{PREFIX}-{kind}-{_node()}-p{os.getpid()}"


def is_left(name, kind):
    """Return whether a name belongs to a process of this node that has exited."""
    match = re.fullmatch(rf"\.?{PREFIX}-{kind}-{re.escape(_node())}-p(\d+)(?:[.-].*)?", name)
    return bool(match) and not os.path.exists(f"/proc/{match[1]}")


def sweep(folder, kind):
    """Remove leftovers of killed processes of this node from a directory."""
    for name in os.listdir(folder):
        if is_left(name, kind):
            path = os.path.join(folder, name)
            with suppress(FileNotFoundError):  # another process sweeps too
                if os.path.isdir(path) and not os.path.islink(path):
                    shutil.rmtree(path)
                else:
                    os.unlink(path)


@contextmanager
def own_folder(kind, below=None):
    """Create a temporary directory that only root can access, after removing those of killed processes."""
    below = below or tempfile.gettempdir()
    sweep(below, kind)
    with tempfile.TemporaryDirectory(prefix=f"{own_name(kind)}-", dir=below) as folder:
        yield folder
