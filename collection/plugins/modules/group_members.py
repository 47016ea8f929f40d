#!/usr/bin/python
# SPDX-License-Identifier: GPL-3.0-or-later
"""Users in a group."""

from __future__ import annotations

DOCUMENTATION = r"""
module: group_members
short_description: Put users into a group
description:
  - Nobody is made or taken out. A name that no user has is an error before anything changes.
author: hyperpod-lifecycle maintainers
options:
  group:
    description: The group.
    type: str
    required: true
  users:
    description: Names of users, of this node or of a directory.
    type: list
    elements: str
    required: true
attributes:
  check_mode:
    support: full
"""

EXAMPLES = r"""
- name: Let ubuntu use Docker
  hyperpod.lifecycle.group_members:
    group: docker
    users: [ubuntu]
"""

RETURN = r""" # """

import grp
import os
import pwd

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.hyperpod.lifecycle.plugins.module_utils.commands import run


def exists(user):
    """Has somebody this name?"""
    try:
        pwd.getpwnam(user)
    except KeyError:
        return False
    return True


def main():
    """Entry point."""
    module = AnsibleModule(
        argument_spec={
            "group": {"type": "str", "required": True},
            "users": {"type": "list", "elements": "str", "required": True},
        },
        supports_check_mode=True,
    )
    group, users = module.params["group"], module.params["users"]
    unknown = [user for user in users if not exists(user)]
    if unknown:
        module.fail_json(msg=f"group {group}: this node has no user {', '.join(unknown)}; correct the names")
    try:
        number = grp.getgrnam(group).gr_gid
    except KeyError:
        if module.check_mode:
            module.exit_json(changed=bool(users), msg=f"there is no group {group} yet")
        module.fail_json(msg=f"there is no group {group}; the package that has it is not installed as it should be")
    new = [user for user in users if number not in os.getgrouplist(user, pwd.getpwnam(user).pw_gid)]
    for user in [] if module.check_mode else new:
        status, _out, err = run(["gpasswd", "--add", user, group], 60)
        if status:
            module.fail_json(msg=f"gpasswd does not put {user} into the group {group}: {err}")
    module.exit_json(changed=bool(new), msg=f"new in the group {group}: {', '.join(new) or 'none'}")


if __name__ == "__main__":
    main()
