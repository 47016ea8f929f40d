#!/usr/bin/python
# SPDX-License-Identifier: GPL-3.0-or-later
"""Start a container, to see whether Enroot can."""

from __future__ import annotations

DOCUMENTATION = r"""
module: enroot_proof
short_description: Start a container with Enroot as root and as an ordinary user
description:
  - The image is made of this node's own C(cat) and C(sh) and their libraries, so that it needs no registry. It and the
    container are removed again, so that this is no change.
author: hyperpod-lifecycle maintainers
options:
  user:
    description: An ordinary user who must be able to do it as well.
    type: str
    required: true
attributes:
  check_mode:
    support: none
"""

EXAMPLES = r"""
- name: Does Enroot start containers?
  hyperpod.lifecycle.enroot_proof:
    user: ubuntu
"""

RETURN = r""" # """

import os

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.hyperpod.lifecycle.plugins.module_utils import leftovers, proof
from ansible_collections.hyperpod.lifecycle.plugins.module_utils.commands import Fault, run

SECONDS = 120


def remove_left(user):
    """Remove containers of this user that killed runs have left."""
    _status, out, _err = run(proof.as_user(user, "enroot", "list"), SECONDS)
    for name in out.split():
        if leftovers.is_left(name, "proof"):
            run(proof.as_user(user, "enroot", "remove", "--force", name), SECONDS)


def start(user, image, name, text):
    """Fault unless this user can start it."""
    remove_left(user)
    try:
        status, out, err = run(proof.as_user(user, "enroot", "create", "--name", name, image), SECONDS)
        if status:
            raise Fault(f"enroot create as {user} ends with {status}: {err or out}")
        words = ("enroot", "start", name, proof.PROGRAM, proof.MARK)
        status, out, err = run(proof.as_user(user, *words), SECONDS)
        if status or out != text:
            raise Fault(f"enroot start as {user} ends with {status}: {err or out}")
    finally:
        run(proof.as_user(user, "enroot", "remove", "--force", name), SECONDS)


def main():
    """Entry point."""
    module = AnsibleModule(argument_spec={"user": {"type": "str", "required": True}})
    name, text = leftovers.own_name("proof"), f"proof {os.getpid()}"
    try:
        with leftovers.own_folder("proof") as folder:
            os.chmod(folder, 0o755)  # noqa: S103 the user reads it
            image = proof.squashed(text, folder)
            for user in ("root", module.params["user"]):
                start(user, image, name, text)
    except Fault as fault:
        module.fail_json(msg=f"Enroot does not start a container: {fault}")
    module.exit_json(changed=False, msg="Enroot starts containers")


if __name__ == "__main__":
    main()
