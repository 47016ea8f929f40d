# SPDX-License-Identifier: GPL-3.0-or-later
"""Which plays are for this node, as Ansible itself sees it. Run as a program; prints one JSON object.

A process of its own, because Ansible keeps its configuration and plugins in module state, and because this file imports
ansible and the rest of the package does not.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleError
from ansible.inventory.manager import InventoryManager
from ansible.parsing.dataloader import DataLoader
from ansible.playbook import Playbook
from ansible.playbook.play import Play
from ansible.plugins.loader import init_plugin_loader
from ansible.template import Templar
from ansible.utils.collection_loader._collection_finder import _get_collection_path, _get_collection_playbook_path
from ansible.vars.manager import VariableManager

from hyperpod_lifecycle.settings import known_variables, problems
from hyperpod_lifecycle.values import wrong_values

#: Exit code when Ansible itself refuses the inventory or the playbook; anything else is a defect.
ANSIBLE_SAYS = 3


def ask(inventory_source: str, playbook: str) -> dict[str, Any]:
    """The plays of `playbook` (an FQCN) for the host of `inventory_source`, and what is wrong with its variables."""
    init_plugin_loader()
    loader = DataLoader()
    inventory = InventoryManager(loader, sources=[inventory_source])
    manager = VariableManager(loader, inventory)
    host = inventory.get_hosts("hyperpod")[0]
    path = _get_collection_playbook_path(playbook)[1]
    plays = Playbook.load(path, variable_manager=manager, loader=loader).get_plays()
    roles = Path(_get_collection_path(playbook.rpartition(".")[0])) / "roles"
    variables = manager.get_vars(host=host)
    return {
        "node_type": str(variables["hyperpod_node_type"]),
        "plays": [describe(play, host, inventory, manager, loader) for play in plays],
        "problems": [
            [problem.file, problem.key, problem.found, problem.remedy]
            for problem in (
                *problems(variables, known_variables(roles)),
                *wrong_values(variables, roles, loader),
            )
        ],
    }


def describe(play: Play, host: Any, inventory: Any, manager: Any, loader: Any) -> dict[str, Any]:
    """One play: its name, its `hosts:`, whether the host is among them, and the switches of its roles that are off."""
    variables = manager.get_vars(play=play, host=host)
    templar = Templar(loader, variables=variables)
    switches = [f"{role.get_name().rpartition('.')[2]}_enabled" for role in play.get_roles()]
    return {
        "name": play.get_name(),
        "hosts": play.hosts if isinstance(play.hosts, list) else play.hosts.split(":"),
        "matches": host in inventory.get_hosts(play.hosts),
        "off": [name for name in switches if name in variables and not templar.template(variables[name])],
    }


def main() -> int:
    """Entry point: INVENTORY PLAYBOOK."""
    try:
        print(json.dumps(ask(*sys.argv[1:])))
    except AnsibleError as error:
        print(f"ERROR! {error.message}", file=sys.stderr)
        return ANSIBLE_SAYS
    return 0


if __name__ == "__main__":
    sys.exit(main())
