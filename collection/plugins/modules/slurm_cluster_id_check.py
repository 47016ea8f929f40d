#!/usr/bin/python
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# No builtin: the identity in slurmctld's state file is compared with that in the database.
"""Compare the cluster id in slurmctld's state with the database."""

from __future__ import annotations

DOCUMENTATION = r"""
module: slurm_cluster_id_check
short_description: Compare the cluster id in slurmctld's state with the accounting database
description:
  - slurmctld refuses to start with CLUSTER ID MISMATCH if the cluster id in its state differs from the database, which
    happens if it ran before accounting was set up. The module detects this beforehand and describes the remedy.
extends_documentation_fragment:
  - hyperpod.lifecycle.attributes
  - hyperpod.lifecycle.database
author:
  - hyperpod-lifecycle maintainers (@hyperpod-lifecycle)
options:
  slurm_conf:
    description: File with C(ClusterName) and C(StateSaveLocation).
    type: path
    required: true
  database:
    description: Name of the accounting database.
    type: str
    required: true
"""

EXAMPLES = r"""
- name: Compare the cluster id
  hyperpod.lifecycle.slurm_cluster_id_check:
    slurm_conf: /opt/slurm/etc/slurm.conf
    database: slurm_acct_db
    server:
      socket: /run/mysqld/mysqld.sock
"""

RETURN = r"""
since:
  description:
    - Time at which the cluster was registered in the database, in seconds since the epoch. V(0) if it is not
      registered.
  type: int
  returned: success
"""

from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.hyperpod.lifecycle.plugins.module_utils import accounting, slurm
from ansible_collections.hyperpod.lifecycle.plugins.module_utils.commands import Fault
from ansible_collections.hyperpod.lifecycle.plugins.module_utils.mariadb import SERVER, MariaDB, identifier, quote


def known(server, database, cluster):
    """Return the cluster's id in the database, or None, and the time of its registration."""
    schema, name = quote(database), quote(cluster)
    table = f"SELECT 1 FROM information_schema.columns WHERE table_schema = {schema}"  # noqa: S608 quoted
    if not server.ask(f"{table} AND table_name = 'cluster_table' AND column_name = 'id'"):
        return None, 0
    where = f"{identifier(database)}.cluster_table WHERE name = {name} AND deleted = 0"
    found = server.ask(f"SELECT id, creation_time FROM {where}")  # noqa: S608 quoted
    return tuple(map(int, found[0])) if found else (None, 0)


def main():
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "slurm_conf": {"type": "path", "required": True},
            "database": {"type": "str", "required": True},
            "server": SERVER,
        },
        supports_check_mode=True,
    )
    conf = Path(module.params["slurm_conf"])
    server = module.params["server"]
    # In check mode, files that a real run creates first may be missing.
    if module.check_mode and not all(
        Path(each).exists() for each in (conf, server["socket"] or server["password_file"])
    ):
        module.exit_json(since=0, msg="slurm.conf or the database is not there yet")
    text = conf.read_text(encoding="utf-8", errors="replace")
    found = {key.lower(): value for key, value in slurm.parameters(text)}
    cluster = found.get("clustername", "").lower()
    state = Path(found.get("statesavelocation", "/var/spool"))
    file = state / "clustername"
    try:
        number = accounting.cluster_id(file.read_text(encoding="utf-8", errors="replace")) if file.exists() else None
        stored, since = known(MariaDB(server), module.params["database"], cluster)
        said = accounting.id_mismatch(state, cluster, number, stored)
        if said:
            raise Fault(said)
    except (Fault, OSError) as fault:
        module.fail_json(msg=str(fault))
    module.exit_json(since=since)


if __name__ == "__main__":
    main()
