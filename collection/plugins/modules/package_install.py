#!/usr/bin/python
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# Not ansible.builtin.apt: its update of the package lists fails if any repository is broken or changed its label. It
# does not wait for the lock of the lists, lets needrestart restart daemons, and looks for packages instead of programs,
# so that a program from another source is installed twice.
"""Install the packages of missing programs."""

from __future__ import annotations

DOCUMENTATION = r"""
module: package_install
short_description: Install the packages whose programs are missing
description:
  - Looks for programs, not packages. A program from another package, or from an earlier one of the list, counts as
    installed, and an incomplete installation is completed.
  - Packages that a killed run left unconfigured are configured first. Recommended packages are not installed.
extends_documentation_fragment:
  - hyperpod.lifecycle.attributes
author:
  - hyperpod-lifecycle maintainers (@hyperpod-lifecycle)
options:
  programs:
    description: Program names or absolute paths, each with its package, in the order of installation.
    type: dict
    required: true
"""

EXAMPLES = r"""
- name: Install Docker
  hyperpod.lifecycle.package_install:
    programs: {dockerd: docker.io, docker: docker-cli}
"""

RETURN = r"""
packages:
  description: Packages that were missing.
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
    """Return whether a program or file is missing."""
    return not (os.path.exists(program) if os.path.isabs(program) else shutil.which(program, path=apt.PATH))


def install(programs):
    """Install what is missing and return the packages. Raises Fault if a program is still missing."""
    installed = []
    for program, package in programs.items():
        if missing(program):
            apt.install([package])
            installed.append(package)
        if missing(program):
            raise Fault(f"{package} is installed and has no {program}")
    return installed


def main():
    """Run the module."""
    module = AnsibleModule(argument_spec={"programs": {"type": "dict", "required": True}}, supports_check_mode=True)
    programs = module.params["programs"]
    packages = [package for program, package in programs.items() if missing(program)]
    # Its programs do not tell that a package was unpacked only.
    pending = apt.pending()
    try:
        if not module.check_mode:
            if pending:
                apt.configure_pending()
            packages = install(programs)
    except Fault as fault:
        module.fail_json(msg=str(fault))
    said = ", ".join(packages) or "none"
    module.exit_json(changed=bool(packages or pending), packages=packages, msg=f"missing packages: {said}")


if __name__ == "__main__":
    main()
