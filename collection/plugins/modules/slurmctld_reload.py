#!/usr/bin/python
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# Not a handler with ansible.builtin.command: a killed run loses it. The running slurmctld is asked for its settings,
# and the time at which it last read its files is known.
"""Apply settings and changed files to the running slurmctld."""

from __future__ import annotations

DOCUMENTATION = r"""
module: slurmctld_reload
short_description: Apply settings and changed files to the running slurmctld
description:
  - A stopped slurmctld is left unchanged, because it reads its configuration when it starts. Jobs keep running.
  - With O(block), a running slurmctld is asked for these settings. If they differ, it is told to read its
    configuration, and is restarted if that is not enough. A standby is left unchanged, because it reads its
    configuration when it takes over.
  - With O(files), it is told to read its configuration and send it to the nodes if one of the files is newer than its
    process and than the last run of this module that did so. A run that is killed in between leaves this to the next
    one.
extends_documentation_fragment:
  - hyperpod.lifecycle.attributes
author:
  - hyperpod-lifecycle maintainers (@hyperpod-lifecycle)
options:
  path:
    description: File that C(slurm.conf) includes, with O(block).
    type: path
  block:
    description: Name of the block with the settings.
    type: str
  files:
    description: Files that slurmctld must have read. Missing ones are ignored.
    type: list
    elements: path
  prefix:
    description: Directory in which Slurm is installed.
    type: path
    required: true
  stamp:
    description: File whose modification time records when any O(files) were last read.
    type: path
    default: /var/lib/hyperpod-lifecycle/slurm-sent
  wait_seconds:
    description: Seconds to wait until slurmctld answers.
    type: int
    default: 60
"""

EXAMPLES = r"""
- name: Apply settings to the running slurmctld
  hyperpod.lifecycle.slurmctld_reload:
    path: /opt/slurm/etc/accounting.conf
    block: accounting
    prefix: /opt/slurm

- name: Send plugstack.conf to the nodes
  hyperpod.lifecycle.slurmctld_reload:
    files: [/opt/slurm/etc/plugstack.conf]
    prefix: /opt/slurm
"""

RETURN = r"""
differing:
  description: Settings that differed in the running slurmctld, or files that it had not read.
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
from ansible_collections.hyperpod.lifecycle.plugins.module_utils.files import make_folder, writing
from ansible_collections.hyperpod.lifecycle.plugins.module_utils.units import changed_at, look, outdated
from ansible_collections.hyperpod.lifecycle.plugins.module_utils.waits import pause

POLL_SECONDS = 0.5
COMMAND_SECONDS = 60


def until(command, seconds):
    """Retry a command until it succeeds, and return its output."""
    deadline = time.monotonic() + seconds
    while True:
        status, out, err = run(command, COMMAND_SECONDS)
        if status == 0:
            return out
        refused = slurm.refused(command[0])
        if refused:
            raise Fault(refused)
        if time.monotonic() >= deadline:
            raise Fault(
                f"{' '.join(command)} does not succeed within {seconds} s: {err or out}; {journal('slurmctld')}"
            )
        pause(POLL_SECONDS)


def stands_by(scontrol):
    """Return whether this controller is a standby, which reads its configuration when it takes over."""
    answer, name = run([scontrol, "ping"], COMMAND_SECONDS)[1], socket.gethostname()
    if slurm.another_in_charge(answer, name):
        return True
    # A standby does not answer until its primary has run or it has taken over.
    return slurm.ping(answer, name)[0] == "backup" and run([scontrol, "show", "config"], COMMAND_SECONDS)[0] != 0


def reload_settings(params, scontrol, check_mode):
    """Apply the settings of the block. Return those that differed in slurmctld."""
    if stands_by(scontrol):
        return []
    seconds, path = params["wait_seconds"], Path(params["path"])
    text = path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""
    settings = accounting.block_settings(text, params["block"])
    differing = accounting.differing(settings, until([scontrol, "show", "config"], seconds))
    if differing and not check_mode:
        # This also sends the files to the nodes. The next run repeats it if this one is killed before it succeeds.
        until([scontrol, "reconfigure"], seconds)
        if accounting.differing(settings, until([scontrol, "show", "config"], seconds)):
            # Older versions apply a new accounting storage only when they start.
            status, _out, err = run(["systemctl", "restart", "slurmctld"], 90)
            if status:
                raise Fault(f"slurmctld does not restart: {err}; {journal('slurmctld')}")
        left = accounting.differing(settings, until([scontrol, "show", "config"], seconds))
        if left:
            raise Fault(f"slurmctld has been restarted and still has another {', '.join(left)}")
    return differing


def reload_files(params, scontrol, unit, check_mode):
    """Make slurmctld read the files. Return those that it had not read."""
    stamp = Path(params["stamp"])
    last = stamp.stat().st_mtime if stamp.exists() else 0
    young = [file for file in params["files"] if os.path.exists(file) and changed_at(file) > last]
    if not outdated(unit, young):
        return []
    if not check_mode:
        begin = time.time()
        until([scontrol, "reconfigure"], params["wait_seconds"])
        make_folder(stamp.parent)
        with writing(stamp):
            stamp.touch()
            # Files written while slurmctld was reading are left to the next run.
            os.utime(stamp, (begin, begin))
    return young


def main():
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "path": {"type": "path"},
            "block": {"type": "str"},
            "files": {"type": "list", "elements": "path"},
            "prefix": {"type": "path", "required": True},
            "stamp": {"type": "path", "default": "/var/lib/hyperpod-lifecycle/slurm-sent"},
            "wait_seconds": {"type": "int", "default": 60},
        },
        required_together=[("path", "block")],
        required_one_of=[("block", "files")],
        mutually_exclusive=[("block", "files")],
        supports_check_mode=True,
    )
    unit, params = look("slurmctld"), module.params
    if unit.get("ActiveState") != "active":
        module.exit_json(changed=False, differing=[], msg="slurmctld does not run")
    scontrol = os.path.join(params["prefix"], "bin", "scontrol")
    try:
        if params["files"] is None:
            differing = reload_settings(params, scontrol, module.check_mode)
        else:
            differing = reload_files(params, scontrol, unit, module.check_mode)
    except Fault as fault:
        module.fail_json(msg=str(fault))
    said = f"slurmctld has an older {', '.join(differing)}" if differing else "slurmctld has them all"
    module.exit_json(changed=bool(differing), differing=differing, msg=said)


if __name__ == "__main__":
    main()
