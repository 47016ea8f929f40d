# SPDX-License-Identifier: Apache-2.0
"""Programs with a time limit, in a clean environment. Standard library only: it runs on the node."""

from __future__ import annotations

import os
import subprocess

#: MariaDB's clients must not find other settings or a password here.
_FOREIGN = ("MYSQL", "MARIADB", "SACCTMGR", "SLURM")


class Fault(Exception):
    """What ends the work; one sentence."""


def environment():
    """What programs see of ours: no settings of a client, and the same language everywhere."""
    found = {key: value for key, value in os.environ.items() if not key.startswith(_FOREIGN)}
    return {**found, "LC_ALL": "C.UTF-8", "PATH": found.get("PATH", os.defpath) + ":/usr/sbin:/sbin"}


def run(command, seconds, text=""):
    """Exit status, output and errors of a program; 127 if there is none, 124 if it does not end."""
    try:
        done = subprocess.run(
            command,
            input=text.encode(),
            capture_output=True,
            env=environment(),
            timeout=seconds,
            check=False,
        )
    except FileNotFoundError:
        return 127, "", f"{command[0]}: not found"
    except subprocess.TimeoutExpired:
        return 124, "", f"{command[0]}: no end within {seconds} s"
    return done.returncode, done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace").strip()


def journal(unit, lines=12):
    """The last words of a unit."""
    _status, out, _err = run(["journalctl", f"--unit={unit}", f"--lines={lines}", "--no-pager", "--output=cat"], 20)
    return f"journal of {unit}:\n{out.rstrip()}"


class MariaDB:
    """The server, as root over its socket; statements go through standard input."""

    def __init__(self, socket, seconds=60):
        self.socket = socket
        self.seconds = seconds

    def ask(self, *statements):
        """The rows of all answers. Fault if the server refuses; ConnectionError if there is none."""
        client = ["mariadb", "--no-defaults", "--protocol=socket", f"--socket={self.socket}", "--user=root"]
        text = ";\n".join([*statements, ""])
        status, out, err = run([*client, "--batch", "--raw", "--skip-column-names"], self.seconds, text)
        if status == 0:
            return [line.split("\t") for line in out.splitlines()]
        if "ERROR 2002" in err:
            raise ConnectionError(err)
        if "ERROR 1045" in err or "ERROR 1698" in err:
            raise Fault(
                f"MariaDB does not let root in over {self.socket} ({err}); as its administrator: ALTER USER "
                "root@localhost IDENTIFIED VIA unix_socket; then hyperpod-lifecycle apply --tags accounting"
            )
        raise Fault(f"MariaDB: {err}")
