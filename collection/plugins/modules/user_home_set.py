#!/usr/bin/python
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# Not ansible.builtin.user: it moves a home while processes use it, and a kill during the copy loses files.
"""Put users' homes on shared storage."""

from __future__ import annotations

DOCUMENTATION = r"""
module: user_home_set
short_description: Put users' homes on shared storage
description:
  - The home of each user that has an account on this node is the one that O(users) names, else O(root)C(/<name>). It is
    created if missing, the image's home is copied into it, and it is set in C(/etc/passwd).
  - A home that O(users) does not name and that is not on the node's own disk stays where it is unless O(move) is set.
  - Faults that can be detected beforehand, such as a home where no file system is mounted, end the module before it
    changes anything.
  - Any number of nodes may do this at the same time. Nothing is overwritten or deleted. Lines of
    C(.ssh/authorized_keys) are merged. The old home is kept, with a file C(.hyperpod-lifecycle-home) that names its new
    location.
  - Files of the old home that differ from files of the same name in the new one are not copied, and RV(note) lists
    them.
  - If the old home is not on the node's own disk, only C(.ssh) is copied.
  - If root is squashed, everything is done as the user.
extends_documentation_fragment:
  - hyperpod.lifecycle.attributes
author:
  - hyperpod-lifecycle maintainers (@hyperpod-lifecycle)
options:
  root:
    description: Directory of the homes that O(users) does not name. If empty, those stay where they are.
    type: str
    default: ""
  users:
    description:
      - Users, each with C(name), with C(home) if it must be there, and with C(uid) if the account must have that
        number. Other keys are ignored.
    type: list
    elements: dict
    required: true
  storage:
    description:
      - Paths of shared file systems. A home below one of them is not on the node's own disk, whether it is mounted or
        not.
    type: list
    elements: str
    default: []
  move:
    description: Also move homes that are not on the node's own disk to O(root).
    type: bool
    default: false
  limit_seconds:
    description: Seconds that one step of one user may take.
    type: int
    default: 300
"""

EXAMPLES = r"""
- name: Put the home of ubuntu on shared storage
  hyperpod.lifecycle.user_home_set:
    root: /fsx
    users:
      - name: ubuntu
"""

RETURN = r"""
note:
  description: Note for the summary. Empty if there is none.
  type: str
  returned: success
"""

import os

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.hyperpod.lifecycle.plugins.module_utils import homes
from ansible_collections.hyperpod.lifecycle.plugins.module_utils.homes import AGAIN, Fault, Home

MOUNT_FIRST = "mount it first: hyperpod-lifecycle apply --tags fsx, or correct"


class Plan:
    """The homes to set up, and faults that are known beforehand."""

    def __init__(self, wanted):
        self.root, self.move, self.limit = wanted["root"], wanted["move"], wanted["limit_seconds"]
        self.storage = wanted["storage"]
        self.homes, self.faults, self.unmounted, self.notes = [], [], [], []
        passwd = homes.read_accounts()
        # The image's user may be in the list of users too, which then counts.
        users = {user["name"]: user for user in wanted["users"]}
        accounts = {name: homes.account(passwd, name) for name in users}
        for user in users.values():
            if accounts[user["name"]] is not None:
                self.add(user, accounts[user["name"]])
        absent = [name for name, account in accounts.items() if account is None]
        if absent:
            self.notes.append(f"no account on this node for {', '.join(absent)}, so no home was set up")

    def add(self, user, account):
        """Plan the home of one user that has an account."""
        declared = user.get("home") or ""
        target = self.target(account, declared)
        if not target:
            return
        uid = user.get("uid", account.uid)
        if uid != account.uid:
            self.faults.append(
                f"{account.name} has uid {account.uid} on this node, and the list of users says {uid}; give the "
                f"account that uid, or remove it, {AGAIN}"
            )
            return
        home = Home(account, target, self.limit)
        if target != account.home or not home.look()["usable"]:
            fault = homes.storage_fault(target, self.limit)
            if fault:
                where = f"the home of {account.name} in the list of users" if declared else "homes_root"
                self.unmounted.append(f"{account.name} gets no home at {target}: {fault}; {MOUNT_FIRST} {where}")
                return
        self.homes.append(home)

    def target(self, account, declared):
        """Return the path of a user's home; empty to leave it unchanged."""
        if declared:
            return os.path.normpath(declared)
        if not self.root:
            return ""
        target = os.path.normpath(os.path.join(self.root, account.name))
        if target == account.home or self.move or not homes.stays(account.home, self.storage, self.limit):
            return target
        self.notes.append(f"{account.name}: the home stays at {account.home}; homes_move moves it to {target}")
        return account.home


def is_right(home):
    """Return whether a home needs no change."""
    found = home.look()
    return home.account.home == home.target and found["usable"] and not found["pending"]


def main():
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "root": {"type": "str", "default": ""},
            "users": {"type": "list", "elements": "dict", "required": True},
            "storage": {"type": "list", "elements": "str", "default": []},
            "move": {"type": "bool", "default": False},
            "limit_seconds": {"type": "int", "default": 300},
        },
        supports_check_mode=True,
    )
    plan, faults, changed = None, [], []
    try:
        plan = Plan(module.params)
    except Fault as fault:
        module.fail_json(msg=str(fault))
    if plan.faults or (plan.unmounted and not module.check_mode):
        module.fail_json(msg="; ".join(plan.faults + plan.unmounted))
    for home in plan.homes:
        try:
            if module.check_mode:
                done, note = not is_right(home), ""
            else:
                done, note = home.make()
        except Fault as fault:
            faults.append(str(fault))
            continue
        changed += [home] if done else []
        plan.notes += [note] if note else []
    if faults:
        module.fail_json(msg="; ".join(faults), changed=bool(changed))
    # Shown only if the task treats a change as a failure, as verify.yml does.
    wrong = [f"not right: the home of {home.name} at {home.target}" for home in changed] + plan.unmounted
    said = (
        {"msg": f"{'; '.join(wrong)}; correct it: hyperpod-lifecycle apply --tags homes"}
        if module.check_mode and wrong
        else {}
    )
    module.exit_json(changed=bool(changed or plan.unmounted), note="; ".join(plan.notes), **said)


if __name__ == "__main__":
    main()
