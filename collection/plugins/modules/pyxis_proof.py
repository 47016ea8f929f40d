#!/usr/bin/python
# SPDX-License-Identifier: GPL-3.0-or-later
"""See whether srun has Pyxis' options."""

from __future__ import annotations

DOCUMENTATION = r"""
module: pyxis_proof
short_description: See whether srun has Pyxis' options, for root and for an ordinary user
description:
  - The Slurm in use must load the plugin. Where this node has the cluster's configuration, C(srun --help) must name the
    options as well. On a node that gets it from the controller, and whose controller does not name the plugin yet,
    RV(note) says so.
author: hyperpod-lifecycle maintainers
options:
  plugin:
    description: The plugin.
    type: path
    required: true
  prefix:
    description: Where Slurm is.
    type: path
    required: true
  slurm_conf:
    description: The C(slurm.conf) of a controller, or empty on a node that gets it from one.
    type: str
    required: true
  fetched:
    description: Where other nodes have what they have got.
    type: path
    default: /run/slurm/conf/slurm.conf
  user:
    description: An ordinary user.
    type: str
    required: true
attributes:
  check_mode:
    support: none
"""

EXAMPLES = r"""
- name: Does srun have the options?
  hyperpod.lifecycle.pyxis_proof:
    plugin: /usr/local/lib/slurm/spank_pyxis.so
    prefix: /opt/slurm
    slurm_conf: ""
    user: ubuntu
"""

RETURN = r"""
note:
  description: What there is to say in the summary; empty if there is nothing.
  type: str
  returned: success
"""

import os

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.hyperpod.lifecycle.plugins.module_utils import proof, pyxis


def main():
    """Entry point."""
    module = AnsibleModule(
        argument_spec={
            "plugin": {"type": "path", "required": True},
            "prefix": {"type": "path", "required": True},
            "slurm_conf": {"type": "str", "required": True},
            "fetched": {"type": "path", "default": "/run/slurm/conf/slurm.conf"},
            "user": {"type": "str", "required": True},
        }
    )
    params, note = module.params, ""
    said = pyxis.loads(params["plugin"], params["prefix"])
    if said:
        module.fail_json(msg=f"the Slurm in use does not load {params['plugin']}: {said}")
    for user in ("root", params["user"]):
        if not os.path.exists(params["slurm_conf"] or params["fetched"]):
            break
        said = pyxis.missing_option(proof.as_user(user, f"{params['prefix']}/bin/srun", "--help"))
        if said and params["slurm_conf"]:
            module.fail_json(msg=f"srun does not have Pyxis' options for {user}: {said}")
        if said:
            note = (
                "the controller does not name Pyxis to this node yet; on the controller: "
                "hyperpod-lifecycle apply --tags containers"
            )
    module.exit_json(changed=False, note=note, msg=note or "srun has Pyxis' options")


if __name__ == "__main__":
    main()
