# SPDX-License-Identifier: Apache-2.0
"""Installation of packages, in the same way as on_create.sh. Uses the standard library only.

It works with empty and outdated package lists, waits for locks, tolerates other repositories that are broken or have
changed their label, and restarts no daemons.
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

#: Seconds to wait for another process that holds a lock of apt or dpkg.
LOCK_SECONDS = 300
ATTEMPTS = 3
PAUSE_SECONDS = 5
LOCK_POLL_SECONDS = 1

APT = (
    *("apt-get", "--assume-yes", "--no-install-recommends", "--quiet"),
    # Changed files in /etc are kept, without a prompt.
    *("--option=Dpkg::Options::=--force-confdef", "--option=Dpkg::Options::=--force-confold"),
    "--option=Acquire::Retries=3",
)
PATH = os.environ.get("PATH", os.defpath) + ":/usr/local/sbin:/usr/sbin:/sbin"
ENVIRONMENT = {
    "LC_ALL": "C.UTF-8",
    "PATH": PATH,
    "DEBIAN_FRONTEND": "noninteractive",
    # needrestart would restart unrelated daemons, including slurmd.
    "NEEDRESTART_SUSPEND": "1",
}
SOURCES = "/etc/apt/sources.list.d"

#: apt waits for at most one of its locks, and dpkg for none.
_LOCKED = re.compile(r"[Cc]ould not get lock|[Uu]nable to (?:lock|acquire)|locked by another process")
_HOLDER = re.compile(r"(?:pid|process) (\d+)")


def call(*command, data=""):
    """Return success and output of a command. `data` is its input. No time limit: package managers are never killed."""
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
    """Repeat `call` while another process holds a lock. Raises Fault after LOCK_SECONDS."""
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
    """Return a description of the process that apt or dpkg names in its error."""
    match = _HOLDER.search(said)
    if not match:
        return "another process"
    try:
        command = Path("/proc", match[1], "cmdline").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return f"process {match[1]}"
    words = command.replace("\0", " ").strip() or "it has just ended"
    return f"process {match[1]} ({words})"


def pending():
    """Return whether a killed run has left packages unpacked or half configured."""
    return bool(call("dpkg", "--audit")[1].strip())


def configure_pending():
    """Configure what a killed run has left."""
    unlocked("dpkg", "--configure", "--pending")


def install(packages, attempts=ATTEMPTS):
    """Install packages (names, ``name=version``, or paths) at once. Raises Fault with apt's output if that fails."""
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
            if pending():
                configure_pending()
            good, said = unlocked(*APT, *options, "install", *packages)
            if good:
                return
    lines = [line.strip() for line in said.splitlines() if line.startswith(("E:", "W:", "dpkg:"))]
    raise Fault(f"apt-get does not install {', '.join(packages)}: {' '.join(lines[:4]) or said[-500:]}")


@contextlib.contextmanager
def _readable_sources():
    """Return apt-get options that skip unreadable files in sources.list.d, because one of them makes apt-get fail."""
    with tempfile.TemporaryDirectory() as folder:
        options = (f"--option=Dir::Etc::SourceParts={folder}", "--option=APT::Get::List-Cleanup=false")
        for path in sorted(glob.glob(f"{SOURCES}/*.list") + glob.glob(f"{SOURCES}/*.sources")):
            link = os.path.join(folder, os.path.basename(path))
            os.symlink(path, link)
            if not call("apt-get", *options, "indextargets")[0]:
                os.unlink(link)
        yield options


def versions(packages):
    """Return the versions of those packages that are installed."""
    _good, said = call("dpkg-query", "--show", "--showformat=${Package} ${Version} ${db:Status-Status}\\n", *packages)
    rows = [line.split(" ") for line in said.splitlines()]
    return {row[0]: row[1] for row in rows if len(row) == 3 and row[2] == "installed"}


def older(one, other):
    """Return whether the first version is older than the second, in Debian's order."""
    return call("dpkg", "--compare-versions", one, "lt", other)[0]
