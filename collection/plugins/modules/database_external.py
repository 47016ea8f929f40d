#!/usr/bin/python
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# Not community.mysql: it needs a Python driver on the node. This module keeps the password out of arguments and waits
# for a server that is starting.
"""Verify access to the external database, and create it."""

from __future__ import annotations

DOCUMENTATION = r"""
module: database_external
short_description: Create the external database
description:
  - Verifies that the server can be reached, that its certificate is valid, and that the user can log in with the
    privileges that slurmdbd needs. Each failure has its own message. Then creates the database if it is missing.
    Nothing else on the server is changed, and no privileges are granted.
  - With TLS, the chain of the server's certificate and the name in it are verified.
extends_documentation_fragment:
  - hyperpod.lifecycle.attributes
  - hyperpod.lifecycle.database
author:
  - hyperpod-lifecycle maintainers (@hyperpod-lifecycle)
options:
  database:
    description: Name of the database.
    type: str
    required: true
  wait_seconds:
    description: Seconds to wait for the server.
    type: int
    default: 30
"""

EXAMPLES = r"""
- name: Create the external database
  hyperpod.lifecycle.database_external:
    server:
      host: otter.c0ffee.us-west-2.rds.amazonaws.com
      user: slurm
      password_file: /etc/hyperpod-lifecycle/secrets/slurmdbd-external
      ca: /opt/slurm/etc/slurmdbd-ca.pem
    database: slurm_acct_db
"""

RETURN = r"""
note:
  description: Note for the summary. Empty if there is none.
  type: str
  returned: success
"""

import re
import shutil
import ssl
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.hyperpod.lifecycle.plugins.module_utils import accounting
from ansible_collections.hyperpod.lifecycle.plugins.module_utils.commands import Fault
from ansible_collections.hyperpod.lifecycle.plugins.module_utils.mariadb import SERVER, MariaDB, identifier

HOST = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]{0,253}[A-Za-z0-9])?")
#: Names that the service's API allows and that slurmdbd can use in statements without quotes.
DATABASE = re.compile(r"(?![0-9]+$)[A-Za-z0-9_$]{1,64}")


def check_words(server, database):
    """Raise Fault for invalid values, and values that slurmdbd.conf cannot hold."""
    if not HOST.fullmatch(server["host"]):
        raise Fault(f"the database's host {server['host']!r} is not a host name; the port is a separate setting")
    reason = accounting.unfit(server["user"])
    if reason:
        raise Fault(f"the database's user {server['user']!r} cannot be written to slurmdbd.conf: {reason}")
    if not DATABASE.fullmatch(database):
        raise Fault(f"the database's name {database!r}: letters, digits, _ and $ are allowed, at most 64")


def check_ca(path):
    """Raise Fault if the file has no certificates."""
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cafile=path)
    except OSError as error:  # ssl.SSLError is one
        raise Fault(
            f"accounting_external_ca: {path} holds no certificates ({error.strerror or error}); put the bundle of the "
            "database's authority there. Without TLS the password and all records could be read on the way, which "
            "accounting_external_tls: false allows"
        ) from error


def see_to(server, database, seconds, check):
    """Return whether the database was created, or would be in check mode, and a note about the user."""
    server.connect(seconds)
    missing, elsewhere = accounting.rights((row[0] for row in server.ask("SHOW GRANTS")), database)
    user = server.server["user"]
    if missing:
        name = identifier(database)
        raise Fault(
            f"{user} on {server.name} lacks rights on the database {database}: {', '.join(missing)}. As the server's "
            f"administrator: GRANT ALL PRIVILEGES ON {name}.* TO '{user}'@'%'"
        )
    absent = not server.has(database)
    if absent and not check:
        # Another controller may do the same at the same time.
        server.ask(f"CREATE DATABASE IF NOT EXISTS {identifier(database)}")
    note = f"the database's account {user} has rights beyond {database}; slurmdbd needs none of them"
    return absent, note if elsewhere else ""


def main():
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "server": SERVER,
            "database": {"type": "str", "required": True},
            "wait_seconds": {"type": "int", "default": 30},
        },
        supports_check_mode=True,
    )
    wanted, database, seconds = module.params["server"], module.params["database"], module.params["wait_seconds"]
    try:
        check_words(wanted, database)
        if wanted["tls"]:
            check_ca(wanted["ca"])
        if module.check_mode and not (Path(wanted["password_file"]).exists() and shutil.which("mariadb")):
            # A real run has both at this point.
            module.exit_json(changed=True, note="", msg="the password or MariaDB's client is not there yet")
        server = MariaDB(wanted)
        module.no_log_values.add(server.password)
        changed, note = see_to(server, database, seconds, module.check_mode)
    except (Fault, OSError) as fault:
        module.fail_json(msg=str(fault))
    module.exit_json(changed=changed, note=note)


if __name__ == "__main__":
    main()
