#!/usr/bin/python
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# No builtin: slurm.conf is read as Slurm does, with its includes, and existing hooks decide.
"""Find out which of Slurm's hooks can be added to existing ones."""

from __future__ import annotations

DOCUMENTATION = r"""
module: slurm_hooks_find
short_description: Find the Slurm settings for metrics
description:
  - Reads C(slurm.conf) with the files that it includes, and Slurm's version, and returns the settings to add. Changes
    nothing.
  - One script serves as prolog, epilog and task prolog. slurmctld sends it to the nodes with the configuration, so that
    no node lacks it, which would fail its jobs. This, and more than one prolog, require Slurm 24.05.
  - An existing prolog is kept, and so is an existing task prolog, of which Slurm supports only one.
extends_documentation_fragment:
  - hyperpod.lifecycle.attributes
author:
  - hyperpod-lifecycle maintainers (@hyperpod-lifecycle)
options:
  slurm_conf:
    description: File to read.
    type: path
    required: true
  block:
    description: Name of this role's block in included files, which is ignored.
    type: str
    required: true
  prefix:
    description: Directory in which Slurm is installed.
    type: path
    required: true
  script:
    description: Name of the script, in the directory of O(slurm_conf).
    type: str
    required: true
  job_dir:
    description: Directory of the files that map GPUs to jobs.
    type: path
    required: true
  jobs:
    description: Whether to write these files.
    type: bool
    required: true
  tasks:
    description: Whether to set the environment of tasks.
    type: bool
    required: true
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
  description: Settings to add.
  type: dict
  returned: success
native:
  description: Whether slurmctld serves metrics itself.
  type: bool
  returned: success
version:
  description: Version of Slurm.
  type: str
  returned: success
port:
  description: Port of slurmctld.
  type: int
  returned: success
notes:
  description: Unavailable settings, with reasons.
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
