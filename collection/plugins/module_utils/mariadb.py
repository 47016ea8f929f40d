# SPDX-License-Identifier: Apache-2.0
"""Access to a MariaDB or MySQL server through MariaDB's clients. Uses the standard library only."""

from __future__ import annotations

import os
import re
import select
import socket
import subprocess
import time
from contextlib import contextmanager
from pathlib import Path

from ansible_collections.hyperpod.lifecycle.plugins.module_utils.commands import Fault, environment, journal, run
from ansible_collections.hyperpod.lifecycle.plugins.module_utils.waits import pause

POLL_SECONDS = 0.25
#: Seconds of one attempt to connect to a host that does not answer.
CONNECT_SECONDS = 5

#: Argument spec of a connection to a server.
SERVER = {
    "type": "dict",
    "required": True,
    "options": {
        "socket": {"type": "path"},
        "host": {"type": "str"},
        "port": {"type": "int", "default": 3306},
        "user": {"type": "str"},
        "password_file": {"type": "path", "no_log": False},
        "tls": {"type": "bool", "default": True},
        "ca": {"type": "path"},
    },
    "mutually_exclusive": [("socket", "host")],
    "required_one_of": [("socket", "host")],
    "required_by": {"host": ("user", "password_file")},
}

#: Client errors that mean that no server answered.
_SILENT = re.compile(r"ERROR (2002|2003|2005|2006|2013|1040|1053)\b")


def quote(name):
    """Quote a string for SQL."""
    return "'" + name.replace("\\", "\\\\").replace("'", "\\'") + "'"


def identifier(name):
    """Quote an identifier for SQL."""
    return "`" + name.replace("`", "``") + "`"


def option(value):
    """Quote a value for an option file."""
    return '"' + str(value).replace("\\", "\\\\").replace('"', '\\"') + '"'


def option_file(server, password):
    """Return the option file for MariaDB's clients."""
    if server["socket"]:
        lines = [f"socket={option(server['socket'])}", "protocol=socket", "user=root", "skip-ssl"]
    else:
        lines = [f"host={option(server['host'])}", f"port={server['port']}", "protocol=tcp"]
        lines += [f"user={option(server['user'])}", f"password={option(password)}"]
        # With a CA bundle and verification, the clients require TLS and verify chain and name.
        tls = ["ssl", f"ssl-ca={option(server['ca'])}", "ssl-verify-server-cert"]
        lines += tls if server["tls"] else ["skip-ssl"]
    return "\n".join(["[client]", *lines, "[mysql]", f"connect-timeout={CONNECT_SECONDS}", ""])


