#!/usr/bin/python
# SPDX-License-Identifier: GPL-3.0-or-later
"""Let a running slurmctld send its files to the nodes."""

from __future__ import annotations

DOCUMENTATION = r"""
module: slurmctld_send
short_description: Let a running slurmctld read files that have changed, and send them to the nodes
description:
  - C(scontrol reconfigure) if one of O(files) is younger than slurmctld's process and than the last time that this
    module has done it. So a run that is killed in between leaves it to the next one. Jobs go on meanwhile.
  - A slurmctld that does not run is left alone; it reads its files when it starts.
author: hyperpod-lifecycle maintainers
options:
  files:
    description: The files. Those that are missing do not count.
    type: list
    elements: path
    required: true
  prefix:
    description: Where Slurm is.
    type: path
    required: true
  stamp:
    description: A file whose age says when this was last done, for whatever file.
    type: path
    default: /var/lib/hyperpod-lifecycle/slurm-sent
  wait_seconds:
    description: How long to try.
    type: int
    default: 60
attributes:
  check_mode:
    support: full
"""

EXAMPLES = r"""
- name: Send plugstack.conf to the nodes
  hyperpod.lifecycle.slurmctld_send:
    files: [/opt/slurm/etc/plugstack.conf]
    prefix: /opt/slurm
"""

RETURN = r""" # """

import os
import time
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.hyperpod.lifecycle.plugins.module_utils.commands import Fault, journal, run
from ansible_collections.hyperpod.lifecycle.plugins.module_utils.files import make_folder, writing
from ansible_collections.hyperpod.lifecycle.plugins.module_utils.units import changed_at, look, outdated
from ansible_collections.hyperpod.lifecycle.plugins.module_utils.waits import pause

POLL_SECONDS = 1


def main():
    """Entry point."""
    module = AnsibleModule(
        argument_spec={
            "files": {"type": "list", "elements": "path", "required": True},
            "prefix": {"type": "path", "required": True},
            "stamp": {"type": "path", "default": "/var/lib/hyperpod-lifecycle/slurm-sent"},
            "wait_seconds": {"type": "int", "default": 60},
        },
        supports_check_mode=True,
    )
    unit, stamp = look("slurmctld"), Path(module.params["stamp"])
    if unit.get("ActiveState") != "active":
        module.exit_json(changed=False, msg="slurmctld does not run")
    last = stamp.stat().st_mtime if stamp.exists() else 0
    young = [file for file in module.params["files"] if os.path.exists(file) and changed_at(file) > last]
    if not outdated(unit, young):
        module.exit_json(changed=False, msg="slurmctld has them")
    begin = time.time()
    deadline = time.monotonic() + module.params["wait_seconds"]
    while not module.check_mode:
        status, out, err = run([os.path.join(module.params["prefix"], "bin/scontrol"), "reconfigure"], 60)
        if status == 0:
            break
        if time.monotonic() >= deadline:
            module.fail_json(msg=f"scontrol reconfigure: {err or out}; {journal('slurmctld')}")
        pause(POLL_SECONDS)
    if not module.check_mode:
        try:
            make_folder(stamp.parent)
            with writing(stamp):
                stamp.touch()
                # What was written while slurmctld read is for the next time.
                os.utime(stamp, (begin, begin))
        except Fault as fault:
            module.fail_json(msg=str(fault))
    module.exit_json(changed=True, msg=f"{', '.join(young)}: read and sent")


if __name__ == "__main__":
    main()
