#!/usr/bin/python
# SPDX-License-Identifier: GPL-3.0-or-later
"""Let a running slurmctld have settings that it lacks."""

from __future__ import annotations

DOCUMENTATION = r"""
module: slurmctld_reload
short_description: Let a running slurmctld have the settings of a block
description:
  - A slurmctld that does not run is left alone; it reads its files when it starts. So is one that stands by for another
    controller, which is seen to there; it reads its files when it takes over.
  - One that runs is asked what it has. If that differs it is told to read its files and to send them to the nodes, and
    is restarted if that was not enough. Jobs go on meanwhile.
author: hyperpod-lifecycle maintainers
options:
  path:
    description: The file that C(slurm.conf) includes.
    type: path
    required: true
  block:
    description: Whose settings in it.
    type: str
    required: true
  prefix:
    description: Where Slurm is installed.
    type: path
    required: true
  wait_seconds:
    description: How long to wait until slurmctld answers again.
    type: int
    default: 60
attributes:
  check_mode:
    support: full
"""

EXAMPLES = r"""
- name: Let a running slurmctld have them
  hyperpod.lifecycle.slurmctld_reload:
    path: /opt/slurm/etc/accounting.conf
    block: accounting
    prefix: /opt/slurm
"""

RETURN = r"""
differing:
  description: What slurmctld did not have.
  type: list
  elements: str
  returned: success
"""

import os
import socket
import time
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.hyperpod.lifecycle.plugins.module_utils import accounting, slurm
from ansible_collections.hyperpod.lifecycle.plugins.module_utils.commands import Fault, journal, run
from ansible_collections.hyperpod.lifecycle.plugins.module_utils.waits import pause

POLL_SECONDS = 0.5
COMMAND_SECONDS = 60


def until(command, seconds):
    """Output of the first success."""
    deadline = time.monotonic() + seconds
    while True:
        status, out, err = run(command, COMMAND_SECONDS)
        if status == 0:
            return out
        if time.monotonic() >= deadline:
            raise Fault(
                f"{' '.join(command)} does not succeed within {seconds} s: {err or out}; {journal('slurmctld')}"
            )
        pause(POLL_SECONDS)


def stands_by(scontrol):
    """Is this a controller that reads its files when it takes over?"""
    answer, name = run([scontrol, "ping"], COMMAND_SECONDS)[1], socket.gethostname()
    if slurm.another_in_charge(answer, name):
        return True
    # Before its primary has ever run, and until it has taken over from it, a standby tells nobody anything.
    return slurm.ping(answer, name)[0] == "backup" and run([scontrol, "show", "config"], COMMAND_SECONDS)[0] != 0


def main():
    """Entry point."""
    module = AnsibleModule(
        argument_spec={
            "path": {"type": "path", "required": True},
            "block": {"type": "str", "required": True},
            "prefix": {"type": "path", "required": True},
            "wait_seconds": {"type": "int", "default": 60},
        },
        supports_check_mode=True,
    )
    if run(["systemctl", "is-active", "--quiet", "slurmctld"], COMMAND_SECONDS)[0] != 0:
        module.exit_json(changed=False, differing=[], msg="slurmctld does not run")
    scontrol = os.path.join(module.params["prefix"], "bin", "scontrol")
    if stands_by(scontrol):
        module.exit_json(changed=False, differing=[], msg="this controller stands by")
    seconds, path = module.params["wait_seconds"], Path(module.params["path"])
    text = path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""
    settings = accounting.block_settings(text, module.params["block"])
    try:
        differing = accounting.differing(settings, until([scontrol, "show", "config"], seconds))
        if differing and not module.check_mode:
            # Nodes get the files with this. A run that is killed before slurmctld has the settings does it again.
            until([scontrol, "reconfigure"], seconds)
            if accounting.differing(settings, until([scontrol, "show", "config"], seconds)):
                # Older ones take a new accounting storage over only when they start.
                status, _out, err = run(["systemctl", "restart", "slurmctld"], 90)
                if status:
                    raise Fault(f"slurmctld does not start again: {err}; {journal('slurmctld')}")
            left = accounting.differing(settings, until([scontrol, "show", "config"], seconds))
            if left:
                raise Fault(f"slurmctld has been started anew and still has another {', '.join(left)}")
    except Fault as fault:
        module.fail_json(msg=str(fault))
    said = f"slurmctld has another {', '.join(differing)}" if differing else "slurmctld has them all"
    module.exit_json(changed=bool(differing), differing=differing, msg=said)


if __name__ == "__main__":
    main()
