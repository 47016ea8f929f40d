#!/usr/bin/python
# SPDX-License-Identifier: GPL-3.0-or-later
"""Packages for the programs that a node lacks."""

from __future__ import annotations

DOCUMENTATION = r"""
module: apt_programs
short_description: Install the packages whose programs are missing
description:
  - Each program is looked for before its package is installed, one after the other. So a program that has come from
    another package, or with an earlier one of the list, is left alone, and a half-done installation is completed.
  - What a killed run has left unconfigured is configured first. Recommended packages are not installed.
author: hyperpod-lifecycle maintainers
options:
  programs:
    description: Program or absolute path, and the package that has it, in the order of installation.
    type: dict
    required: true
  lock_seconds:
    description: How long to wait for another process that holds the package lock.
    type: int
    default: 300
  attempts:
    description: How often a package is tried.
    type: int
    default: 3
attributes:
  check_mode:
    support: full
"""

EXAMPLES = r"""
- name: Install Docker
  hyperpod.lifecycle.apt_programs:
    programs: {dockerd: docker.io, docker: docker-cli}
"""

RETURN = r"""
packages:
  description: Those that were missing.
  type: list
  elements: str
  returned: success
"""

import os
import shutil
import subprocess
import time

from ansible.module_utils.basic import AnsibleModule

APT = ["apt-get", "--assume-yes", "--no-install-recommends", "--quiet"]
PATH = os.environ.get("PATH", os.defpath) + ":/usr/local/sbin:/usr/sbin:/sbin"
ENVIRONMENT = {
    "LC_ALL": "C.UTF-8",
    "PATH": PATH,
    "DEBIAN_FRONTEND": "noninteractive",
    # It would restart daemons that are none of ours, slurmd among them.
    "NEEDRESTART_SUSPEND": "1",
}
PAUSE_SECONDS = 5
#: A package manager at work is never killed.
NO_LIMIT = None


def missing(program):
    """Is there no such program, or no such file?"""
    return not (os.path.exists(program) if os.path.isabs(program) else shutil.which(program, path=PATH))


def call(*command):
    """Whether it succeeded, and what it said."""
    done = subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env={**os.environ, **ENVIRONMENT},
        timeout=NO_LIMIT,
        check=False,
    )
    return done.returncode == 0, done.stdout.decode(errors="replace")


def install(package, lock_seconds, attempts):
    """Empty, or what apt said at the last attempt."""
    said = ""
    lock = f"--option=DPkg::Lock::Timeout={lock_seconds}"
    for attempt in range(attempts):
        if attempt:
            time.sleep(PAUSE_SECONDS)
            # The index may be older than the package that is asked for.
            call(*APT, lock, "update")
        if call("dpkg", "--audit")[1].strip():
            call("dpkg", "--configure", "--pending")
        good, said = call(*APT, lock, "install", package)
        if good:
            return ""
    lines = [line.strip() for line in said.splitlines() if line.startswith(("E:", "W:", "dpkg:"))]
    return " ".join(lines[:4]) or said[-500:]


def main():
    """Entry point."""
    module = AnsibleModule(
        argument_spec={
            "programs": {"type": "dict", "required": True},
            "lock_seconds": {"type": "int", "default": 300},
            "attempts": {"type": "int", "default": 3},
        },
        supports_check_mode=True,
    )
    programs, installed = module.params["programs"], []
    for program, package in programs.items():
        if not missing(program):
            continue
        if not module.check_mode:
            fault = install(package, module.params["lock_seconds"], module.params["attempts"])
            if fault:
                module.fail_json(msg=f"apt-get does not install {package}: {fault}", packages=installed)
            if missing(program):
                module.fail_json(msg=f"{package} is installed and has no {program}", packages=installed)
        installed.append(package)
    said = ", ".join(installed) or "none"
    module.exit_json(changed=bool(installed), packages=installed, msg=f"missing packages: {said}")


if __name__ == "__main__":
    main()
