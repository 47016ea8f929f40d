# SPDX-License-Identifier: GPL-3.0-or-later
"""Describe which plays and tags apply to this node, and with which settings.

`hyperpod_lifecycle.question` reads the result of `describe`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ansible.playbook import Playbook
from ansible.template import Templar
from ansible.utils.collection_loader._collection_finder import _get_collection_path, _get_collection_playbook_path
from ansible.utils.unsafe_proxy import wrap_var

from hyperpod_lifecycle.argument_specs import COLLECTION, declared
from hyperpod_lifecycle.in_ansible import role_plans
from hyperpod_lifecycle.in_ansible.typed_values import TypedValues, truth, typed_values
from hyperpod_lifecycle.setting_names import problems


def check_settings(variables: dict[str, Any], roles: Path, loader: Any) -> TypedValues:
    """Return the settings in a host's `variables` as the roles get them, with all their problems."""
    known = declared(roles)
    made = typed_values(variables, known, roles, loader)
    found = problems(variables, known)
    named = {problem.key for problem in found}
    made.problems = [*found, *(problem for problem in made.problems if problem.key not in named)]
    wrong = {problem.key for problem in made.problems}
    unmet = role_plans.unmet({**variables, **wrap_var(made.values)}, roles, loader)
    made.problems += [problem for problem in unmet if problem.key not in wrong]
    return made


def settings(loader: Any, inventory: Any, manager: Any) -> TypedValues:
    """Return the settings of the only host of `inventory`."""
    roles = Path(_get_collection_path(COLLECTION)) / "roles"
    return check_settings(manager.get_vars(host=_host(inventory)), roles, loader)


def shown(loader: Any, inventory: Any, manager: Any) -> dict[str, Any]:
    """Return what a plan shows of the only host of `inventory`, as JSON data."""
    roles = Path(_get_collection_path(COLLECTION)) / "roles"
    return role_plans.shown(manager.get_vars(host=_host(inventory)), roles, loader)


def describe(playbook: str, loader: Any, inventory: Any, manager: Any) -> dict[str, Any]:
    """Return the plays of `playbook`, an FQCN or a path, for the only host of `inventory`, as JSON data."""
    host = _host(inventory)
    found = _get_collection_playbook_path(playbook)
    plays = Playbook.load(found[1] if found else playbook, variable_manager=manager, loader=loader).get_plays()
    return {
        "node_type": str(manager.get_vars(host=host)["hyperpod_node_type"]),
        "plays": [_play(play, host, inventory, manager, loader) for play in plays],
    }


def _host(inventory: Any) -> Any:
    return inventory.get_hosts("hyperpod")[0]


def _play(play: Any, host: Any, inventory: Any, manager: Any, loader: Any) -> dict[str, Any]:
    variables = manager.get_vars(play=play, host=host)
    templar = Templar(loader, variables=variables)
    switches = [f"{role.get_name().rpartition('.')[2]}_enabled" for role in play.get_roles()]
    return {
        "name": play.get_name(),
        "hosts": play.hosts if isinstance(play.hosts, list) else play.hosts.split(":"),
        "matches": host in inventory.get_hosts(play.hosts),
        "off": [name for name in switches if name in variables and not truth(templar.template(variables[name]))],
        "tags": sorted(play.tags),
        "task_tags": sorted({tag for block in play.compile() for tag in _tags(block)}),
    }


def _tags(block: Any) -> Iterator[str]:
    for item in (*block.block, *block.rescue, *block.always):
        if hasattr(item, "block"):
            yield from _tags(item)
        elif not getattr(item, "implicit", False):
            yield from item.tags
