# SPDX-License-Identifier: Apache-2.0
"""The verdicts on a concern and on a run. See `hyperpod_lifecycle.errors` for the exit codes."""

from __future__ import annotations

from collections.abc import Iterable

OK = "ok"  #: it works
PENDING = "pending"  #: it will work once another node or the platform is ready
DEGRADED = "degraded"  #: an optional concern failed
BLOCKED = "blocked"  #: the platform, the hardware or a person keeps jobs from the node
FAILED = "failed"  #: a required concern failed

#: All verdicts, best first. A run has the worst of its concerns' verdicts; only FAILED has another exit code than 0.
ORDER = (OK, PENDING, DEGRADED, BLOCKED, FAILED)

#: What a task may declare about its concern with the action `verdict`.
DECLARED = (OK, PENDING, BLOCKED)


def worst(statuses: Iterable[str]) -> str:
    """Return the worst verdict among statuses of concerns, ignoring other statuses; OK if there is none."""
    return max((status for status in statuses if status in ORDER), key=ORDER.index, default=OK)
