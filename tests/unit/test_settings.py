# SPDX-License-Identifier: Apache-2.0
"""Variables that no role knows, and placeholders, are told apart from everything else."""

from __future__ import annotations

from typing import Any

import pytest
from conftest import ROOT

from hyperpod_lifecycle.settings import known_variables, problems

KNOWN = {"fsx": frozenset({"fsx_enabled", "fsx_mounts"}), "slurm": frozenset({"slurm_log_size"})}


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("slurm_log_siez", "1M", "did you mean slurm_log_size?"),
        ("fsx_zzz", 1, "the role fsx knows: fsx_enabled, fsx_mounts"),
        ("fsx_mounts", [{"path": "/<MOUNT_PATH>"}], "fsx_mounts[0].path: a placeholder"),
        ("slurm_log_size", "${SIZE}", "slurm_log_size: a placeholder"),
        ("fsx_mounts", ["PLACEHOLDER_MOUNT"], "fsx_mounts[0]: a placeholder"),
    ],
)
def test_problem(name: str, value: Any, expected: str) -> None:
    (problem,) = problems({name: value}, KNOWN, "group_vars")
    assert expected in str(problem)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("slurm_log_size", "5M"),
        ("my_own", "<anything>"),
        ("__slurm_registered", 1),
        ("slurmy", "x"),
        ("fsx_mounts", [1, None]),
    ],
)
def test_no_problem(name: str, value: Any) -> None:
    assert problems({name: value}, KNOWN, "group_vars") == []


def test_every_role_of_the_collection_is_known() -> None:
    roles = ROOT / "collection/roles"
    known = known_variables(roles)
    assert set(known) == {role.name for role in roles.iterdir() if role.is_dir()}
    assert "slurm_log_size" in known["slurm"]
