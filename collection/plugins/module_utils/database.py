# SPDX-License-Identifier: Apache-2.0
"""slurmdbd's database as slurmdbd itself reaches it, wherever it is. Standard library only: it runs on the node."""

from __future__ import annotations

import gzip
import os
import shutil
import subprocess
import tempfile
from contextlib import contextmanager

from ansible_collections.hyperpod.lifecycle.plugins.module_utils import slurm
from ansible_collections.hyperpod.lifecycle.plugins.module_utils.commands import Fault, environment

#: slurmdbd's StorageParameters -> options of MariaDB's clients.
_TLS = {"SSL_CA": "ssl-ca", "SSL_CAPATH": "ssl-capath", "SSL_CERT": "ssl-cert", "SSL_KEY": "ssl-key"}


class Database:
    """The database that a slurmdbd.conf names. Passwords go through a file in memory, never through a command line."""

    def __init__(self, slurmdbd_conf, seconds=60):
        found = {key.lower(): value for key, value in slurm.parameters(slurmdbd_conf)}
        self.host = found.get("storagehost", "localhost")
        self.port = found.get("storageport", "3306")
        self.name = found.get("storageloc", "slurm_acct_db")
        self.seconds = seconds
        options = {
            "host": self.host,
            "user": found.get("storageuser", "root"),
            "password": found.get("storagepass", ""),
        }
        if self.host != "localhost":
            options.update({"port": self.port, "protocol": "tcp"})
        for pair in found.get("storageparameters", "").split(","):
            key, _, value = pair.partition("=")
            if key in _TLS:
                options[_TLS[key]] = value
        if "ssl-ca" in options or "ssl-capath" in options:
            options["ssl-verify-server-cert"] = "1"
        quoted = (f'{key}="{_quote(value)}"' for key, value in options.items())
        # mariadb-dump does not know the last one.
        self._options = "\n".join(["[client]", *quoted, "[mysql]", f"connect-timeout={min(seconds, 30)}", ""])

    @property
    def where(self):
        return f"database {self.name} on {self.host}"

    def ask(self, statement):
        """The rows of an answer; Fault if there is none."""
        with self._command("mariadb", "--batch", "--raw", "--skip-column-names", self.name) as (command, keep):
            try:
                done = subprocess.run(
                    command,
                    input=statement.encode(),
                    capture_output=True,
                    pass_fds=[keep],
                    env=environment(),
                    timeout=self.seconds,
                    check=False,
                )
            except subprocess.TimeoutExpired:
                raise Fault(f"{self.where}: no answer within {self.seconds} s") from None
        if done.returncode:
            raise Fault(f"{self.where}: {done.stderr.decode(errors='replace').strip()}")
        return [line.split("\t") for line in done.stdout.decode(errors="replace").splitlines()]

    def dump(self, path):
        """Write the whole database, as it is at one moment, into a gzip file that is private from birth."""
        # One transaction: slurmdbd goes on meanwhile. slurmdbd makes its own stored routines when it starts.
        words = ["--single-transaction", "--quick", "--skip-lock-tables", "--no-tablespaces", "--hex-blob", self.name]
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with (
            os.fdopen(descriptor, "wb") as file,
            gzip.GzipFile(fileobj=file, mode="wb", compresslevel=1) as dest,
            self._program("mariadb-dump", words, stdout=subprocess.PIPE) as program,
        ):
            shutil.copyfileobj(program.stdout, dest, 1 << 20)

    def load(self, path):
        """Let the database hold what a dump has, and nothing else."""
        tables = [name for (name,) in self.ask("SHOW TABLES")]
        drop = "".join(f"DROP TABLE IF EXISTS `{name}`;\n" for name in tables)
        with (
            gzip.open(path, "rb") as source,
            self._program("mariadb", [self.name], stdin=subprocess.PIPE) as program,
        ):
            try:
                program.stdin.write(f"SET FOREIGN_KEY_CHECKS=0;\n{drop}".encode())
                shutil.copyfileobj(source, program.stdin, 1 << 20)
                program.stdin.close()
            except BrokenPipeError:  # it says why when it ends
                pass

    @contextmanager
    def _command(self, *words):
        # A file in memory that ends with us, for the clients refuse one that others may write.
        keep = os.memfd_create("mariadb")
        try:
            os.fchmod(keep, 0o600)
            os.write(keep, self._options.encode())
            yield [words[0], f"--defaults-file=/proc/self/fd/{keep}", *words[1:]], keep
        finally:
            os.close(keep)

    @contextmanager
    def _program(self, name, words, **pipes):
        """A client whose input or output is a stream; Fault unless it ends well."""
        with self._command(name, *words) as (command, keep), tempfile.TemporaryFile() as said:
            try:
                program = subprocess.Popen(command, stderr=said, pass_fds=[keep], env=environment(), **pipes)
            except FileNotFoundError:
                raise Fault(f"{name} is not installed") from None
            try:
                yield program
                status = program.wait()
            finally:
                program.kill()
                program.wait()
            if status:
                said.seek(0)
                raise Fault(f"{self.where}: {name}: {said.read().decode(errors='replace').strip()[-1000:]}")


def _quote(value):
    """A value in double quotes of an option file."""
    return value.replace("\\", "\\\\").replace('"', '\\"')
