# SPDX-License-Identifier: Apache-2.0
"""Pauses between two looks at something that many nodes share. Standard library only: it runs on the node."""

from __future__ import annotations

import random
import time


def pause(seconds):
    """Sleep about so long. Nodes that were started at one moment do not ask a server all at one moment."""
    time.sleep(random.uniform(0.5, 1.5) * seconds)  # noqa: S311 it spreads the nodes
