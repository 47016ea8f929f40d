# SPDX-License-Identifier: Apache-2.0
"""Which plays a run with tags selects."""

from __future__ import annotations

import pytest

from hyperpod_lifecycle.errors import InputError
from hyperpod_lifecycle.selection import Play, selection


def play(name: str, tags: str, task_tags: str) -> Play:
    return Play(name, ("compute",), True, (), frozenset(tags.split()), frozenset(task_tags.split()))


PLATFORM = play("platform", "always", "always")
SLURM = play("slurm", "slurm", "install never slurm")


def test_what_a_play_does_with_tags() -> None:
    assert PLATFORM.selected(["slurm"], [])
    assert SLURM.selected(["install"], [])
    assert SLURM.selected([], [])
    assert not SLURM.selected(["fsx"], [])
    assert not SLURM.selected(["install"], ["slurm"])


def test_tags_stay_as_they_are_unless_a_phase_is_skipped() -> None:
    assert selection([PLATFORM, SLURM], ["slurm"], []) == (["slurm"], [])
    assert selection([PLATFORM, SLURM], ["all"], ["install"]) == (["always", "configure", "service", "verify"], [])


def test_a_tag_that_nothing_has_is_an_error_that_names_the_known_ones() -> None:
    with pytest.raises(InputError, match="no task has the tag 'slrm'; known: .*install, never, slurm"):
        selection([PLATFORM, SLURM], ["slrm"], [])
