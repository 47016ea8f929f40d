#!/usr/bin/python
# SPDX-License-Identifier: GPL-3.0-or-later
# Not ansible.builtin.systemd_service: it cannot tell that a unit runs with older settings, and a handler that would is
# forgotten when a run is killed.
"""A daemon that runs with its present settings."""

from __future__ import annotations

DOCUMENTATION = r"""
module: unit_current
short_description: Start a unit, or restart it if it has older settings
description:
  - Enables and starts a unit. It is restarted if one of O(files) is younger than its process.
  - A notified handler is forgotten when a run is killed; the age of a process is not.
  - When it does not start, the message has the last lines of its journal.
author: hyperpod-lifecycle maintainers
options:
  name:
    description: The unit; without suffix it is a service.
    type: str
    required: true
  files:
    description: What it reads when it starts. Those that are missing do not count.
    type: list
    elements: path
    default: []
  since:
    description: It is restarted as well if its process began before this time, in seconds since the epoch.
    type: int
    default: 0
  only:
    description: Leave a unit alone that is not C(enabled), or is not C(running).
    type: str
    choices: [enabled, running]
  wait:
    description: Whether to wait until it has started. One that does not wait may be starting still, and is left to it.
    type: bool
    default: true
  wait_seconds:
    description: How long the start may take.
    type: int
    default: 90
attributes:
  check_mode:
    support: full
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
