# SPDX-License-Identifier: GPL-3.0-or-later
"""Evaluate `meta/plan.yml` of the roles: values to show in a plan, and conditions to check before a run.

`shows` has the values. `requires` has conditions on files and settings without which a task of the role would fail.
Both are templates with the variables of the host, of the role and of the plan (`vars`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml
from ansible.errors import AnsibleError
from ansible.template import Templar

from hyperpod_lifecycle.errors import Problem
from hyperpod_lifecycle.in_ansible.typed_values import templates, truth
from hyperpod_lifecycle.variable_files import origin


def shown(variables: Mapping[str, Any], roles: Path, loader: Any) -> dict[str, Any]:
    """Return the values that each role in `roles` that runs on this host shows, in the order of the roles' names."""
    found: dict[str, Any] = {}
    for plan, templar in _plans(variables, roles, loader):
        found |= {name: templar.template(value) for name, value in plan.get("shows", {}).items()}
    return found


def unmet(variables: Mapping[str, Any], roles: Path, loader: Any) -> list[Problem]:
    """Return a problem for each unmet requirement of the roles in `roles` that run on this host."""
    found = []
    for plan, templar in _plans(variables, roles, loader):
        for rule in plan.get("requires", ()):
            try:
                if truth(templar.template(rule["that"])):
                    continue
                said, remedy = (str(templar.template(rule[key])) for key in ("found", "remedy"))
            except AnsibleError:  # a setting that cannot be rendered, which is a problem of its own
                continue
            setting = rule["setting"]
            if setting in variables:
                found.append(Problem(origin(setting, variables), setting, said, remedy))
            else:
                found.append(Problem(rule["file"], rule["key"], said, remedy))
    return found


def _plans(variables: Mapping[str, Any], roles: Path, loader: Any) -> Iterator[tuple[dict[str, Any], Any]]:
    """Yield the plan of each enabled role for this host, and a templar with the role's variables."""
    defaults: dict[str, Any] = {}
    for path in sorted(roles.glob("*/defaults/main.yml")):
        defaults |= templates(path, loader)
    for path in sorted(roles.glob("*/meta/plan.yml")):
        role = path.parents[1]
        if not _is_for(role, variables):
            continue
        plan = templates(path, loader)
        constants = {**templates(role / "vars/main.yml", loader), **plan.get("vars", {})}
        templar = Templar(loader, variables={**defaults, **variables, **constants})
        switch = templar.available_variables.get(f"{role.name}_enabled", True)
        try:
            is_on = truth(templar.template(switch))
        except AnsibleError:
            continue
        if is_on:
            yield plan, templar


def _is_for(role: Path, variables: Mapping[str, Any]) -> bool:
    """Return whether the role's playbook, which has the same name, is for this node type."""
    playbook = role.parents[1] / "playbooks" / f"{role.name}.yml"
    return any(
        variables.get("hyperpod_node_type") in play["hosts"] for play in yaml.safe_load(playbook.read_text("utf-8"))
    )
