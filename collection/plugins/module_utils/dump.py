# SPDX-License-Identifier: Apache-2.0
"""One database out of a server into a file, and back. Standard library only: it runs on the node."""

from __future__ import annotations

import errno
import os
import time
from pathlib import Path

from ansible_collections.hyperpod.lifecycle.plugins.module_utils import accounting
from ansible_collections.hyperpod.lifecycle.plugins.module_utils.commands import Fault, run
from ansible_collections.hyperpod.lifecycle.plugins.module_utils.mariadb import SERVER, MariaDB, identifier, quote
from ansible_collections.hyperpod.lifecycle.plugins.module_utils.waits import pause

#: A year of a busy cluster takes minutes.
SECONDS = 6 * 3600
#: What mariadb-dump writes last, if nothing has stopped it.
LAST = b"-- Dump completed"
#: How long the server may take to let go of a slurmdbd that has ended.
IDLE_SECONDS = 20
#: A database in which a load has begun and not ended has this table.
MARK = "hyperpod_lifecycle_load"


def named_in(slurmdbd_conf, local_socket):
    """Server and name of the database that a slurmdbd.conf names, to be reached as slurmdbd reaches it."""
    found = accounting.read_slurmdbd_conf(slurmdbd_conf)
    host, name = accounting.place(found)
    if host == "localhost":
        return MariaDB.local(local_socket), name
    pairs = (pair.partition("=") for pair in found.get("storageparameters", "").split(","))
    ca = {key.upper(): value for key, _, value in pairs}.get("SSL_CA")
    server = dict.fromkeys(SERVER["options"])
    server.update(host=host, port=int(found.get("storageport", 3306)), user=found.get("storageuser", "slurm"))
    server.update(tls=ca is not None, ca=ca)
    return MariaDB(server, password=found.get("storagepass", "")), name


def dump(server, database, path):
    """The database as one consistent picture, in a file of root's that is there whole or not at all."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    new = path.with_name(path.name + ".new")
    new.unlink(missing_ok=True)
    handle = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with server.client("mariadb-dump") as (command, options):
            # No more rights than slurmdbd has: neither tablespaces nor locks, when it is read or when it is loaded.
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
    """Does a dump end as one does?"""
    with open(path, "rb") as file:
        file.seek(max(0, os.path.getsize(path) - 200))
        return LAST in file.read()


def load(server, database, path):
    """Give a database the tables of a dump. A load that was stopped can be told, and is done again whole."""
    server.ask(f"CREATE TABLE IF NOT EXISTS {identifier(database)}.{MARK} (id INT)")
    with open(path, "rb") as file, server.client("mariadb") as (command, options):
        status, _out, err = run([*command, database], SECONDS, stdin=file, **options)
    if status:
        raise server.error(err)
    server.ask(f"DROP TABLE {identifier(database)}.{MARK}")


def lock_name(database):
    """The lock of the server's that who makes or replaces a database's tables holds."""
    return f"hyperpod-lifecycle {database}"[:64]


def users(server, database):
    """The hosts that others are connected to a database from, and our own, as the server sees them."""
    # An account sees its own connections, and slurmdbd's, even one's that stands by, are never closed while it runs.
    where = f"db = {quote(database)} OR id = CONNECTION_ID()"
    rows = server.ask(f"SELECT host, id = CONNECTION_ID() FROM information_schema.processlist WHERE {where}")  # noqa: S608
    found = [(host.rpartition(":")[0] or host, own == "1") for host, own in rows]
    return {host for host, own in found if not own}, next(host for host, own in found if own)


def users_elsewhere(server, database):
    """The other machines that have connections to a database: their slurmdbd would take over from this one's."""
    others, own = users(server, database)
    return sorted(others - {own})


def wait_until_unused(server, database, seconds=IDLE_SECONDS):
    """Wait until nobody else is connected: a slurmdbd would write what is lost then, or make tables meanwhile."""
    deadline = time.monotonic() + seconds
    while found := users(server, database)[0]:
        if time.monotonic() >= deadline:
            raise Fault(
                f"the database {database} on {server.name} is in use from {', '.join(sorted(found))}; stop what "
                "uses it first, such as slurmdbd on another controller (systemctl stop slurmdbd)"
            )
        pause(0.5)


def tables(server, database):
    """Names of its tables, and of views."""
    where = f"table_schema = {quote(database)} ORDER BY table_name"
    return [row[0] for row in server.ask(f"SELECT table_name FROM information_schema.tables WHERE {where}")]  # noqa: S608


def counts(server, database):
    """How many rows each table has."""
    names = tables(server, database)
    each = [f"SELECT {quote(name)}, COUNT(*) FROM {identifier(database)}.{identifier(name)}" for name in names]  # noqa: S608
    return {name: int(number) for name, number in server.ask(*each)} if each else {}


def clusters(server, database):
    """Names of those that a database knows; none before slurmdbd has begun to fill it."""
    if "cluster_table" not in tables(server, database):
        return []
    table = f"{identifier(database)}.cluster_table"
    return [name for (name,) in server.ask(f"SELECT name FROM {table} WHERE deleted = 0")]  # noqa: S608 quoted
