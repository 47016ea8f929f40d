#!/usr/bin/python
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# Not ansible.builtin.apt: the image's version of one package determines the versions of the other three.
"""Install NVIDIA's container toolkit on nodes with a GPU."""

from __future__ import annotations

DOCUMENTATION = r"""
module: nvidia_toolkit_install
short_description: Install NVIDIA's container toolkit on nodes with a GPU
description:
  - Installs its four packages in one version. The image's version takes precedence over O(version). Packages are never
    downgraded.
  - Does nothing on a node without an NVIDIA device or without its driver. C(msg) names what is missing.
extends_documentation_fragment:
  - hyperpod.lifecycle.attributes
author:
  - hyperpod-lifecycle maintainers (@hyperpod-lifecycle)
options:
  version:
    description: Version to install if the image has none, as apt spells it.
    type: str
    required: true
"""

EXAMPLES = r"""
- name: Install NVIDIA's toolkit
  hyperpod.lifecycle.nvidia_toolkit_install:
    version: 1.18.1-1
"""

RETURN = r"""
wanted:
  description: Whether this node needs the toolkit.
  type: bool
  returned: success
packages:
  description: Packages of the toolkit.
  type: list
  elements: str
  returned: success
missing:
  description: Packages that were missing, with their version.
  type: list
  elements: str
  returned: success
note:
  description: Note for the summary. Empty if there is none.
  type: str
  returned: success
"""

import glob
import os

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.hyperpod.lifecycle.plugins.module_utils import apt, nvidia
from ansible_collections.hyperpod.lifecycle.plugins.module_utils.commands import Fault

DEVICES = "/dev/nvidia[0-9]*"
VENDORS = "/sys/bus/pci/devices/*/vendor"
NVIDIA = "0x10de"
DRIVER = "/proc/driver/nvidia/version"


def has_device():
    """Is there an NVIDIA device, with or without a driver?"""
    for path in glob.glob(VENDORS):
        with open(path, encoding="ascii") as file:
            if file.read().strip() == NVIDIA:
                return True
    return bool(glob.glob(DEVICES))


def main():
    """Run the module."""
    module = AnsibleModule(argument_spec={"version": {"type": "str", "required": True}}, supports_check_mode=True)
    devices = has_device()
    reason = nvidia.reason(devices, os.path.exists(DRIVER))
    if reason:
        note = f"{reason}, so NVIDIA's container toolkit is left out" if devices else ""
        module.exit_json(changed=False, wanted=False, packages=[], missing=[], note=note, msg=reason)
    missing = nvidia.plan(apt.versions(nvidia.PACKAGES), module.params["version"], apt.older)
    try:
        if missing and not module.check_mode:
            apt.install(missing)
    except Fault as fault:
        module.fail_json(msg=str(fault))
    said = ", ".join(missing) or "none"
    module.exit_json(
        changed=bool(missing),
        wanted=True,
        packages=list(nvidia.PACKAGES),
        missing=missing,
        note="",
        msg=f"missing packages: {said}",
    )


if __name__ == "__main__":
    main()
