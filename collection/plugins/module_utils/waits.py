# SPDX-License-Identifier: Apache-2.0
"""Pauses between polls of something that many nodes share. Uses the standard library only."""

from __future__ import annotations

import random
import time


def pause(seconds):
    """Sleep for 0.5 to 1.5 times `seconds`, so that nodes started together do not poll a server at the same time."""
    time.sleep(random.uniform(0.5, 1.5) * seconds)  # noqa: S311 it spreads the nodes
