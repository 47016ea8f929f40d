# SPDX-License-Identifier: Apache-2.0
"""The shape of every role: rules that neither Ansible nor ansible-lint checks."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from conftest import ROOT
from jinja2.nativetypes import NativeEnvironment

ROLES = sorted(path for path in (ROOT / "collection/roles").iterdir() if path.is_dir())
pytestmark = pytest.mark.once

PLAYBOOKS = ROOT / "collection/playbooks"
NAMES = [role.name for role in ROLES]

#: Roles that only assert, so there is nothing to verify afterwards.
ASSERTING_ONLY = {"platform"}


def read(path: Path) -> Any:
    return yaml.safe_load(path.read_text(encoding="utf-8")) if path.exists() else None


@cache
def options(role: Path) -> dict[str, Any]:
    found: dict[str, Any] = read(role / "meta/argument_specs.yml")["argument_specs"]["main"]["options"]
    return found


def tasks(role: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Every task of a role, also those inside blocks, with the file it is in."""

    def walk(items: list[dict[str, Any]], where: str) -> Iterator[tuple[str, dict[str, Any]]]:
        for item in items:
            yield where, item
            for part in ("block", "rescue", "always"):
                yield from walk(item.get(part, []), where)

    for path in sorted(role.glob("tasks/*.yml")):
        yield from walk(read(path) or [], path.name)


def texts(role: Path, *folders: str) -> Iterator[tuple[Path, str]]:
    for folder in folders:
        for path in sorted((role / folder).rglob("*")):
            if path.is_file():
                yield path, path.read_text(encoding="utf-8")


@pytest.mark.parametrize("name", ["accounting", "homes"])
def test_ubuntu_is_among_the_users_once(name: str) -> None:
    default = NativeEnvironment().from_string(
        read(ROOT / f"collection/roles/{name}/defaults/main.yml")[f"{name}_users"]
    )
    ada, ubuntu = {"name": "ada"}, {"name": "ubuntu", "home": "/fsx/ubuntu", "slurm_account": "ops"}
    assert default.render(hyperpod_users=[ada]) == [{"name": "ubuntu"}, ada]
    assert default.render(hyperpod_users=[ada, ubuntu]) == [ada, ubuntu]


@pytest.mark.parametrize("role", ROLES, ids=NAMES)
def test_defaults_are_those_of_the_argument_spec(role: Path) -> None:
    """`ansible-doc -t role` shows the spec, roles use the defaults."""
    optional = {name: option["default"] for name, option in options(role).items() if not option.get("required")}
    assert (read(role / "defaults/main.yml") or {}) == optional


@pytest.mark.parametrize("role", ROLES, ids=NAMES)
def test_every_default_has_a_comment(role: Path) -> None:
    path = role / "defaults/main.yml"
    before = ""
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
        if re.match(r"\w+:", line):
            assert before.startswith("# "), line
        before = line


@pytest.mark.parametrize("role", ROLES, ids=NAMES)
def test_every_option_has_its_role_as_prefix_a_type_and_a_description(role: Path) -> None:
    prefix = "hyperpod_" if role.name == "platform" else f"{role.name}_"
    for name, option in options(role).items():
        assert name.startswith(prefix)
        assert option["type"]
        assert option["description"]


@pytest.mark.parametrize("role", ROLES, ids=NAMES)
def test_only_defaults_read_the_platforms_variables(role: Path) -> None:
    for path, text in texts(role, "tasks", "templates", "vars"):
        read_here = set(re.findall(r"\bhyperpod_\w+", re.sub(r"#.*|hyperpod_notes", "", text)))
        assert not read_here, f"{path.name} reads {read_here}"


@pytest.mark.parametrize("role", ROLES, ids=NAMES)
def test_roles_do_not_read_each_other(role: Path) -> None:
    theirs: set[str] = set()
    for other in set(NAMES) - {role.name, "platform"}:
        theirs |= set(options(ROLES[NAMES.index(other)]))
    # Modules have such names too, and so has Slurm's usual database.
    inside = tuple(f"{mark}{other}_" for other in set(NAMES) - {role.name, "platform"} for mark in ("_", "__"))
    for path, text in texts(role, "defaults", "tasks", "templates", "vars"):
        words = set(re.findall(r"\w+", re.sub(r"#.*", "", text)))
        read_here = (words & theirs) | {word for word in words if word.startswith(inside)}
        assert not read_here, f"{path} reads {read_here}"


