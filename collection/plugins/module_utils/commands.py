# SPDX-License-Identifier: Apache-2.0
"""Run programs with a time limit in a clean environment. Uses the standard library only."""

from __future__ import annotations

import os
import subprocess

#: Variables that would give clients another server, other settings, or a password.
_FOREIGN = ("DOCKER", "ENROOT", "MYSQL", "MARIADB", "SACCTMGR", "SLURM")


class Fault(Exception):
    """An error that ends a module, described in one sentence."""


def environment():
    """Return the environment for programs: without client settings, in the C locale."""
    found = {key: value for key, value in os.environ.items() if not key.startswith(_FOREIGN)}
    return {**found, "LC_ALL": "C.UTF-8", "PATH": found.get("PATH", os.defpath) + ":/usr/sbin:/sbin"}


def run(command, seconds, data="", **options):
    """Return exit status, output and errors of a program; status 127 if it is missing, 124 after a timeout.

    `data`, text or bytes, is its input. `options` are passed to subprocess.run, such as files for input or output.
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


def journal(unit, lines=12, since=0):
    """Return the last lines of a unit's journal, from the time `since` on, in seconds since the epoch."""
    words = [f"--unit={unit}", f"--lines={lines}", *([f"--since=@{since}"] if since else [])]
    _status, out, _err = run(["journalctl", *words, "--no-pager", "--output=cat"], 20)
    return f"journal of {unit}:\n{out.rstrip()}"
