# SPDX-License-Identifier: Apache-2.0
"""Packages through apt-get and dpkg. Standard library only: it runs on the node."""

from __future__ import annotations

import os
import subprocess
import time

from ansible_collections.hyperpod.lifecycle.plugins.module_utils.commands import Fault

APT = (
    *("apt-get", "--assume-yes", "--no-install-recommends", "--quiet"),
    # Files in /etc that somebody has changed stay, and nobody is there to be asked.
    *("--option=Dpkg::Options::=--force-confdef", "--option=Dpkg::Options::=--force-confold"),
)
PATH = os.environ.get("PATH", os.defpath) + ":/usr/local/sbin:/usr/sbin:/sbin"
ENVIRONMENT = {
    "LC_ALL": "C.UTF-8",
    "PATH": PATH,
    "DEBIAN_FRONTEND": "noninteractive",
    # It would restart daemons that are none of ours, slurmd among them.
    "NEEDRESTART_SUSPEND": "1",
}
PAUSE_SECONDS = 5


def call(*command):
    """Whether it succeeded, and what it said. No limit: a package manager at work is never killed."""
    done = subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env={**os.environ, **ENVIRONMENT},
        check=False,
    )
    return done.returncode == 0, done.stdout.decode(errors="replace")


def install(packages, lock_seconds, attempts=3):
    """Install packages (names, ``name=version``, or paths) in one go. Fault with apt's words if it does not."""
    lock = f"--option=DPkg::Lock::Timeout={lock_seconds}"
    for attempt in range(attempts):
        if attempt:
            time.sleep(PAUSE_SECONDS)
            # The index may be older than the package that is asked for.
            call(*APT, lock, "update")
        # What a run that was killed has left.
        if call("dpkg", "--audit")[1].strip():
            call("dpkg", "--configure", "--pending")
        good, said = call(*APT, lock, "install", *packages)
        if good:
            return
    lines = [line.strip() for line in said.splitlines() if line.startswith(("E:", "W:", "dpkg:"))]
    raise Fault(f"apt-get does not install {', '.join(packages)}: {' '.join(lines[:4]) or said[-500:]}")


def versions(packages):
    """The version of each of these packages that is installed."""
    _good, said = call("dpkg-query", "--show", "--showformat=${Package} ${Version} ${db:Status-Status}\\n", *packages)
    rows = [line.split(" ") for line in said.splitlines()]
    return {row[0]: row[1] for row in rows if len(row) == 3 and row[2] == "installed"}


def older(one, other):
    """Is the first version older than the second, as Debian orders them?"""
    return call("dpkg", "--compare-versions", one, "lt", other)[0]
