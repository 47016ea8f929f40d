# SPDX-License-Identifier: Apache-2.0
"""When a daemon is to be started again."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from ansible_collections.hyperpod.lifecycle.plugins.module_utils import units


def started(seconds: float) -> dict[str, str]:
    """A unit whose process is so many seconds old."""
    return {"ExecMainStartTimestampMonotonic": str(int((time.clock_gettime(time.CLOCK_MONOTONIC) - seconds) * 1e6))}


@pytest.mark.parametrize("put", ["written", "touched back", "moved", "changed in mode"])
def test_a_file_that_came_with_an_old_time_is_as_young_as_it_is(tmp_path: Path, put: str) -> None:
    """An authority's bundle copied with its own time, a key that was moved into its place."""
    path = tmp_path / "ca.pem"
    path.write_text("new")
    if put == "moved":
        os.utime(path, (1, 1))
        path = path.rename(tmp_path / "moved.pem")
    elif put == "touched back":
        os.utime(path, (1, 1))
    elif put == "changed in mode":
        path.chmod(0o600)
    assert units.outdated(started(60), [str(path)])
    assert not units.outdated(started(-60), [str(path)])
    assert not units.outdated(started(60), [str(tmp_path / "absent")])


def test_a_moment_counts_as_a_file_does() -> None:
    assert units.outdated(started(60), [], since=int(time.time()) - 30)
    assert not units.outdated(started(60), [], since=int(time.time()) - 90)
