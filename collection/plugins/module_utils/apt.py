# SPDX-License-Identifier: Apache-2.0
"""The one way to install packages, as on_create.sh does it too. Standard library only: it runs on the node.

It gets along with empty and old package lists, with a held lock, and with repositories of others that are broken or
have another label than before, and it restarts nobody's daemon.
"""

from __future__ import annotations

import contextlib
import glob
import os
import re
import subprocess
import tempfile
import time
from pathlib import Path

from ansible_collections.hyperpod.lifecycle.plugins.module_utils.commands import Fault
from ansible_collections.hyperpod.lifecycle.plugins.module_utils.waits import pause

#: How long to wait for another process that holds a lock of apt or dpkg.
LOCK_SECONDS = 300
ATTEMPTS = 3
PAUSE_SECONDS = 5
LOCK_POLL_SECONDS = 1

APT = (
    *("apt-get", "--assume-yes", "--no-install-recommends", "--quiet"),
    # Files in /etc that somebody has changed stay, and nobody is there to be asked.
    *("--option=Dpkg::Options::=--force-confdef", "--option=Dpkg::Options::=--force-confold"),
    "--option=Acquire::Retries=3",
)
PATH = os.environ.get("PATH", os.defpath) + ":/usr/local/sbin:/usr/sbin:/sbin"
ENVIRONMENT = {
    "LC_ALL": "C.UTF-8",
    "PATH": PATH,
    "DEBIAN_FRONTEND": "noninteractive",
    # It would restart daemons that are none of ours, slurmd among them.
    "NEEDRESTART_SUSPEND": "1",
}
SOURCES = "/etc/apt/sources.list.d"

#: apt waits for one of its locks at most, and dpkg for none.
_LOCKED = re.compile(r"[Cc]ould not get lock|[Uu]nable to (?:lock|acquire)|locked by another process")
_HOLDER = re.compile(r"(?:pid|process) (\d+)")


def call(*command, data=""):
    """Whether it succeeded, and what it said; `data` is its input. No limit: a package manager is never killed."""
    done = subprocess.run(
        command,
        input=data.encode(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env={**os.environ, **ENVIRONMENT},
        check=False,
    )
    return done.returncode == 0, done.stdout.decode(errors="replace")


def unlocked(*command, data=""):
    """`call`, again while another process holds a lock; Fault if it does so for LOCK_SECONDS."""
    deadline = time.monotonic() + LOCK_SECONDS
    while True:
        good, said = call(*command, data=data)
        if good or not _LOCKED.search(said):
            return good, said
        if time.monotonic() >= deadline:
            first = next(line for line in said.splitlines() if _LOCKED.search(line))
            raise Fault(
                f"the package lock was not free within {LOCK_SECONDS} s: {holder(said)} has it; let it end or stop it, "
                f"then run again ({first})"
            )
        time.sleep(LOCK_POLL_SECONDS)


def holder(said):
    """The process that apt or dpkg names in its complaint, in words."""
    match = _HOLDER.search(said)
    if not match:
        return "another process"
    try:
        command = Path("/proc", match[1], "cmdline").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return f"process {match[1]}"
    words = command.replace("\0", " ").strip() or "it has just ended"
    return f"process {match[1]} ({words})"


def install(packages, attempts=ATTEMPTS):
    """Install packages (names, ``name=version``, or paths) in one go. Fault with apt's words if it does not."""
    with contextlib.ExitStack() as stack:
        options, said = (), ""
        for attempt in range(attempts):
            if attempt:
                pause(PAUSE_SECONDS)
                if "sources could not be read" in said:
                    options = stack.enter_context(_readable_sources())
                # The lists may be older than the package, or not there at all. It fails if any repository is broken;
                # those of the others are up to date then.
                unlocked(*APT, *options, "--allow-releaseinfo-change", "update")
            # What a run that was killed has left.
            if call("dpkg", "--audit")[1].strip():
                unlocked("dpkg", "--configure", "--pending")
            good, said = unlocked(*APT, *options, "install", *packages)
            if good:
                return
    lines = [line.strip() for line in said.splitlines() if line.startswith(("E:", "W:", "dpkg:"))]
    raise Fault(f"apt-get does not install {', '.join(packages)}: {' '.join(lines[:4]) or said[-500:]}")


@contextlib.contextmanager
def _readable_sources():
    """Options for apt-get that leave out files of sources.list.d which it cannot read: with one, it does nothing."""
    with tempfile.TemporaryDirectory() as folder:
        options = (f"--option=Dir::Etc::SourceParts={folder}", "--option=APT::Get::List-Cleanup=false")
        for path in sorted(glob.glob(f"{SOURCES}/*.list") + glob.glob(f"{SOURCES}/*.sources")):
            link = os.path.join(folder, os.path.basename(path))
            os.symlink(path, link)
            if not call("apt-get", *options, "indextargets")[0]:
                os.unlink(link)
        yield options


def versions(packages):
    """The version of each of these packages that is installed."""
    _good, said = call("dpkg-query", "--show", "--showformat=${Package} ${Version} ${db:Status-Status}\\n", *packages)
    rows = [line.split(" ") for line in said.splitlines()]
    return {row[0]: row[1] for row in rows if len(row) == 3 and row[2] == "installed"}


def older(one, other):
    """Is the first version older than the second, as Debian orders them?"""
    return call("dpkg", "--compare-versions", one, "lt", other)[0]
