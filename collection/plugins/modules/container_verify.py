#!/usr/bin/python
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# No builtin: an image without a registry, containers as several users, and cleanup after killed runs would be a dozen
# tasks on each run.
"""Verify that a container engine works by running a container."""

from __future__ import annotations

DOCUMENTATION = r"""
module: container_verify
short_description: Verify that Docker, Enroot or Pyxis works for root and unprivileged users
description:
  - Docker and Enroot run a container. Its image consists of this node's own C(cat) and C(sh) and their libraries, so
    that it needs no registry. Image and container are removed afterwards, including those of killed runs.
  - Pyxis must be loaded by the installed Slurm. On a node that has the cluster's configuration, C(srun --help) must
    also show its options. If the controller does not include the plugin yet, RV(note) reports it.
  - The node is not changed.
extends_documentation_fragment:
  - hyperpod.lifecycle.attributes
author:
  - hyperpod-lifecycle maintainers (@hyperpod-lifecycle)
options:
  engine:
    description: Engine to verify.
    type: str
    choices: [docker, enroot, pyxis]
    required: true
  users:
    description: Unprivileged users for whom it must work too.
    type: list
    elements: str
    default: []
  plugin:
    description: Path of Pyxis' plugin.
    type: path
  prefix:
    description: Directory in which Slurm is installed.
    type: path
  slurm_conf:
    description: C(slurm.conf) of a controller. Empty on other nodes, which fetch it.
    type: str
    default: ""
  fetched:
    description: Directory of the fetched configuration on other nodes.
    type: path
    default: /run/slurm/conf/slurm.conf
attributes:
  check_mode:
    support: none
"""

EXAMPLES = r"""
- name: Verify Docker
  hyperpod.lifecycle.container_verify:
    engine: docker
    users: [ubuntu]

- name: Verify Pyxis
  hyperpod.lifecycle.container_verify:
    engine: pyxis
    users: [ubuntu]
    plugin: /usr/local/lib/slurm/spank_pyxis.so
    prefix: /opt/slurm
"""

RETURN = r"""
note:
  description: Note for the summary. Empty if there is none.
  type: str
  returned: success
"""

import os

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.hyperpod.lifecycle.plugins.module_utils import proof, pyxis
from ansible_collections.hyperpod.lifecycle.plugins.module_utils.commands import Fault


def prove_pyxis(params, users):
    """A note; Fault if Slurm does not load the plugin, or if srun on a controller lacks its options."""
    said = pyxis.loads(params["plugin"], params["prefix"])
    if said:
        raise Fault(f"the Slurm in use does not load {params['plugin']}: {said}")
    note = ""
    for user in users:
        if not os.path.exists(params["slurm_conf"] or params["fetched"]):
            break
        said = pyxis.missing_option(proof.as_user(user, f"{params['prefix']}/bin/srun", "--help"))
        if said and params["slurm_conf"]:
            raise Fault(f"srun does not have Pyxis' options for {user}: {said}")
        if said:
            note = (
                "the controller does not name Pyxis to this node yet; on the controller: "
                "hyperpod-lifecycle apply --tags containers"
            )
    return note


def main():
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "engine": {"type": "str", "choices": ["docker", "enroot", "pyxis"], "required": True},
            "users": {"type": "list", "elements": "str", "default": []},
            "plugin": {"type": "path"},
            "prefix": {"type": "path"},
            "slurm_conf": {"type": "str", "default": ""},
            "fetched": {"type": "path", "default": "/run/slurm/conf/slurm.conf"},
        },
        required_if=[("engine", "pyxis", ("plugin", "prefix"))],
    )
    engine, users, note = module.params["engine"], ["root", *module.params["users"]], ""
    try:
        if engine == "docker":
            proof.prove_docker(users)
        elif engine == "enroot":
            proof.prove_enroot(users)
        else:
            note = prove_pyxis(module.params, users)
    except Fault as fault:
        module.fail_json(msg=str(fault))
    module.exit_json(changed=False, note=note, msg=note or f"{engine} works for {', '.join(users)}")


if __name__ == "__main__":
    main()
