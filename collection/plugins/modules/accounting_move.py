#!/usr/bin/python
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# No builtin: a migration between two databases has several steps; a kill in between loses or duplicates no rows.
"""Migrate accounting history from the database in slurmdbd.conf to another one."""

from __future__ import annotations

DOCUMENTATION = r"""
module: accounting_move
short_description: Migrate accounting history to another database
description:
  - Does nothing if C(slurmdbd.conf) is missing or names the wanted database. If it names another one the module fails,
    because the history would appear lost, unless O(move) is set.
  - Then slurmdbd is stopped, the old database is dumped and loaded into the wanted one, and the rows of all tables are
    compared. Another task writes C(slurmdbd.conf) afterwards, so a run that is killed migrates again.
  - The previous content of the wanted database is dumped first. A database that has clusters that the old one does not
    have is never changed. The old database is kept.
extends_documentation_fragment:
  - hyperpod.lifecycle.attributes
  - hyperpod.lifecycle.database
author:
  - hyperpod-lifecycle maintainers (@hyperpod-lifecycle)
options:
  conf:
    description: C(slurmdbd.conf).
    type: path
    required: true
  settings:
    description: Wanted settings of C(slurmdbd.conf), of which C(StorageHost) and C(StorageLoc) are used.
    type: dict
    required: true
  socket:
    description: Socket of the database on this node.
    type: path
    required: true
  folder:
    description: Directory of the dumps.
    type: path
    required: true
  move:
    description: Whether to migrate the history.
    type: bool
    required: true
"""

EXAMPLES = r"""
- name: Migrate accounting history
  hyperpod.lifecycle.accounting_move:
    conf: /opt/slurm/etc/slurmdbd.conf
    settings:
      StorageHost: otter.c0ffee.us-west-2.rds.amazonaws.com
      StorageLoc: slurm_acct_db
    server:
      host: otter.c0ffee.us-west-2.rds.amazonaws.com
      user: slurm
      password_file: /etc/hyperpod-lifecycle/secrets/slurmdbd-external
      ca: /opt/slurm/etc/slurmdbd-ca.pem
    socket: /run/mysqld/mysqld.sock
    folder: /var/lib/hyperpod-lifecycle/accounting
    move: true
"""

RETURN = r"""
files:
  description: Paths of the dumps.
  type: list
  elements: str
  returned: success
"""

import time
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.hyperpod.lifecycle.plugins.module_utils import accounting, dump
from ansible_collections.hyperpod.lifecycle.plugins.module_utils.commands import Fault, run
from ansible_collections.hyperpod.lifecycle.plugins.module_utils.files import refusal
from ansible_collections.hyperpod.lifecycle.plugins.module_utils.mariadb import SERVER, MariaDB


def move(old, new, folder):
    """Migrate from `old` to `new`, each (server, database). Return the paths of the dumps."""
    stamp = time.strftime("%Y%m%dT%H%M%S")
    (from_server, from_database), (to_server, to_database) = old, new
    there = dump.tables(to_server, to_database)
    strangers = set(dump.clusters(*new)) - set(dump.clusters(*old))
    if strangers and dump.MARK not in there:
        raise Fault(
            f"the database {to_database} on {to_server.name} knows clusters that {from_database} on {from_server.name} "
            f"does not: {', '.join(sorted(strangers))}. Take another database of that server (accounting_database)"
        )
    file = folder / f"{from_database}-{stamp}.sql"
    dump.dump(from_server, from_database, file)
    files = [file]
    if there and dump.MARK not in there:
        files.append(folder / f"{to_database}-{stamp}-replaced.sql")
        dump.dump(to_server, to_database, files[-1])
    dump.load(to_server, to_database, file)
    before, after = dump.counts(*old), dump.counts(*new)
    lacking = [name for name, rows in before.items() if after.get(name) != rows]
    if lacking:
        raise Fault(f"not all rows of {', '.join(lacking)} have reached {to_database} on {to_server.name}")
    return files


def main():
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "conf": {"type": "path", "required": True},
            "settings": {"type": "dict", "required": True},
            "server": SERVER,
            "socket": {"type": "path", "required": True},
            "folder": {"type": "path", "required": True},
            "move": {"type": "bool", "required": True},
        },
        supports_check_mode=True,
    )
    wanted, conf = module.params, Path(module.params["conf"])
    text = conf.read_text(encoding="utf-8", errors="surrogateescape") if conf.exists() else ""
    reason = accounting.other_database(text, wanted["settings"]) if text else ""
    if not reason:
        module.exit_json(changed=False, files=[])
    if not wanted["move"]:
        module.fail_json(
            msg=f"{conf} is there: {reason}. To migrate its history set accounting_move: true; to start without it, "
            "move the file away. Nothing was changed"
        )
    if module.check_mode:
        module.exit_json(changed=True, files=[], msg=f"{reason}; the history would be migrated")
    try:
        old, new = dump.named_in(text, wanted["socket"]), (MariaDB(wanted["server"]), wanted["settings"]["StorageLoc"])
        module.no_log_values.update({server.password for server, _name in (old, new)} - {""})
        # From now on, slurmctld keeps its records until slurmdbd is back.
        status, _out, err = run(["systemctl", "stop", "slurmdbd"], 120)
        if status:
            raise Fault(f"slurmdbd does not stop: {err}")
        dump.wait_until_unused(*old)
        files = move(old, new, Path(wanted["folder"]))
    except (Fault, OSError) as fault:
        said = fault if isinstance(fault, Fault) else refusal(fault.filename or wanted["folder"], fault)
        module.fail_json(msg=f"the history was not migrated: {said}. The old database is unchanged")
    module.exit_json(changed=True, files=[str(file) for file in files], msg=reason)


if __name__ == "__main__":
    main()
