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

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.hyperpod.lifecycle.plugins.module_utils import apt
from ansible_collections.hyperpod.lifecycle.plugins.module_utils.commands import Fault


def missing(program):
    """Is there no such program, or no such file?"""
    return not (os.path.exists(program) if os.path.isabs(program) else shutil.which(program, path=apt.PATH))


def main():
    """Entry point."""
    module = AnsibleModule(
        argument_spec={
            "programs": {"type": "dict", "required": True},
            "lock_seconds": {"type": "int", "default": 300},
        },
        supports_check_mode=True,
    )
    programs, installed = module.params["programs"], []
    for program, package in programs.items():
        if not missing(program):
            continue
        installed.append(package)
        if module.check_mode:
            continue
        try:
            apt.install([package], module.params["lock_seconds"])
            if missing(program):
                raise Fault(f"{package} is installed and has no {program}")
        except Fault as fault:
            module.fail_json(msg=str(fault))
    said = ", ".join(installed) or "none"
    module.exit_json(changed=bool(installed), packages=installed, msg=f"missing packages: {said}")


if __name__ == "__main__":
    main()
