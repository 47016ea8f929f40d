#!/usr/bin/python
# SPDX-License-Identifier: GPL-3.0-or-later
# No builtin: slurm.conf is read as Slurm does, with what it includes, and hooks that are there decide.
"""Which of Slurm's hooks can be had beside those that are there."""

from __future__ import annotations

DOCUMENTATION = r"""
module: slurm_hooks_find
short_description: Decide on Slurm's settings for metrics
description:
  - Reads C(slurm.conf) with what it includes, and Slurm's version, and says which settings are to be added. Changes
    nothing.
  - One script is prolog, epilog and task prolog. slurmctld sends it to the nodes together with the configuration, so
    there is no node that lacks it, whose jobs would fail. That and more than one prolog need Slurm 24.05.
  - A prolog that is there stays, and a task prolog that is there too; of those Slurm can have only one.
author: hyperpod-lifecycle maintainers
options:
  slurm_conf:
    description: The file.
    type: path
    required: true
  block:
    description: The name of our own block in included files, which does not count.
    type: str
    required: true
  prefix:
    description: Where Slurm is installed.
    type: path
    required: true
  script:
    description: The script, beside O(slurm_conf).
    type: str
    required: true
  job_dir:
    description: The folder of files that say which jobs have which GPU.
    type: path
    required: true
  jobs:
    description: Whether such files are to be written.
    type: bool
    required: true
  tasks:
    description: Whether the environment of tasks is to be set.
    type: bool
    required: true
attributes:
  check_mode:
    support: full
"""

EXAMPLES = r"""
- name: Find available hooks
  hyperpod.lifecycle.slurm_hooks_find:
    slurm_conf: /opt/slurm/etc/slurm.conf
    block: observability
    prefix: /opt/slurm
    script: hyperpod-metrics.sh
    job_dir: /run/slurm/dcgm-job-mapping
    jobs: true
    tasks: false
"""

RETURN = r"""
settings:
  description: What is to be added.
  type: dict
  returned: success
native:
  description: Whether slurmctld gives metrics by itself.
  type: bool
  returned: success
version:
  description: Slurm's version.
  type: str
  returned: success
port:
  description: slurmctld's port.
  type: int
  returned: success
notes:
  description: What cannot be had, and why.
  type: list
  elements: str
  returned: success
"""

import os

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.hyperpod.lifecycle.plugins.module_utils import accounting, hooks, slurm
from ansible_collections.hyperpod.lifecycle.plugins.module_utils.commands import run


def main():
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "slurm_conf": {"type": "path", "required": True},
            "block": {"type": "str", "required": True},
            "prefix": {"type": "path", "required": True},
            "script": {"type": "str", "required": True},
            "job_dir": {"type": "path", "required": True},
            "jobs": {"type": "bool", "required": True},
            "tasks": {"type": "bool", "required": True},
        },
        supports_check_mode=True,
    )
    params = module.params
    status, out, err = run([os.path.join(params["prefix"], "bin", "scontrol"), "--version"], 30)
    there = accounting.all_parameters(params["slurm_conf"], params["block"])
    port = slurm.ports(there)["slurmctld"]
    if status:
        if module.check_mode:
            module.exit_json(changed=False, settings={}, native=False, version="", port=port, notes=[])
        module.fail_json(msg=f"scontrol --version: {err or out}")
    found = hooks.decide(
        hooks.version(out), there, params["script"], params["job_dir"], jobs=params["jobs"], tasks=params["tasks"]
    )
    module.exit_json(changed=False, version=out.split()[-1], port=port, **found)


if __name__ == "__main__":
    main()