class MariaDB:
    """A server. Statements are passed on standard input, the password in a file that only the client can open.

    `server` is a dict as in SERVER. A socket is used as root and needs no password.
    """

    def __init__(self, server, seconds=60, password=None):
        self.server = server
        self.seconds = seconds
        self.password = password or (read_password(server["password_file"]) if server["password_file"] else "")

    @classmethod
    def local(cls, socket_path):
        """Return the server on this machine, accessed as root."""
        return cls({**dict.fromkeys(SERVER["options"]), "socket": socket_path})

    @property
    def name(self):
        """Name of the server in messages."""
        return self.server["socket"] or "{host}:{port}".format(**self.server)

    @contextmanager
    def client(self, program):
        """Return the start of a client's command line, and its subprocess options."""
        # Anonymous memory, which no other process can read and which disappears with the last process that has it open.
        handle = os.memfd_create("options")
        try:
            os.fchmod(handle, 0o600)
            os.write(handle, option_file(self.server, self.password).encode())
            yield [program, f"--defaults-file=/proc/self/fd/{handle}"], {"pass_fds": [handle]}
        finally:
            os.close(handle)

    def ask(self, *statements):
        """Return the rows of all results. Raises Fault if the server refuses, ConnectionError if none answers."""
        text = ";\n".join([*statements, ""])
        with self.client("mariadb") as (command, options):
            command += ["--batch", "--raw", "--skip-column-names"]
            status, out, err = run(command, self.seconds, text, **options)
        if status == 0:
            return [line.split("\t") for line in out.splitlines()]
        raise self.error(err)

    @contextmanager
    def locked(self, name, seconds):
        """Hold a lock of the server. It is released with the connection, even if this process is killed."""
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        with self.client("mariadb") as (command, options):
            command += ["--batch", "--skip-column-names", "--unbuffered"]
            with subprocess.Popen(command, env=environment(), **pipes, **options) as holder:
                holder.stdin.write(f"SELECT GET_LOCK({quote(name)}, {seconds});\n".encode())
                holder.stdin.flush()
                ready = select.select([holder.stdout], [], [], seconds + 2 * CONNECT_SECONDS)[0]
                said = holder.stdout.readline().decode(errors="replace").strip() if ready else "no answer"
                try:
                    if said == "0":
                        raise Fault(f"another has the lock {name!r} of {self.name} for more than {seconds} s")
                    if said != "1":
                        raise self.error(said)
                    yield
                finally:
                    # Not by closing its input, which a client that waits for a silent server would not notice.
                    holder.kill()

    def has(self, database):
        """Return whether the database exists and is visible to the user."""
        name = quote(database)
        return bool(self.ask(f"SELECT 1 FROM information_schema.schemata WHERE schema_name = {name}"))  # noqa: S608 quoted

    def error(self, said):
        """Return the exception for a client's error."""
        if _SILENT.search(said):
            return ConnectionError(said)
        server = self.server
        refused = re.search(r"ERROR (1045|1698)\b", said)
        if refused and server["socket"]:
            return Fault(
                f"MariaDB does not let root in over {self.name} ({said}); as its administrator: ALTER USER "
                "root@localhost IDENTIFIED VIA unix_socket; then hyperpod-lifecycle apply --tags accounting"
            )
        if refused:
            return Fault(
                f"the database on {self.name} does not let {server['user']} in: {said}. Correct the user or the "
                "password; an account that must use TLS is refused alike without"
            )
        if "ERROR 2026" in said or ("SSL" in said.upper() and "ERROR 2" in said):
            return Fault(
                f"no TLS with the database on {self.name}: {said}. Its certificate must be for that name and be "
                f"signed by an authority in {server['ca']} (accounting_external_ca; for RDS: the bundle "
                "https://truststore.pki.rds.amazonaws.com/global/global-bundle.pem)"
            )
        return Fault(f"the database on {self.name}: {said}")

    def reach(self):
        """Connect to the port. Raises ConnectionError, with the reason, if nothing listens."""
        server = self.server
        if server["socket"]:
            return
        try:
            socket.create_connection((server["host"], server["port"]), timeout=CONNECT_SECONDS).close()
        except OSError as error:
            raise ConnectionError(error.strerror or str(error)) from error

    def connect(self, seconds):
        """Wait for the server and return its version."""
        deadline = time.monotonic() + seconds
        while True:
            try:
                self.reach()
                return self.ask("SELECT VERSION()")[0][0]
            except ConnectionError as error:
                if time.monotonic() >= deadline:
                    raise Fault(self.silence(seconds, error)) from error
            pause(POLL_SECONDS)

    def silence(self, seconds, error):
        """Return the error message for a server that does not answer."""
        if self.server["socket"]:
            return f"no MariaDB answers within {seconds} s: {error}; {journal('mariadb')}"
        said = str(error)
        if "Connection refused" in said:
            remedy = "Nothing listens there: correct the port, or start the database"
        elif re.search("timed out|unreachable|No route", said):
            remedy = "See that the database runs, and that its security group admits this node"
        else:
            remedy = "See that host and port are right, and that the database runs"
        return f"no database answers on {self.name} within {seconds} s: {said}. {remedy}"


def read_password(path):
    """Return the password in a file of one line."""
    return Path(path).read_text(encoding="utf-8").rstrip("\n")
