#!/usr/bin/python
# SPDX-License-Identifier: GPL-3.0-or-later
"""A parameter for a file of Slurm's that does not have it."""

from __future__ import annotations

DOCUMENTATION = r"""
module: slurm_parameter
short_description: Give a configuration file of Slurm's a parameter that it lacks
description:
  - A parameter that the file has stays as it is, whatever its value, and so does everything else.
author: hyperpod-lifecycle maintainers
options:
  path:
    description: The file; it is made if it is missing.
    type: path
    required: true
  name:
    description: The parameter.
    type: str
    required: true
  value:
    description: Its value.
    type: str
    required: true
attributes:
  check_mode:
    support: full
  diff_mode:
    support: full
"""

EXAMPLES = r"""
- name: Constrain devices
  hyperpod.lifecycle.slurm_parameter:
    path: /opt/slurm/etc/cgroup.conf
    name: ConstrainDevices
    value: "yes"
"""

RETURN = r""" # """

import os

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.hyperpod.lifecycle.plugins.module_utils.files import difference, replace
from ansible_collections.hyperpod.lifecycle.plugins.module_utils.slurm import with_parameter


def main():
    """Entry point."""
    module = AnsibleModule(
        argument_spec={
            "path": {"type": "path", "required": True},
            "name": {"type": "str", "required": True},
            "value": {"type": "str", "required": True},
        },
        supports_check_mode=True,
    )
    path, before = module.params["path"], ""
    there = os.path.exists(path)
    if there:
        with open(path, encoding="utf-8", errors="surrogateescape") as file:
            before = file.read()
    after = with_parameter(before, module.params["name"], module.params["value"])
    changed = replace(module, path, before, after, None if there else 0o644)
    module.exit_json(changed=changed, diff=difference(path, before, after))


if __name__ == "__main__":
    main()
