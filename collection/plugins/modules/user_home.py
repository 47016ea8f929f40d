#!/usr/bin/python
# SPDX-License-Identifier: GPL-3.0-or-later
"""Put users' homes on shared storage."""

from __future__ import annotations

DOCUMENTATION = r"""
module: user_home
short_description: Put users' homes on shared storage
description:
  - Makes O(root)C(/<name>) for each user that has an account on this node, copies the home of the image into it, and
    enters it in C(/etc/passwd).
  - Any number of nodes may do this at once. Nothing is overwritten or deleted. Lines of C(.ssh/authorized_keys) are
    merged. The old home stays as it is, but for a file C(.hyperpod-lifecycle-home) that says where it was copied to.
  - Files of the old home that differ from those of the same name in the new one are not copied, and RV(note) says so.
  - Of a home that is on other storage than the node's own disk only C(.ssh) is copied.
  - Where the server treats root as nobody, everything is done as the user.
author: hyperpod-lifecycle maintainers
options:
  root:
    description: The folder of the homes. It must be on a file system that is mounted.
    type: path
    required: true
  users:
    description:
      - The users, each with C(name), and with C(uid) if the account must have that number; more is not looked at.
    type: list
    elements: dict
    required: true
  limit_seconds:
    description: How long one step of one user may take.
    type: int
    default: 300
attributes:
  check_mode:
    support: full
"""

EXAMPLES = r"""
- name: Put the home of ubuntu on shared storage
  hyperpod.lifecycle.user_home:
    root: /fsx
    users:
      - name: ubuntu
"""

RETURN = r"""
note:
  description: What there is to say in the summary; empty if there is nothing.
  type: str
  returned: success
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.hyperpod.lifecycle.plugins.module_utils.homes import AGAIN, Fault, Home, storage_fault


def handle(module, user, faults, notes):
    """One user; whether anything was, or in check mode would be, changed."""
    home = Home(user["name"], module.params["root"], module.params["limit_seconds"])
    uid = home.account.uid
    try:
        if user.get("uid", uid) != uid:
            raise Fault(
                f"{home.name} has uid {uid} on this node, and the list of users says {user['uid']}; give the account "
                f"that uid, or remove it, {AGAIN}"
            )
        if module.check_mode:
            found = home.look()
            return home.account.home != home.target or not found["usable"] or found["pending"]
        changed, note = home.make()
    except Fault as fault:
        faults.append(str(fault))
        return False
    notes += [note] if note else []
    return changed


def main():
    """Entry point."""
    module = AnsibleModule(
        argument_spec={
            "root": {"type": "path", "required": True},
            "users": {"type": "list", "elements": "dict", "required": True},
            "limit_seconds": {"type": "int", "default": 300},
        },
        supports_check_mode=True,
    )
    root, limit = module.params["root"], module.params["limit_seconds"]
    fault = storage_fault(root, limit)
    if fault and module.check_mode:
        module.exit_json(changed=True, note=f"{fault} yet")
    if fault:
        module.fail_json(msg=f"{fault}; mount it first: hyperpod-lifecycle apply --tags fsx, or correct homes_root")
    users = module.params["users"]
    absent = [user["name"] for user in users if Home(user["name"], root, limit).account is None]
    faults, notes = [], []
    if absent:
        notes.append(f"no account on this node for {', '.join(absent)}, so no home either")
    present = [user for user in users if user["name"] not in absent]
    changed = [user["name"] for user in present if handle(module, user, faults, notes)]
    if faults:
        module.fail_json(msg="; ".join(faults), changed=bool(changed))
    # Only seen where a task takes a change for a failure, as the proof does.
    wrong = f"not right at {root}: the home of {', '.join(changed)}; make it so: hyperpod-lifecycle apply --tags homes"
    said = {"msg": wrong} if module.check_mode and changed else {}
    module.exit_json(changed=bool(changed), note="; ".join(notes), **said)


if __name__ == "__main__":
    main()
