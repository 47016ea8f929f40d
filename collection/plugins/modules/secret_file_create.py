#!/usr/bin/python
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# Not ansible.builtin.copy with a lookup: the password would pass through arguments and temporary files of Ansible.
"""Create a random password on the node once."""

from __future__ import annotations

DOCUMENTATION = r"""
module: secret_file_create
short_description: Create a file with a random password once
description:
  - The file is owned by root and created with mode 0600, its directory with mode 0700. Other modules are passed the
    path, never the password.
  - An existing password is kept. Its owner and mode are corrected.
extends_documentation_fragment:
  - hyperpod.lifecycle.attributes
author:
  - hyperpod-lifecycle maintainers (@hyperpod-lifecycle)
options:
  path:
    description: File with the password.
    type: path
    required: true
  length:
    description: Number of letters and digits in a new password.
    type: int
    default: 40
"""

EXAMPLES = r"""
- name: Create the database password
  hyperpod.lifecycle.secret_file_create:
    path: /etc/hyperpod-lifecycle/secrets/slurmdbd
"""

RETURN = r""" # """

import os
import secrets
import stat
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.hyperpod.lifecycle.plugins.module_utils.accounting import ALPHABET, PASSWORD
from ansible_collections.hyperpod.lifecycle.plugins.module_utils.commands import Fault
from ansible_collections.hyperpod.lifecycle.plugins.module_utils.files import make_folder, write_owned


def make(path, length):
    """Write the file atomically."""
    make_folder(path.parent, 0o700)
    password = "".join(secrets.choice(ALPHABET) for position in range(length))
    write_owned(path, password + "\n", os.geteuid(), os.getegid(), 0o600)


def main():
    """Run the module."""
    module = AnsibleModule(
        argument_spec={"path": {"type": "path", "required": True}, "length": {"type": "int", "default": 40}},
        supports_check_mode=True,
    )
    path = Path(module.params["path"])
    if not os.path.lexists(path):
        if not module.check_mode:
            try:
                make(path, module.params["length"])
            except Fault as fault:
                module.fail_json(msg=str(fault))
        module.exit_json(changed=True)
    found = path.lstat()
    if not stat.S_ISREG(found.st_mode) or not PASSWORD.fullmatch(path.read_text(encoding="utf-8").rstrip("\n")):
        module.fail_json(
            msg=f"{path} does not hold a password of at least 16 letters and digits; if it is not needed, delete it "
            "and run again: a new one is made and entered everywhere"
        )
    changed = (found.st_uid, found.st_gid, stat.S_IMODE(found.st_mode)) != (0, 0, 0o600)
    if changed and not module.check_mode:
        os.chmod(path, 0o600)
        os.chown(path, 0, 0)
    module.exit_json(changed=changed)


if __name__ == "__main__":
    main()