@pytest.mark.parametrize("role", ROLES, ids=NAMES)
def test_names_inside_a_role_carry_its_name(role: Path) -> None:
    for name in read(role / "vars/main.yml") or {}:
        assert name.startswith(f"_{role.name}_")
    for where, task in tasks(role):
        if "register" in task:
            assert task["register"].startswith(f"__{role.name}_"), (where, task["name"])


@pytest.mark.parametrize("role", ROLES, ids=NAMES)
def test_downloads_have_a_checksum_and_files_a_mode(role: Path) -> None:
    for where, task in tasks(role):
        if "ansible.builtin.get_url" in task:
            assert task["ansible.builtin.get_url"].get("checksum"), (where, task["name"])
        for module in ("copy", "template", "get_url"):
            arguments = task.get(f"ansible.builtin.{module}")
            assert arguments is None or isinstance(arguments.get("mode"), str), (where, task["name"])


@pytest.mark.parametrize("role", ROLES, ids=NAMES)
def test_secrets_are_hidden_wherever_they_are_used(role: Path) -> None:
    secrets = {name for name, option in options(role).items() if option.get("no_log")}
    for where, task in tasks(role):
        if any(re.search(rf"\b{secret}\b", yaml.safe_dump(task)) for secret in secrets):
            assert task.get("no_log") is True, (where, task["name"])


@pytest.mark.parametrize("role", ROLES, ids=NAMES)
def test_facts_are_read_from_ansible_facts(role: Path) -> None:
    allowed = {"ansible_facts", "ansible_check_mode", "ansible_diff_mode", "ansible_collections"}
    allowed |= {"ansible_failed_task", "ansible_failed_result"}  # in a rescue
    for path, text in texts(role, "defaults", "tasks", "templates", "vars"):
        assert set(re.findall(r"\bansible_\w+", text)) <= allowed, path.name


@pytest.mark.parametrize("role", ROLES, ids=NAMES)
def test_nothing_is_left_to_a_handler_that_a_killed_run_forgets(role: Path) -> None:
    assert not (role / "handlers").exists()
    for where, task in tasks(role):
        assert "notify" not in task, (where, task["name"])


@pytest.mark.parametrize("role", ROLES, ids=NAMES)
def test_no_error_is_ignored(role: Path) -> None:
    for where, task in tasks(role):
        assert "ignore_errors" not in task, (where, task["name"])
        assert task.get("failed_when") is not False, (where, task["name"])


@pytest.mark.parametrize(
    "role", [role for role in ROLES if role.name not in ASSERTING_ONLY], ids=lambda role: role.name
)
def test_main_is_a_table_of_contents(role: Path) -> None:
    assert (role / "tasks/verify.yml").exists()
    phases = ["install", "configure", "service", "verify"]
    contents, seen = read(role / "tasks/main.yml"), []
    if f"{role.name}_required" in options(role):
        # What need not succeed is one block; its failure ends the run only if the user wants that.
        (concern,) = contents
        (verdict,) = concern["rescue"]
        assert verdict["hyperpod.lifecycle.verdict"] == {"required": f"{{{{ {role.name}_required }}}}"}
        assert verdict["tags"] == phases
        contents = concern["block"]
    for task in contents:
        assert set(task) <= {"name", "ansible.builtin.import_tasks", "ansible.builtin.include_tasks", "tags", "when"}
        if included := task.get("ansible.builtin.include_tasks"):
            assert included["apply"] == {"tags": task["tags"]}, "else its tasks do not run with --tags of a phase"
        assert set(task["tags"]) <= set(phases)
        if len(task["tags"]) == 1:
            seen += task["tags"]
    assert seen == [phase for phase in phases if phase in seen], "phases in their order"
    assert "verify" in seen


def test_each_concern_has_one_play_named_and_tagged_for_it_and_is_in_the_site_once() -> None:
    imported = [item["ansible.builtin.import_playbook"] for item in read(PLAYBOOKS / "site.yml")]
    assert sorted(imported) == sorted(f"hyperpod.lifecycle.{name}" for name in NAMES)
    assert imported[0] == "hyperpod.lifecycle.platform"
    for name in NAMES:
        (play,) = read(PLAYBOOKS / f"{name}.yml")
        assert play["name"] == name
        assert play["tags"] == (["always", name] if name == "platform" else [name])
        assert set(play["hosts"]) <= {"controller", "login", "compute"}
        assert play["roles"] == [{"role": f"hyperpod.lifecycle.{name}"}]
