#!/usr/bin/python
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# No builtin: only one of several slurmdbd may create the tables, which a lock in the database ensures.
"""Create slurmdbd's tables from one slurmdbd only."""

from __future__ import annotations

DOCUMENTATION = r"""
module: slurmdbd_first_start
short_description: Create slurmdbd's tables from one slurmdbd only
description:
  - slurmdbd creates its tables when it starts. If two do so at the same time, on two controllers or in two clusters
    that share a database, one of them fails.
  - If the database is empty, slurmdbd is started under a lock of the database server until its tables exist. The lock
    is released when the module ends, however it ends. Otherwise nothing is done.
  - A standby slurmdbd creates no tables, and does not start without them. With O(stands_by) the module waits for
    another slurmdbd to create them.
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
  stands_by:
    description: Whether this slurmdbd is the backup of another.
    type: bool
    required: true
  wait_seconds:
    description: Seconds to wait for the tables.
    type: int
    default: 60
"""

EXAMPLES = r"""
- name: Create the database tables from one slurmdbd only
  hyperpod.lifecycle.slurmdbd_first_start:
    server:
      host: otter.c0ffee.us-west-2.rds.amazonaws.com
      user: slurm
      password_file: /etc/hyperpod-lifecycle/secrets/slurmdbd-external
      ca: /opt/slurm/etc/slurmdbd-ca.pem
    database: slurm_acct_db
    stands_by: false
"""

RETURN = r""" # """

import time
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.hyperpod.lifecycle.plugins.module_utils import dump
from ansible_collections.hyperpod.lifecycle.plugins.module_utils.commands import Fault, journal, run
from ansible_collections.hyperpod.lifecycle.plugins.module_utils.mariadb import SERVER, MariaDB, identifier
from ansible_collections.hyperpod.lifecycle.plugins.module_utils.waits import pause

POLL_SECONDS = 0.25


def filled(server, database):
    """Return whether slurmdbd has created all tables. It adds the account root last."""
    if "acct_table" not in dump.tables(server, database):
        return False
    return bool(server.ask(f"SELECT 1 FROM {identifier(database)}.acct_table WHERE name = 'root'"))  # noqa: S608 quoted


def wait_until_filled(server, database, seconds, silence):
    """Wait for the tables. The Fault ends with the result of `silence()`."""
    deadline = time.monotonic() + seconds
    while not filled(server, database):
        if time.monotonic() >= deadline:
            where = f"the database {database} on {server.name}"
            raise Fault(f"{where} has no slurmdbd tables after {seconds} s; {silence()}")
        pause(POLL_SECONDS)


def fill(server, database, seconds):
    """Start slurmdbd and wait for its tables."""
    # The holder of the lock may take as long to start slurmdbd and wait for it.
    with server.locked(dump.lock_name(database), 3 * seconds):
        if not filled(server, database):
            status, _out, err = run(["systemctl", "start", "slurmdbd"], 90)
            if status:
                raise Fault(f"slurmdbd does not start: {err}; {journal('slurmdbd')}")
            wait_until_filled(server, database, seconds, lambda: journal("slurmdbd"))


def main():
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "server": SERVER,
            "database": {"type": "str", "required": True},
            "stands_by": {"type": "bool", "required": True},
            "wait_seconds": {"type": "int", "default": 60},
        },
        supports_check_mode=True,
    )
    wanted, database, seconds = module.params["server"], module.params["database"], module.params["wait_seconds"]
    if module.check_mode and not Path(wanted["password_file"]).exists():
        module.exit_json(changed=True, msg="the password is not there yet")
    try:
        server = MariaDB(wanted)
        module.no_log_values.add(server.password)
        empty = not filled(server, database)
        if empty and not module.check_mode:
            if module.params["stands_by"]:
                # It would fail repeatedly in the meantime.
                run(["systemctl", "stop", "slurmdbd"], 90)
                wait_until_filled(server, database, seconds, lambda: "set the first controller up, which makes them")
            else:
                fill(server, database, seconds)
    except (Fault, OSError) as fault:
        module.fail_json(msg=str(fault))
    module.exit_json(changed=empty)


if __name__ == "__main__":
    main()
