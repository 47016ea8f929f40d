# SPDX-License-Identifier: Apache-2.0
"""Run programs with a time limit in a clean environment. Uses the standard library only."""

from __future__ import annotations

import itertools
import os
import subprocess
import time

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


def run_started():
    """Return when this run of hyperpod-lifecycle started, in seconds since the epoch; 0 with plain Ansible."""
    return int(os.environ.get("HYPERPOD_LIFECYCLE_STARTED", "0"))


def lines_since(lines, moment):
    """Return the lines of a Slurm log from this time on, by the time in brackets that begins each entry."""
    first = time.strftime("[%Y-%m-%dT%H:%M:%S", time.localtime(moment))
    return list(itertools.dropwhile(lambda line: not line.startswith("[") or line < first, lines))


def journal(unit, lines=12, since=0):
    """Return the last lines of a unit's journal, from `since` on, in seconds since the epoch; 0 for the run's start."""
    since = since or run_started()
    words = [f"--unit={unit}", f"--lines={lines}", *([f"--since=@{since}"] if since else [])]
    _status, out, _err = run(["journalctl", *words, "--no-pager", "--output=cat"], 20)
    return f"journal of {unit}:\n{out.rstrip()}"
