#!/usr/bin/python
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# Not ansible.builtin.wait_for: the agent's file is complete when it names all controllers.
"""Wait until the agent's slurm.conf names this cluster's controllers, and read it."""

from __future__ import annotations

DOCUMENTATION = r"""
module: slurm_conf_wait
short_description: Wait for the agent's slurm.conf and read the parameters that the agent manages
description:
  - The HyperPod agent writes C(slurm.conf). Slurm must not start until it names the controllers of this cluster.
  - Addresses are compared as a whole, so C(10.0.0.1) does not match C(10.0.0.10).
extends_documentation_fragment:
  - hyperpod.lifecycle.attributes
author:
  - hyperpod-lifecycle maintainers (@hyperpod-lifecycle)
options:
  path:
    description: C(slurm.conf) to read.
    type: path
    required: true
  controllers:
    description: Addresses that the C(SlurmctldHost) lines must name. If empty, a missing file is not an error.
    type: list
    elements: str
    required: true
  wait_seconds:
    description: Seconds to wait for the addresses or, with O(address), for a fetched configuration.
    type: int
    default: 0
  address:
    description:
      - Address of a node that fetches its configuration. The module then finds its NodeName by C(NodeAddr) in what
        C(slurmd) or C(sackd) has fetched, and does nothing else.
    type: str
    default: ""
"""

EXAMPLES = r"""
- name: Wait for the agent's slurm.conf
  hyperpod.lifecycle.slurm_conf_wait:
    path: /opt/slurm/etc/slurm.conf
    controllers: [10.20.0.5]
    wait_seconds: 300
"""

RETURN = r"""
managed:
  description:
    - Values of every parameter that the agent manages, in the order of the file.
  type: dict
  returned: success
controllers:
  description: Names and addresses of the C(SlurmctldHost) lines.
  type: list
  elements: str
  returned: success
ports:
  description:
    - Ports of C(slurmctld) and C(slurmdbd) as set in C(slurm.conf), the files that it includes and C(slurmdbd.conf),
      else Slurm's defaults.
  type: dict
  returned: success
node_name:
  description: NodeName with O(address). Empty if there is none.
  type: str
  returned: if O(address) is not empty
hosts:
  description: The C(SlurmctldHost) lines, each with C(name) and C(address).
  type: list
  elements: dict
  returned: success
"""

import time
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.hyperpod.lifecycle.plugins.module_utils import accounting, configless, slurm

POLL_SECONDS = 0.25


def read(path):
    """Return the text of `path`; empty if it does not exist."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return ""


def poll(look, enough, seconds):
    """Return what `look` finds as soon as it is enough, or at the end of the time."""
    deadline = time.monotonic() + seconds
    while not enough(found := look()) and time.monotonic() < deadline:
        time.sleep(POLL_SECONDS)
    return found


def shortcoming(path, wanted):
    """Return the text of `path`, and what it lacks; empty if nothing."""
    if not path.exists():
        return "", "it does not exist" if wanted else ""
    text = read(path)
    named = slurm.controllers(text)
    missing = [address for address in wanted if address not in named]
    if not missing:
        return text, ""
    return text, "its SlurmctldHost names {}, not {}".format(", ".join(named) or "nothing", ", ".join(missing))


def main():
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "path": {"type": "path", "required": True},
            "controllers": {"type": "list", "elements": "str", "required": True},
            "wait_seconds": {"type": "int", "default": 0},
            "address": {"type": "str", "default": ""},
        },
        supports_check_mode=True,
    )
    path, address, controllers = (module.params[name] for name in ("path", "address", "controllers"))
    limit = 0 if module.check_mode else module.params["wait_seconds"]
    if address:
        poll(lambda: configless.on_disk(controllers), bool, limit)
        module.exit_json(node_name=configless.registered(address, controllers))
    path = Path(path)
    text, missing = poll(lambda: shortcoming(path, controllers), lambda found: not found[1], limit)
    ports = slurm.ports(accounting.all_parameters(path, "accounting"), read(path.with_name("slurmdbd.conf")))
    if missing and module.check_mode:
        module.exit_json(
            managed={}, controllers=[], hosts=[], ports=ports, msg=f"{path}: {missing}; a real run waits for the agent"
        )
    if missing:
        module.fail_json(
            msg=f"{path} is not this cluster's after {limit} s: {missing}; the agent writes it, "
            "see /var/log/aws/clusters and compare with resource_config.json"
        )
    hosts = [{"name": name, "address": address} for name, address in slurm.controller_hosts(text)]
    module.exit_json(managed=slurm.managed(text), controllers=slurm.controllers(text), hosts=hosts, ports=ports)


if __name__ == "__main__":
    main()
