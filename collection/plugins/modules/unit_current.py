#!/usr/bin/python
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# Not ansible.builtin.systemd_service: it does not detect that a unit runs with outdated settings, and a killed run
# loses the handler that would restart it.
"""Run a daemon with its current settings."""

from __future__ import annotations

DOCUMENTATION = r"""
module: unit_current
short_description: Start a unit, or restart it if its settings are outdated
description:
  - Enables and starts a unit. Restarts it if one of O(files) is newer than its process.
  - Unlike a notified handler, this works across runs that are killed.
  - If it does not start, the message has the last lines of its journal.
extends_documentation_fragment:
  - hyperpod.lifecycle.attributes
author:
  - hyperpod-lifecycle maintainers (@hyperpod-lifecycle)
options:
  name:
    description: Unit. Without suffix, a service.
    type: str
    required: true
  files:
    description: Files that the unit reads when it starts. Missing ones are ignored.
    type: list
    elements: path
    default: []
  since:
    description: Also restart the unit if its process started before this time, in seconds since the epoch.
    type: int
    default: 0
  only:
    description: Do nothing unless the unit is C(enabled), or C(running).
    type: str
    choices: [enabled, running]
  wait:
    description: Whether to wait until the unit has started. If V(false), a unit that is starting is left unchanged.
    type: bool
    default: true
  wait_seconds:
    description: Seconds to wait for the start.
    type: int
    default: 90
"""

EXAMPLES = r"""
- name: Start slurmdbd
  hyperpod.lifecycle.unit_current:
    name: slurmdbd
    files: [/opt/slurm/etc/slurmdbd.conf]
"""

RETURN = r""" # """

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.hyperpod.lifecycle.plugins.module_utils.commands import Fault
from ansible_collections.hyperpod.lifecycle.plugins.module_utils.units import carry_out, settled, steps


def main():
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "name": {"type": "str", "required": True},
            "files": {"type": "list", "elements": "path", "default": []},
            "since": {"type": "int", "default": 0},
            "only": {"type": "str", "choices": ["enabled", "running"]},
            "wait": {"type": "bool", "default": True},
            "wait_seconds": {"type": "int", "default": 90},
        },
        supports_check_mode=True,
    )
    name = module.params["name"]
    unit = settled(name, module.params["wait_seconds"], module.params["wait"])
    if module.params["only"] == "enabled" and unit.get("UnitFileState") != "enabled":
        module.exit_json(changed=False, msg=f"{name} is not enabled")
    if module.params["only"] == "running" and unit.get("ActiveState") != "active":
        module.exit_json(changed=False, msg=f"{name} does not run")
    if unit.get("LoadState") == "not-found" and module.check_mode:
        module.exit_json(changed=True, msg=f"the unit {name} is not there yet")
    if unit.get("LoadState") != "loaded":
        module.fail_json(msg=f"systemd cannot start {name}: the unit is {unit.get('LoadState', 'unknown')}")
    todo = steps(name, unit, module.params["files"], module.params["since"], module.params["wait"])
    if not module.check_mode:
        try:
            carry_out(name, todo, module.params["wait_seconds"])
        except Fault as fault:
            module.fail_json(msg=str(fault))
    said = ", ".join(" ".join(step) for step in todo)
    module.exit_json(changed=bool(todo), msg=f"{name}: {said or 'runs'}")


if __name__ == "__main__":
    main()
