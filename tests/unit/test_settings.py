# SPDX-License-Identifier: Apache-2.0
"""Variables that no role knows, and placeholders, are told apart from everything else."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from ansible.parsing.dataloader import DataLoader
from conftest import ROOT

from hyperpod_lifecycle.errors import InputError
from hyperpod_lifecycle.settings import known_variables, parse_extra_vars, problems
from hyperpod_lifecycle.values import wrong_values

try:  # ansible-core 2.19 renders only what comes from a trusted file
    from ansible.template import trust_as_template as trust
except ImportError:
    trust = str

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
    (problem,) = problems({name: value}, KNOWN)
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
    assert problems({name: value}, KNOWN) == []


def test_every_role_of_the_collection_is_known() -> None:
    roles = ROOT / "collection/roles"
    known = known_variables(roles)
    assert set(known) == {role.name for role in roles.iterdir() if role.is_dir()}
    assert "slurm_log_size" in known["slurm"]


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


ROLE = """
argument_specs:
  main:
    options:
      own_count: {type: int, description: x}
      own_path: {type: path, description: x}
      own_kind: {type: str, choices: [a, b], description: x}
      own_secret: {type: int, no_log: true, description: x}
      own_maybe: {type: str, description: x}
"""


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("own_count", "many", "unable to convert to int"),
        ("own_count", None, "has no value"),
        ("own_kind", "c", "must be one of: a, b"),
        ("own_path", trust("{{ nope }}/x"), "cannot be rendered.*nope"),
        ("own_secret", "hunter2", "^(?!.*hunter2)"),
        ("own_count", trust("{{ own_number }}"), None),
        ("own_path", trust("{{ own_base }}/x"), None),
        ("own_maybe", None, None),
    ],
)
def test_values_have_the_type_of_the_argument_spec(tmp_path: Path, name: str, value: Any, expected: str | None) -> None:
    (tmp_path / "own/meta").mkdir(parents=True)
    (tmp_path / "own/meta/argument_specs.yml").write_text(ROLE)
    (tmp_path / "own/defaults").mkdir()
    (tmp_path / "own/defaults/main.yml").write_text("own_base: /a\nown_count: 1\nown_number: 3\n")
    found = [str(problem) for problem in wrong_values({name: value}, tmp_path, DataLoader())]
    assert len(found) == (expected is not None)
    assert expected is None or re.search(expected, found[0])


def test_texts_look_as_their_role_says(tmp_path: Path) -> None:
    (tmp_path / "own/meta").mkdir(parents=True)
    (tmp_path / "own/meta/argument_specs.yml").write_text(ROLE)
    (tmp_path / "own/meta/patterns.yml").write_text("own_maybe: {pattern: 'a+', remedy: write only the letter a}\n")
    assert wrong_values({"own_maybe": "aaa", "own_count": 1}, tmp_path, DataLoader()) == []
    (problem,) = wrong_values({"own_maybe": "aab"}, tmp_path, DataLoader())
    assert "found aab" in str(problem)
    assert "write only the letter a" in str(problem)


def test_settings_of_the_command_line_are_yaml() -> None:
    words = ["a_enabled=false", "a_list=[1, x]", "a_text=x=y", "a_empty=", "a_day=2026-01-02"]
    found = parse_extra_vars(words)
    assert found == {"a_enabled": False, "a_list": [1, "x"], "a_text": "x=y", "a_empty": None, "a_day": "2026-01-02"}


@pytest.mark.parametrize("word", ["a_enabled", "=1", "a-b=1", "a=[1", "hyperpod_node_type=login", "a=*x"])
def test_what_is_no_setting_is_refused(word: str) -> None:
    with pytest.raises(InputError, match="-e"):
        parse_extra_vars([word])
