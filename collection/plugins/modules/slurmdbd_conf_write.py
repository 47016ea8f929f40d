#!/usr/bin/python
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# Not ansible.builtin.template: the password goes from its file into the configuration and never through Ansible.
"""Write slurmdbd.conf, which holds a password."""

from __future__ import annotations

DOCUMENTATION = r"""
module: slurmdbd_conf_write
short_description: Write slurmdbd.conf
description: The file is owned by the Slurm user and created with mode 0600. A diff does not show the password.
extends_documentation_fragment:
  - hyperpod.lifecycle.attributes.files
author:
  - hyperpod-lifecycle maintainers (@hyperpod-lifecycle)
options:
  path:
    description: File to write.
    type: path
    required: true
  owner:
    description: Slurm user.
    type: str
    required: true
  settings:
    description: All settings except C(StoragePass), in order.
    type: dict
    required: true
  password_file:
    description: File with the password of the database user.
    type: path
    required: true
"""

EXAMPLES = r"""
- name: Write slurmdbd.conf
  hyperpod.lifecycle.slurmdbd_conf_write:
    path: /opt/slurm/etc/slurmdbd.conf
    owner: slurm
    settings:
      DbdHost: localhost
      StorageLoc: slurm_acct_db
    password_file: /etc/hyperpod-lifecycle/secrets/slurmdbd
"""

RETURN = r""" # """

import pwd
import stat
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.hyperpod.lifecycle.plugins.module_utils import accounting
from ansible_collections.hyperpod.lifecycle.plugins.module_utils.commands import Fault
from ansible_collections.hyperpod.lifecycle.plugins.module_utils.files import difference, write_owned
from ansible_collections.hyperpod.lifecycle.plugins.module_utils.mariadb import read_password


def main():
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "path": {"type": "path", "required": True},
            "owner": {"type": "str", "required": True},
            "settings": {"type": "dict", "required": True},
            "password_file": {"type": "path", "required": True, "no_log": False},
        },
        supports_check_mode=True,
    )
    path, settings = Path(module.params["path"]), module.params["settings"]
    file = Path(module.params["password_file"])
    if any(key.lower() == "storagepass" for key in settings):
        module.fail_json(msg="StoragePass cannot be set; it is in a file of its own")
    for key, value in settings.items():
        reason = accounting.unfit(value)
        if reason:
            module.fail_json(msg=f"slurmdbd.conf cannot hold this {key}: {reason}")
    level = str(settings.get("DebugLevel", ""))
    if accounting.TALKATIVE.fullmatch(level):
        module.fail_json(msg=f"DebugLevel {level} writes the database's password into the log; debug is the highest")
    if not file.exists() and module.check_mode:
        module.exit_json(changed=True, msg="the password is not there yet")
    password = read_password(file)
    module.no_log_values.add(password)
    try:
        account = pwd.getpwnam(module.params["owner"])
    except KeyError:
        module.fail_json(msg=f"the image has no account {module.params['owner']}; Slurm runs under it")
    before = path.read_text(encoding="utf-8", errors="surrogateescape") if path.exists() else ""
    after = accounting.slurmdbd_conf(settings, password)
    changed = before != after
    if not changed:
        found = path.lstat()
        mode = stat.S_IMODE(found.st_mode)
        changed = (found.st_uid, found.st_gid, mode) != (account.pw_uid, account.pw_gid, 0o600)
    if changed and not module.check_mode:
        try:
            write_owned(path, after, account.pw_uid, account.pw_gid, 0o600)
        except Fault as fault:
            module.fail_json(msg=str(fault))
    module.exit_json(
        changed=changed,
        diff=difference(path, accounting.masked(before), accounting.masked(after)),
    )


if __name__ == "__main__":
    main()
