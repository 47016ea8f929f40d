#!/usr/bin/python
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# No builtin: one task polls which mount is a disk of this node and whether one is still being mounted.
"""Find the disk for all container data of a node."""

from __future__ import annotations

DOCUMENTATION = r"""
module: scratch_disk_find
short_description: Find the disk for container data
description:
  - Finds the first of O(paths) at which a disk is mounted, or the root disk if there is none. A plain directory, a
    network file system, a file system in memory and a read-only file system are not disks.
  - If O(unit), which mounts the first path, exists, the module waits for it to finish. It changes nothing.
extends_documentation_fragment:
  - hyperpod.lifecycle.attributes
author:
  - hyperpod-lifecycle maintainers (@hyperpod-lifecycle)
options:
  paths:
    description: Possible mount points of disks, in order of preference.
    type: list
    elements: path
    required: true
  root_path:
    description: Directory for container data on the root disk.
    type: path
    required: true
  unit:
    description: Unit that mounts the first of O(paths).
    type: str
    required: true
  wait_seconds:
    description: Seconds to wait for the unit.
    type: int
    default: 120
  shared_paths:
    description: Possible mount points of a shared file system, for data that all nodes share.
    type: list
    elements: path
    default: []
"""

EXAMPLES = r"""
- name: Find the disk for container data
  hyperpod.lifecycle.scratch_disk_find:
    paths: [/opt/dlami/nvme, /opt/sagemaker]
    root_path: /var/lib/hyperpod-scratch
    unit: dlami-nvme.service
"""

RETURN = r"""
folder:
  description: Mount point of the disk, or O(root_path).
  type: str
  returned: success
root:
  description: Whether container data is on the root disk.
  type: bool
  returned: success
shared:
  description: The first of O(shared_paths) at which a shared file system is mounted; empty if there is none.
  type: str
  returned: success
note:
  description: Note for the summary. Empty if there is none.
  type: str
  returned: success
"""

import os
import time
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.hyperpod.lifecycle.plugins.module_utils import scratch
from ansible_collections.hyperpod.lifecycle.plugins.module_utils.units import look

POLL_SECONDS = 0.5
MOUNTINFO = Path("/proc/self/mountinfo")


def usable(path):
    """Is a disk that can be written mounted here?"""
    mountinfo = MOUNTINFO.read_text(encoding="utf-8", errors="surrogateescape")
    # What is asked of the file system itself is asked of none that could hang.
    return scratch.is_disk(mountinfo, path) and not os.statvfs(path).f_flag & os.ST_RDONLY


def settled(unit, seconds):
    """The state of the unit, once it is no longer at work."""
    deadline = time.monotonic() + seconds
    while True:
        found = scratch.state(look(unit, scratch.PROPERTIES))
        if found != "waiting" or time.monotonic() >= deadline:
            return found
        time.sleep(POLL_SECONDS)


def main():
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "paths": {"type": "list", "elements": "path", "required": True},
            "root_path": {"type": "path", "required": True},
            "unit": {"type": "str", "required": True},
            "wait_seconds": {"type": "int", "default": 120},
            "shared_paths": {"type": "list", "elements": "path", "default": []},
        },
        supports_check_mode=True,
    )
    paths, unit = [os.path.realpath(path) for path in module.params["paths"]], module.params["unit"]
    limit = 0 if module.check_mode else module.params["wait_seconds"]
    found = settled(unit, limit)
    disks = [path for path in paths if usable(path)]
    notes = [scratch.excuse(unit, paths[0], found, limit)] if paths[0] not in disks else []
    # A node that has no disk for it is as it was meant to be.
    if not disks and any(notes):
        root = os.statvfs("/")
        size, free = (scratch.gibibytes(root.f_frsize * blocks) for blocks in (root.f_blocks, root.f_bavail))
        notes.append(f"container data is on the root disk, which has {size} ({free} free)")
    folder = disks[0] if disks else module.params["root_path"]
    mountinfo = MOUNTINFO.read_text(encoding="utf-8", errors="surrogateescape")
    shared = next((path for path in module.params["shared_paths"] if scratch.is_shared(mountinfo, path)), "")
    note = "; ".join(filter(None, notes))
    said = f"container data goes to {folder}"
    module.exit_json(changed=False, folder=folder, root=not disks, shared=shared, note=note, msg=said)


if __name__ == "__main__":
    main()
