# SPDX-License-Identifier: Apache-2.0
"""The configuration that a node fetches from its controllers. Uses the standard library only, as it runs on nodes."""

from __future__ import annotations

import socket
from pathlib import Path

from ansible_collections.hyperpod.lifecycle.plugins.module_utils import slurm

#: Where Slurm's commands look, and what slurmd keeps over a reboot.
FETCHED = (Path("/run/slurm/conf/slurm.conf"), Path("/var/spool/slurmd/conf-cache/slurm.conf"))


def on_disk(controllers):
    """Return the slurm.conf that a daemon has fetched from these controllers; empty if there is none.

    An image made of another cluster's node has that cluster's.
    """
    for path in FETCHED:
        text = path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""
        if text and set(controllers).issubset(slurm.controllers(text)):
            return text
    return ""


def registered(address, controllers):
    """Return the NodeName that this node has in the configuration on its disk; empty if there is none."""
    return slurm.node_name(on_disk(controllers), address, socket.gethostname())


def stale(path):
    """Return, for a message, that a node other than a controller has a slurm.conf that differs from the fetched one."""
    fetched = next((each for each in FETCHED if each.exists()), None)
    path = Path(path)
    if not path.exists() or not fetched:
        return ""
    texts = [each.read_text(encoding="utf-8", errors="replace") for each in (path, fetched)]
    if list(slurm.parameters(texts[0])) == list(slurm.parameters(texts[1])):
        return ""
    return f"{path} is not what the controllers send, and Slurm's commands on this node read it first: delete it"
