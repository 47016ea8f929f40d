#!/usr/bin/python
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# Not ansible.builtin.systemd_service: systemctl refuses to mask a unit in /etc/systemd/system, where the image has
# Slurm's.
"""Mask systemd units, including those whose file is in /etc."""

from __future__ import annotations

DOCUMENTATION = r"""
module: unit_mask
short_description: Mask or unmask systemd services
description:
  - C(systemctl mask) refuses a unit whose file is in C(/etc/systemd/system), where the HyperPod image has Slurm's.
    This module first moves such a file to C(/usr/local/lib/systemd/system), which systemd reads with lower priority,
    so that C(systemctl unmask) restores the unit.
  - A running unit that is masked is stopped.
extends_documentation_fragment:
  - hyperpod.lifecycle.attributes.files
author:
  - hyperpod-lifecycle maintainers (@hyperpod-lifecycle)
options:
  name:
    description: Services, without suffix. Services that do not exist are masked too.
    type: list
    elements: str
    required: true
  masked:
    description: Whether to mask or to unmask.
    type: bool
    default: true
"""

EXAMPLES = r"""
- name: Mask slurmd on the controller
  hyperpod.lifecycle.unit_mask:
    name: [slurmd]
"""

RETURN = r""" # """

import os
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule

ADMINISTRATOR = Path("/etc/systemd/system")
LOCAL = Path("/usr/local/lib/systemd/system")
RUNTIME = Path("/run/systemd/system")  # `systemctl mask --runtime`


def is_masked(unit):
    """Return whether a unit file is a symbolic link to /dev/null."""
    return unit.is_symlink() and os.readlink(unit) == os.devnull


def mask(unit):
    """Save the unit file, then replace it with the symbolic link."""
    if unit.is_file():  # also through a link, as `systemctl link` makes it; /dev/null is none
        LOCAL.mkdir(parents=True, exist_ok=True)
        # Copied, then replaced, so that a run that is killed in between loses nothing.
        kept = LOCAL / unit.name
        kept.write_bytes(unit.read_bytes())
        kept.chmod(0o644)
    link = unit.with_name(unit.name + ".masked")
    link.unlink(missing_ok=True)
    link.symlink_to(os.devnull)
    link.replace(unit)


def main():
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "name": {"type": "list", "elements": "str", "required": True},
            "masked": {"type": "bool", "default": True},
        },
        supports_check_mode=True,
    )
    wanted = module.params["masked"]
    services = [name + ".service" for name in module.params["name"]]
    folders = (ADMINISTRATOR,) if wanted else (ADMINISTRATOR, RUNTIME)
    wrong = [service for service in services if any(is_masked(each / service) != wanted for each in folders)]
    running = []
    if wanted:
        # One call for all. A missing unit is inactive.
        _status, states, _err = module.run_command(["systemctl", "is-active", *services])
        pairs = zip(services, states.split(), strict=True)
        running = [service for service, state in pairs if state not in ("inactive", "failed")]
    if not module.check_mode:
        for service in wrong:
            if wanted:
                mask(ADMINISTRATOR / service)
            else:
                for unit in (each / service for each in folders if is_masked(each / service)):
                    unit.unlink()
        if wrong:
            module.run_command(["systemctl", "daemon-reload"], check_rc=True)
        if running:
            module.run_command(["systemctl", "stop", *running], check_rc=True)
    state = "masked" if wanted else "unmasked"
    module.exit_json(
        changed=bool(wrong or running),
        diff={
            "before": "".join(f"{service} not {state}\n" for service in wrong)
            + "".join(f"{service} running\n" for service in running),
            "after": "".join(f"{service} {state}\n" for service in wrong)
            + "".join(f"{service} stopped\n" for service in running),
        },
    )


if __name__ == "__main__":
    main()
