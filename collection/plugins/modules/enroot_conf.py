#!/usr/bin/python
# SPDX-License-Identifier: GPL-3.0-or-later
"""Enroot's configuration."""

from __future__ import annotations

DOCUMENTATION = r"""
module: enroot_conf
short_description: Write enroot.conf, unless the image has a good one
description:
  - A file of somebody else that names all four folders, and has containers and temporary files on the disk, stays.
  - Any other is written whole.
author: hyperpod-lifecycle maintainers
options:
  path:
    description: The file.
    type: path
    default: /etc/enroot/enroot.conf
  disk:
    description: Mount point of the disk for container data; empty for the root disk.
    type: str
    required: true
  settings:
    description: Names and values.
    type: dict
    required: true
attributes:
  check_mode:
    support: full
  diff_mode:
    support: full
"""

EXAMPLES = r"""
- name: Put Enroot's data on the NVMe disk
  hyperpod.lifecycle.enroot_conf:
    disk: /opt/dlami/nvme
    settings:
      ENROOT_DATA_PATH: /opt/dlami/nvme/enroot/data/user-$(id -u)
"""

RETURN = r"""
kept:
  description: Whether the file is somebody else's and good.
  type: bool
  returned: success
"""

from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.hyperpod.lifecycle.plugins.module_utils import enroot
from ansible_collections.hyperpod.lifecycle.plugins.module_utils.files import difference, replace


def main():
    """Entry point."""
    module = AnsibleModule(
        argument_spec={
            "path": {"type": "path", "default": "/etc/enroot/enroot.conf"},
            "disk": {"type": "str", "required": True},
            "settings": {"type": "dict", "required": True},
        },
        supports_check_mode=True,
    )
    path, disk = Path(module.params["path"]), module.params["disk"]
    before = path.read_text(encoding="utf-8", errors="surrogateescape") if path.exists() else ""
    if enroot.is_good(before, disk):
        module.exit_json(changed=False, kept=True, msg=f"{path} of the image is good")
    try:
        after = enroot.configuration(module.params["settings"])
    except ValueError as fault:
        module.fail_json(msg=f"containers_enroot_settings: {fault}. Nothing was changed")
    if not module.check_mode:
        path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    changed = replace(module, path, before, after, 0o644)
    module.exit_json(
        changed=changed,
        kept=False,
        msg=f"{path} {'is not what it must be' if changed else 'is as it must be'}",
        diff=difference(path, before, after),
    )


if __name__ == "__main__":
    main()
