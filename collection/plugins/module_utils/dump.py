# SPDX-License-Identifier: Apache-2.0
"""Dump a database into a file and load it. Uses the standard library only, because it runs on the node."""

from __future__ import annotations

import errno
import os
import time
from pathlib import Path

from ansible_collections.hyperpod.lifecycle.plugins.module_utils import accounting
from ansible_collections.hyperpod.lifecycle.plugins.module_utils.commands import Fault, run
from ansible_collections.hyperpod.lifecycle.plugins.module_utils.mariadb import SERVER, MariaDB, identifier, quote
from ansible_collections.hyperpod.lifecycle.plugins.module_utils.waits import pause

#: Seconds; a year of a busy cluster takes minutes.
SECONDS = 6 * 3600
#: Last line of a complete dump.
LAST = b"-- Dump completed"
#: Seconds that the server may take to close the connections of a slurmdbd that has exited.
IDLE_SECONDS = 20
#: Table that exists in a database while a load is incomplete.
MARK = "hyperpod_lifecycle_load"


def named_in(slurmdbd_conf, local_socket):
    """Return server and name of the database in slurmdbd.conf, accessed as slurmdbd accesses it."""
    found = accounting.read_slurmdbd_conf(slurmdbd_conf)
    host, name = accounting.place(found)
    if host == "localhost":
        return MariaDB.local(local_socket), name
    pairs = (pair.partition("=") for pair in found.get("storageparameters", "").split(","))
    ca = {key.upper(): value for key, section, value in pairs}.get("SSL_CA")
    server = dict.fromkeys(SERVER["options"])
    server.update(host=host, port=int(found.get("storageport", 3306)), user=found.get("storageuser", "slurm"))
    server.update(tls=ca is not None, ca=ca)
    return MariaDB(server, password=found.get("storagepass", "")), name


def dump(server, database, path):
    """Dump the database as one consistent snapshot into a file of root, which is complete or absent."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    new = path.with_name(path.name + ".new")
    new.unlink(missing_ok=True)
    handle = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with server.client("mariadb-dump") as (command, options):
            # Needs no privileges beyond slurmdbd's: neither tablespaces nor locks.
            command += ["--single-transaction", "--quick", "--no-tablespaces", "--skip-add-locks", database]
            status, _out, err = run(command, SECONDS, stdout=handle, **options)
        if status and f"rrno {errno.ENOSPC}" in err:
            raise OSError(errno.ENOSPC, err, str(path))
        if status:
            raise server.error(err)
        os.fsync(handle)
        if not is_whole(new):
            raise Fault(f"the dump of {database} on {server.name} in {new} does not end as one does")
        new.rename(path)
    finally:
        os.close(handle)


def is_whole(path):
    """Return whether a dump is complete."""
    with open(path, "rb") as file:
        file.seek(max(0, os.path.getsize(path) - 200))
        return LAST in file.read()


def load(server, database, path):
    """Load the tables of a dump into a database. An interrupted load is detected and repeated."""
    server.ask(f"CREATE TABLE IF NOT EXISTS {identifier(database)}.{MARK} (id INT)")
    with open(path, "rb") as file, server.client("mariadb") as (command, options):
        status, _out, err = run([*command, database], SECONDS, stdin=file, **options)
    if status:
        raise server.error(err)
    server.ask(f"DROP TABLE {identifier(database)}.{MARK}")


def lock_name(database):
    """Hold the server's lock for creating or replacing a database's tables."""
    return f"hyperpod-lifecycle {database}"[:64]


def users(server, database):
    """Return the hosts of other connections to a database, and this host, as the server sees them."""
    # A user sees its own connections. slurmdbd, even a standby, keeps its connections open while it runs.
    where = f"db = {quote(database)} OR id = CONNECTION_ID()"
    rows = server.ask(f"SELECT host, id = CONNECTION_ID() FROM information_schema.processlist WHERE {where}")  # noqa: S608
    found = [(host.rpartition(":")[0] or host, own == "1") for host, own in rows]
    return {host for host, own in found if not own}, next(host for host, own in found if own)


def users_elsewhere(server, database):
    """Return the other hosts connected to a database, whose slurmdbd would take over from this one."""
    others, own = users(server, database)
    return sorted(others - {own})


def wait_until_unused(server, database, seconds=IDLE_SECONDS):
    """Wait until there are no other connections. A slurmdbd would write records that are lost, or create tables."""
    deadline = time.monotonic() + seconds
    while found := users(server, database)[0]:
        if time.monotonic() >= deadline:
            raise Fault(
                f"the database {database} on {server.name} is in use from {', '.join(sorted(found))}; stop what "
                "uses it first, such as slurmdbd on another controller (systemctl stop slurmdbd)"
            )
        pause(0.5)


def tables(server, database):
    """Return the names of its tables and views."""
    where = f"table_schema = {quote(database)} ORDER BY table_name"
    return [row[0] for row in server.ask(f"SELECT table_name FROM information_schema.tables WHERE {where}")]  # noqa: S608


def counts(server, database):
    """Return the number of rows of each table."""
    names = tables(server, database)
    each = [f"SELECT {quote(name)}, COUNT(*) FROM {identifier(database)}.{identifier(name)}" for name in names]  # noqa: S608
    return {name: int(number) for name, number in server.ask(*each)} if each else {}


def clusters(server, database):
    """Return the names of the clusters in a database; none before slurmdbd has created its tables."""
    if "cluster_table" not in tables(server, database):
        return []
    table = f"{identifier(database)}.cluster_table"
    return [name for (name,) in server.ask(f"SELECT name FROM {table} WHERE deleted = 0")]  # noqa: S608 quoted
