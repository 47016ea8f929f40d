# SPDX-License-Identifier: Apache-2.0
"""Programs with a time limit, in a clean environment. Standard library only: it runs on the node."""

from __future__ import annotations

import os
import subprocess

#: What clients must not find here: another server, other settings, or a password.
_FOREIGN = ("DOCKER", "ENROOT", "MYSQL", "MARIADB", "SACCTMGR", "SLURM")


class Fault(Exception):
    """What ends the work; one sentence."""


def environment():
    """What programs see of ours: no settings of a client, and the same language everywhere."""
    found = {key: value for key, value in os.environ.items() if not key.startswith(_FOREIGN)}
    return {**found, "LC_ALL": "C.UTF-8", "PATH": found.get("PATH", os.defpath) + ":/usr/sbin:/sbin"}


def run(command, seconds, data="", **options):
    """Exit status, output and errors of a program; 127 if there is none, 124 if it does not end.

    `data`, text or bytes, is its input; `options` are subprocess.run's, for a file as input or output.
    """
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    given = data.encode() if isinstance(data, str) else data
    try:
        done = subprocess.run(
            command,
            **({} if "stdin" in options else {"input": given}),
            **{**pipes, **options},
            env=environment(),
            timeout=seconds,
            check=False,
        )
    except FileNotFoundError:
        return 127, "", f"{command[0]}: not found"
    except subprocess.TimeoutExpired:
        return 124, "", f"{command[0]}: no end within {seconds} s"
    out, err = ((each or b"").decode(errors="replace") for each in (done.stdout, done.stderr))
    return done.returncode, out, err.strip()


def journal(unit, lines=12):
    """The last words of a unit."""
    _status, out, _err = run(["journalctl", f"--unit={unit}", f"--lines={lines}", "--no-pager", "--output=cat"], 20)
    return f"journal of {unit}:\n{out.rstrip()}"
