# SPDX-License-Identifier: Apache-2.0
"""What is checked is what roles get: values are rendered and converted once, by the type of their option."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible.parsing.dataloader import DataLoader
from conftest import ROOT

from hyperpod_lifecycle.argument_specs import CONTRACT, declared
from hyperpod_lifecycle.in_ansible.answer import check_settings
from hyperpod_lifecycle.in_ansible.typed_values import TypedValues

try:  # ansible-core 2.19 renders only what comes from a trusted file
    from ansible.template import trust_as_template as trust
except ImportError:
    trust = str

ROLE = """
argument_specs:
  main:
    options:
      own_enabled: {type: bool, description: x}
      own_count: {type: int, description: x}
      own_path: {type: path, description: x}
      own_kind: {type: str, choices: [a, b], description: x}
      own_secret: {type: int, no_log: true, description: x}
      own_maybe: {type: str, description: x}
      own_list: {type: list, elements: str, description: x}
      own_paths:
        type: list
        elements: dict
        description: x
        options:
          at: {type: path, description: x}
          size: {type: int, description: x}
          unset: {type: str, description: x}
"""


@pytest.fixture
def role(tmp_path: Path) -> Path:
    (tmp_path / "own/meta").mkdir(parents=True)
    (tmp_path / "own/meta/argument_specs.yml").write_text(ROLE)
    (tmp_path / "own/defaults").mkdir()
    defaults = "own_base: /a\nown_count: 1\nown_number: 3\nown_no: 'no'\nown_enabled: true\n"
    (tmp_path / "own/defaults/main.yml").write_text(defaults)
    return tmp_path


def check(variables: dict[str, Any], roles: Path) -> TypedValues:
    return check_settings({"inventory_dir": "/nowhere", **variables}, roles, DataLoader())


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("own_count", "many", "unable to convert to int"),
        ("own_count", None, "has no value"),
        ("own_enabled", "maybe", "unable to convert to bool"),
        ("own_kind", "c", "must be one of: a, b"),
        ("own_path", trust("{{ nope }}/x"), "cannot be rendered.*nope"),
        ("own_secret", "hunter2", "^(?!.*hunter2)"),
        ("own_maybe", False, "own_maybe: found a boolean, expected a string; quote it"),
        ("own_maybe", 27.1, "own_maybe: found a number, expected a string; quote it"),
        ("own_maybe", {"a": 1}, "own_maybe: found a dict"),
        ("own_list", ["a", True], r"own_list\[1\]: found a boolean"),
        ("own_paths", [{"at": 1.5}], r"own_paths\[0\].at: found a number"),
        ("own_paths", [{"ta": "/x"}], "ta"),
    ],
)
def test_what_does_not_fit_is_a_problem(role: Path, name: str, value: Any, expected: str) -> None:
    made = check({name: value}, role)
    (problem,) = map(str, made.problems)
    assert re.search(expected, problem)
    assert name not in made.values


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("own_enabled", "no", False),
        ("own_enabled", "yes", True),
        ("own_enabled", 0, False),
        ("own_enabled", trust("{{ own_no }}"), False),
        ("own_enabled", trust("{{ own_number > 3 }}"), False),
        ("own_count", "3", 3),
        ("own_count", trust("{{ own_number }}"), 3),
        ("own_count", trust("{{ own_number + 1 }}"), 4),
        ("own_path", trust("{{ own_base }}/x"), "/a/x"),
        ("own_path", "/fsx/", "/fsx"),
        ("own_path", "/", "/"),
        ("own_maybe", 100, "100"),
        ("own_maybe", "27.10", "27.10"),
        ("own_list", "a,b", ["a", "b"]),
        ("own_list", ["a", trust("{{ own_base }}")], ["a", "/a"]),
        ("own_paths", [{"at": "/x/", "size": "7"}], [{"at": "/x", "size": 7}]),
    ],
)
def test_roles_get_the_converted_value(role: Path, name: str, value: Any, expected: Any) -> None:
    made = check({name: value}, role)
    assert not made.problems
    assert made.values == {name: expected}
    assert isinstance(made.values[name], type(expected))
    assert isinstance(made.values[name], bool) == isinstance(expected, bool)


def test_no_value_for_an_option_without_a_default_is_none(role: Path) -> None:
    made = check({"own_maybe": None}, role)
    assert (made.problems, made.values) == ([], {})


def test_plain_ansible_refuses_what_only_the_runner_converts(role: Path) -> None:
    (problem,) = check({"own_enabled": "no"}, role).untyped
    assert str(problem).endswith("own_enabled: it is not a boolean; write: false")
    assert not check({"own_enabled": trust("{{ own_number > 3 }}")}, role).untyped


def test_texts_have_the_form_that_their_role_declares(role: Path) -> None:
    (role / "own/meta/patterns.yml").write_text(
        "own_maybe: {pattern: 'a+', remedy: write only the letter a}\n"
        "own_secret: {pattern: '[1-4]+', remedy: write small digits}\n"
        "own_list: {pattern: '[^ ]+', remedy: write no spaces}\n"
    )
    declared.cache_clear()
    assert not check({"own_maybe": "aaa", "own_count": 1, "own_list": ["x"]}, role).problems
    found = [str(problem) for problem in check({"own_maybe": "aab", "own_list": ["x", "y z"]}, role).problems]
    assert [text.partition(": ")[2] for text in found] == [
        "own_maybe: found aab; write only the letter a",
        "own_list[1]: found y z; write no spaces",
    ]


# --- the roles of the collection ---

ROLES = ROOT / "collection/roles"


@pytest.mark.parametrize(
    ("name", "value", "found"),
    [
        ("fsx_openzfs_options", ["noatime", "nfsvers=4.1", "x-systemd.mount-timeout=90", "nofail"], ""),
        ("fsx_openzfs_options", ["noatme"], "fsx_openzfs_options[0]: found noatme; write one mount option of NFS"),
        ("fsx_openzfs_options", ["noatime,hard"], "found noatime,hard; write one mount option"),
        ("fsx_openzfs_options", ["nconnect=17"], "found nconnect=17"),
        ("fsx_lustre_options", ["noatime", "flock", "user_xattr", "lazystatfs"], ""),
        ("fsx_lustre_options", ["flok"], "fsx_lustre_options[0]: found flok"),
        ("fsx_lustre_options", ["nconnect=16"], "found nconnect=16"),
        ("fsx_more_file_systems", [{"mount_path": "/data/"}], ""),
        (
            "fsx_more_file_systems",
            [{"mount_path": "/fsx/../x"}],
            "fsx_more_file_systems[0].mount_path: found /fsx/../x",
        ),
        ("fsx_more_file_systems", [{"mount_path": "/data", "dns_name": "https://fs-1.example"}], "DNS name"),
        ("fsx_more_file_systems", [{"mount_path": "/data", "options": ["noatme"]}], "options[0]: found noatme"),
        ("homes_root", "/fsx/homes/", ""),
        ("homes_root", "fsx", "homes_root: found fsx"),
    ],
)
def test_texts_of_storage(name: str, value: Any, found: str) -> None:
    if name == "fsx_more_file_systems":
        value = [{"kind": "openzfs", "dns_name": "fs-1.example", **each} for each in value]
    problems = "\n".join(map(str, check({name: value}, ROLES).problems))
    assert found in problems
    assert bool(found) is bool(problems)


def test_forms_are_of_options_that_there_are_and_fit_their_defaults() -> None:
    options = declared(ROLES)
    defaults: dict[str, Any] = {}
    for path in ROLES.glob("*/defaults/main.yml"):
        defaults |= yaml.safe_load(path.read_text())
    plain = {name: value for name, value in defaults.items() if "{{" not in json.dumps(value)}
    for path in ROLES.glob("*/meta/patterns.yml"):
        for name, form in yaml.safe_load(path.read_text()).items():
            option, _, part = name.partition(".")
            assert options[option].role == path.parents[1].name
            assert not part or part in options[option].spec["options"]
            assert "pattern" not in form or form["remedy"]
    assert not check(plain, ROLES).problems
    assert {option.role for option in options.values()} > {CONTRACT}
