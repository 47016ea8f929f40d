#!/usr/bin/python
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run a container, to see whether Docker can."""

from __future__ import annotations

DOCUMENTATION = r"""
module: docker_proof
short_description: Run a container with Docker as root and as an ordinary user
description:
  - The image is made of this node's own C(cat) and its libraries, so that it needs no registry; it is removed again.
  - Nothing of the node changes, so that this is no change.
author: hyperpod-lifecycle maintainers
options:
  users:
    description: Ordinary users who must be able to do it as well.
    type: list
    elements: str
    default: []
attributes:
  check_mode:
    support: none
"""

EXAMPLES = r"""
- name: Does Docker run containers?
  hyperpod.lifecycle.docker_proof:
    users: [ubuntu]
"""

RETURN = r""" # """

import os

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.hyperpod.lifecycle.plugins.module_utils import leftovers, proof
from ansible_collections.hyperpod.lifecycle.plugins.module_utils.commands import Fault, run

SECONDS = 120


def remove(image):
    """Remove an image, and what a killed run has made of it."""
    _status, out, _err = run(["docker", "ps", "--all", "--quiet", f"--filter=ancestor={image}"], SECONDS)
    if out.split():
        run(["docker", "rm", "--force", *out.split()], SECONDS)
    run(["docker", "rmi", "--force", image], SECONDS)


def remove_left():
    """Remove images and containers that killed runs have left."""
    _status, out, _err = run(["docker", "images", "--format={{.Repository}}"], SECONDS)
    for image in set(out.split()):
        if leftovers.is_left(image, "proof"):
            remove(image)


def main():
    """Entry point."""
    module = AnsibleModule(argument_spec={"users": {"type": "list", "elements": "str", "default": []}})
    image = leftovers.own_name("proof")
    text = f"proof {os.getpid()}"
    try:
        remove_left()
        status, _out, err = run(["docker", "import", "-", image], SECONDS, proof.archive(text))
        if status:
            raise Fault(f"docker import: {err}")
        for user in ["root", *module.params["users"]]:
            command = ["docker", "run", "--rm", "--pull=never", "--network=none", image, proof.PROGRAM, proof.MARK]
            status, out, err = run(proof.as_user(user, *command), SECONDS)
            if status or out != text:
                raise Fault(f"docker run as {user} ends with {status}: {err or out}")
    except Fault as fault:
        module.fail_json(msg=f"Docker does not run a container: {fault}")
    finally:
        remove(image)
    module.exit_json(changed=False, msg="Docker runs containers")


if __name__ == "__main__":
    main()
