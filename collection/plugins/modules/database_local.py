#!/usr/bin/python
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# Not community.mysql: it needs a Python driver on the node. This module keeps the password out of arguments.
"""Create Slurm's database and its user in the local MariaDB."""

from __future__ import annotations

DOCUMENTATION = r"""
module: database_local
short_description: Create Slurm's database and its user in the local MariaDB
description:
  - Connects to the server as root over its Unix socket, which needs no password. Only the hash of the user's password
    is sent.
  - root can log in over the socket only. Database users named root at other hosts and anonymous users are dropped.
  - The user has all privileges on the database and none on others. The data in the database is never changed.
extends_documentation_fragment:
  - hyperpod.lifecycle.attributes
author:
  - hyperpod-lifecycle maintainers (@hyperpod-lifecycle)
options:
  socket:
    description: Socket of the server.
    type: path
    required: true
  database:
    description: Name of the database.
    type: str
    required: true
  user:
    description: Database user, at localhost.
    type: str
    required: true
  password_file:
    description: File with the password of the user.
    type: path
    required: true
  wait_seconds:
    description: Seconds to wait for the server.
    type: int
    default: 30
"""

EXAMPLES = r"""
- name: Create the database and its user
  hyperpod.lifecycle.database_local:
    socket: /run/mysqld/mysqld.sock
    database: slurm_acct_db
    user: slurm
    password_file: /etc/hyperpod-lifecycle/secrets/slurmdbd
"""

RETURN = r"""
statements:
  description: Statements that were run, or in check mode would be, without passwords.
  type: list
  elements: str
  returned: success
"""

import re
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.hyperpod.lifecycle.plugins.module_utils import accounting
from ansible_collections.hyperpod.lifecycle.plugins.module_utils.commands import Fault
from ansible_collections.hyperpod.lifecycle.plugins.module_utils.mariadb import MariaDB, quote, read_password


def statements(server, database, user, password_hash):
    """Return the statements that are missing."""
    out = accounting.account_statements(
        server.ask("SELECT User, Host, Priv FROM mysql.global_priv"), user, password_hash
    )
    if not server.has(database):
        out.append(f"CREATE DATABASE `{database}`")
    who = f"{quote(user)}@'localhost'"
    fresh = any(line.startswith(f"CREATE USER {who}") for line in out)
    grants = [] if fresh else [row[0] for row in server.ask(f"SHOW GRANTS FOR {who}")]
    if not accounting.granted(grants, database):
        out.append(f"GRANT ALL PRIVILEGES ON {accounting.grant(database)} TO {who}")
    return out


def main():
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "socket": {"type": "path", "required": True},
            "database": {"type": "str", "required": True},
            "user": {"type": "str", "required": True},
            "password_file": {"type": "path", "required": True, "no_log": False},
            "wait_seconds": {"type": "int", "default": 30},
        },
        supports_check_mode=True,
    )
    wanted = module.params
    for key in ("database", "user"):
        if not re.fullmatch(r"[A-Za-z][A-Za-z0-9_]{0,31}", wanted[key]):
            module.fail_json(msg=f"{key} {wanted[key]}: a letter, then letters, digits and underscores, at most 32")
    file = Path(wanted["password_file"])
    if module.check_mode and not (file.exists() and Path(wanted["socket"]).exists()):
        module.exit_json(changed=True, statements=[], msg="MariaDB or the password is not there yet")
    try:
        password = read_password(file)
        module.no_log_values.add(password)
        server = MariaDB.local(wanted["socket"])
        version = server.connect(wanted["wait_seconds"])
        if "MariaDB" not in version:
            raise Fault(f"the server behind {wanted['socket']} is {version}, not MariaDB")
        hashed = accounting.native_hash(password)
        todo = statements(server, wanted["database"], wanted["user"], hashed)
        if todo and not module.check_mode:
            server.ask(*todo)
    except (Fault, OSError) as fault:
        module.fail_json(msg=str(fault))
    module.exit_json(changed=bool(todo), statements=[line.replace(hashed, "…") for line in todo])


if __name__ == "__main__":
    main()
