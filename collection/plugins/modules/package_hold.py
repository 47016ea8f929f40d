#!/usr/bin/python
# SPDX-License-Identifier: GPL-3.0-or-later
"""Put installed packages on hold, by pattern."""

from __future__ import annotations

DOCUMENTATION = r"""
module: package_hold
short_description: Put installed packages on hold
description:
  - Every installed package whose name matches a pattern is put on hold. Nothing is taken off hold.
  - While another process has dpkg's lock the module waits, and names that process if it waits in vain.
author: hyperpod-lifecycle maintainers
options:
  name:
    description: Names of packages; C(*), C(?) and C([…]) stand for what they stand for in a shell.
    type: list
    elements: str
    required: true
  lock_seconds:
    description: How long to wait for the lock.
    type: int
    default: 0
attributes:
  check_mode:
    support: full
  diff_mode:
    support: full
"""

EXAMPLES = r"""
- name: Keep the kernel for which there is a Lustre module
  hyperpod.lifecycle.package_hold:
    name: [linux-image-*, lustre-client-modules-*]
    lock_seconds: 300
"""

RETURN = r"""
held:
  description: All matching packages, which are on hold now.
  type: list
  elements: str
  returned: success
"""

import fnmatch
import os
import re
import subprocess
import time
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule

POLL_SECONDS = 0.5
C_LOCALE = {"LC_ALL": "C"}


def installed(module, patterns):
    """Matching packages that are on the machine: those to hold, and those that are held."""
    query = ["dpkg-query", "--show", "--showformat=${binary:Package} ${db:Status-Want} ${db:Status-Status}\\n"]
    _status, out, _err = module.run_command(query, check_rc=True, environ_update=C_LOCALE)
    free, held = [], []
    for line in out.splitlines():
        package, want, status = line.split()
        name = package.split(":")[0]
        if status in ("not-installed", "config-files"):
            continue
        if any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns):
            (held if want == "hold" else free).append(package)
    return free, held


def holder(said):
    """The process that dpkg names in its complaint, in words."""
    match = re.search(r"pid (\d+)", said)
    if not match:
        return "another process"
    try:
        command = Path("/proc", match.group(1), "cmdline").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return f"process {match.group(1)}"
    return "process {} ({})".format(match.group(1), command.replace("\0", " ").strip() or "it has just ended")


def main():
    """Entry point."""
    module = AnsibleModule(
        argument_spec={
            "name": {"type": "list", "elements": "str", "required": True},
            "lock_seconds": {"type": "int", "default": 0},
        },
        supports_check_mode=True,
    )
    free, held = installed(module, module.params["name"])
    limit = module.params["lock_seconds"]
    deadline = time.monotonic() + limit
    selections = "".join(f"{package} hold\n" for package in free)
    while free and not module.check_mode:
        # module.run_command takes it for a fault of its own when dpkg ends without reading its input.
        done = subprocess.run(
            ["dpkg", "--set-selections"],
            input=selections,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, **C_LOCALE},
            check=False,
        )
        if done.returncode == 0:
            break
        said = done.stdout.strip()
        if "lock" not in said:
            module.fail_json(msg="dpkg does not hold {}: {}".format(", ".join(free), said))
        if time.monotonic() >= deadline:
            module.fail_json(
                msg=f"dpkg's lock was not free within {limit} s: {holder(said)} has it; let it end or stop it, "
                f"then run again ({said.splitlines()[0]})"
            )
        time.sleep(POLL_SECONDS)
    module.exit_json(
        changed=bool(free),
        held=sorted(held + free),
        msg="{}: {}".format("not on hold" if module.check_mode else "put on hold", ", ".join(free) or "none"),
        diff={"before": "", "after": selections},
    )


if __name__ == "__main__":
    main()
