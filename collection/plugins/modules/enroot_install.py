#!/usr/bin/python
# SPDX-License-Identifier: GPL-3.0-or-later
# No builtin: which versions are there decides what is downloaded, and nothing may become older.
"""Which of Enroot's packages are missing, and where they are to be had; and their installation."""

from __future__ import annotations

DOCUMENTATION = r"""
module: enroot_install
short_description: See which packages of Enroot are missing, and install them
description:
  - Both packages of the image are kept, whatever their version, unless O(version) asks for a newer one. Nothing becomes
    older. Where one is missing it comes in the other's version.
  - Without O(folder) nothing is installed, and RV(downloads) says what must be downloaded first.
author: hyperpod-lifecycle maintainers
options:
  architecture:
    description: The node's architecture, in Debian's spelling.
    type: str
    required: true
  checksums:
    description: By architecture and version, the SHA-256 of each package; the first version is the default.
    type: dict
    required: true
  version:
    description: The version that there must be at least; empty for the image's, else the default.
    type: str
    default: ""
  disk:
    description: Mount point of the disk for container data; empty for the root disk.
    type: str
    default: ""
  folder:
    description: Where the packages have been downloaded to.
    type: path
attributes:
  check_mode:
    support: full
"""

EXAMPLES = r"""
- name: Look for Enroot
  hyperpod.lifecycle.enroot_install:
    architecture: amd64
    checksums: "{{ containers_enroot_checksums }}"
"""

RETURN = r"""
usable:
  description: Whether Enroot is there, or can be.
  type: bool
  returned: success
version:
  description: The version that there will be; empty if the one that is there is kept.
  type: str
  returned: success
downloads:
  description: What is missing, each with C(file) and C(checksum).
  type: list
  elements: dict
  returned: success
conf_is_good:
  description: Whether C(enroot.conf) is somebody else's and has all of Enroot's data where it should be.
  type: bool
  returned: success
note:
  description: Why it cannot be had; empty if there is nothing to say.
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
