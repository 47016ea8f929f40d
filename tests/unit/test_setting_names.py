# SPDX-License-Identifier: Apache-2.0
"""Variables that no role knows, and placeholders, are told apart from everything else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT

from hyperpod_lifecycle.argument_specs import Form, Option, declared
from hyperpod_lifecycle.setting_names import problems

KNOWN = {
    "fsx_enabled": Option("fsx"),
    "fsx_mounts": Option("fsx"),
    "slurm_log_size": Option("slurm"),
    "slurm_conf": Option("slurm", form=Form(placeholders=True)),
}


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
    (problem,) = problems({name: value}, KNOWN)
    assert expected in str(problem)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("slurm_log_size", "5M"),
        ("my_own", "<anything>"),
        ("__slurm_registered", 1),
        ("slurmy", "x"),
        ("slurm_conf", {"a": "${HOME}/x"}),
        ("fsx_mounts", [1, None]),
    ],
)
def test_no_problem(name: str, value: Any) -> None:
    assert problems({name: value}, KNOWN) == []


def test_every_role_of_the_collection_is_known() -> None:
    roles = ROOT / "collection/roles"
    known = declared(roles)
    assert {option.role for option in known.values()} == {role.name for role in roles.iterdir() if role.is_dir()}
    assert known["slurm_log_size"].role == "slurm"


def test_no_value_is_shown(tmp_path: Path) -> None:
    secrets = {"slurm_pasword": "hunter2", "slurm_log_size": "x://hunter2@<HOST>"}
    assert "hunter2" not in " ".join(map(str, problems(secrets, KNOWN)))


def test_a_problem_names_the_file_also_through_the_link_of_a_run(tmp_path: Path) -> None:
    (tmp_path / "mine/group_vars").mkdir(parents=True)
    (tmp_path / "mine/group_vars/login.yml").write_text("a: 1\nslurm_log_siez: 1\n")
    (tmp_path / "run").mkdir()
    (tmp_path / "run/group_vars").symlink_to(tmp_path / "mine/group_vars")
    variables = {"inventory_dir": str(tmp_path / "run"), "slurm_log_siez": 1}
    assert [problem.file for problem in problems(variables, KNOWN)] == [str(tmp_path / "mine/group_vars/login.yml")]
