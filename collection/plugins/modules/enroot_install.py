#!/usr/bin/python
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# No builtin: the installed versions decide what is downloaded, and nothing may be downgraded.
"""Find out which of Enroot's packages are missing, and install them."""

from __future__ import annotations

DOCUMENTATION = r"""
module: enroot_install
short_description: Look for Enroot and install its missing packages
description:
  - The packages of the image are kept, whatever their version, unless O(version) asks for a newer one. Packages are
    never downgraded. If one package is missing, it is installed in the version of the other.
  - Without O(folder) nothing is installed, and RV(downloads) lists the files to download.
extends_documentation_fragment:
  - hyperpod.lifecycle.attributes
author:
  - hyperpod-lifecycle maintainers (@hyperpod-lifecycle)
options:
  architecture:
    description: Architecture of the node, in Debian's spelling.
    type: str
    required: true
  checksums:
    description: SHA-256 of each package, by architecture and version. The first version is the default.
    type: dict
    required: true
  version:
    description: Minimum version. If empty, the image's version, else the default.
    type: str
    default: ""
  disk:
    description: Mount point of the disk for container data. Empty for the root disk.
    type: str
    default: ""
  folder:
    description: Directory of the downloaded packages.
    type: path
"""

EXAMPLES = r"""
- name: Look for Enroot
  hyperpod.lifecycle.enroot_install:
    architecture: amd64
    checksums: "{{ containers_enroot_checksums }}"
"""

RETURN = r"""
usable:
  description: Whether Enroot is installed, or can be.
  type: bool
  returned: success
version:
  description: Version to install. Empty if the installed one is kept.
  type: str
  returned: success
downloads:
  description: Missing packages, each with C(file) and C(checksum).
  type: list
  elements: dict
  returned: success
conf_is_good:
  description: Whether C(enroot.conf) is managed by others and keeps all of Enroot's data on the right disk.
  type: bool
  returned: success
note:
  description: Reason why Enroot is not available. Empty if it is.
  type: str
  returned: success
"""

import os
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.hyperpod.lifecycle.plugins.module_utils import apt, enroot
from ansible_collections.hyperpod.lifecycle.plugins.module_utils.commands import Fault

CONF = Path("/etc/enroot/enroot.conf")


def main():
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "architecture": {"type": "str", "required": True},
            "checksums": {"type": "dict", "required": True},
            "version": {"type": "str", "default": ""},
            "disk": {"type": "str", "default": ""},
            "folder": {"type": "path"},
        },
        supports_check_mode=True,
    )
    checksums, folder = module.params["checksums"], module.params["folder"]
    architecture = module.params["architecture"]
    there = apt.versions(enroot.PACKAGES)
    version = enroot.wanted_version(there, checksums.get(architecture) or {}, module.params["version"], apt.older)
    conf = CONF.read_text(encoding="utf-8", errors="replace") if CONF.exists() else ""
    result = {"changed": False, "usable": True, "version": version or "", "downloads": [], "note": ""}
    result["conf_is_good"] = enroot.is_good(conf, module.params["disk"])
    if version is None and there:
        module.exit_json(**result, msg=f"Enroot is there: {there}")
    try:
        files = enroot.downloads(version, architecture, checksums)
    except ValueError as fault:
        # What works goes on working.
        result["usable"] = len(there) == len(enroot.PACKAGES)
        module.exit_json(**{**result, "version": "", "note": str(fault)}, msg=str(fault))
    result["downloads"] = files
    if folder:
        result["changed"] = True
        try:
            if not module.check_mode:
                apt.install([os.path.join(folder, each["file"]) for each in files])
        except Fault as fault:
            module.fail_json(msg=str(fault))
    module.exit_json(**result, msg=f"Enroot {version} is missing")


if __name__ == "__main__":
    main()
