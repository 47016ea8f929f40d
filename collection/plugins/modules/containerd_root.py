#!/usr/bin/python
# SPDX-License-Identifier: GPL-3.0-or-later
"""The folder of containerd's data, in its config.toml."""

from __future__ import annotations

DOCUMENTATION = r"""
module: containerd_root
short_description: Put containerd's data on a disk
description:
  - Sets C(root) in containerd's configuration; every other line stays. A root that is on the disk already stays.
  - What is written has been read by C(containerd config dump) first.
author: hyperpod-lifecycle maintainers
options:
  path:
    description: The file; it is made if it is missing.
    type: path
    default: /etc/containerd/config.toml
  disk:
    description: Mount point of the disk for container data; empty for the root disk, where nothing is changed.
    type: str
    required: true
  root:
    description: The folder on that disk.
    type: str
    required: true
attributes:
  check_mode:
    support: full
  diff_mode:
    support: full
"""

EXAMPLES = r"""
- name: Put containerd's data on the NVMe disk
  hyperpod.lifecycle.containerd_root:
    disk: /opt/dlami/nvme
    root: /opt/dlami/nvme/docker/containerd
"""

RETURN = r""" # """

import os
import tempfile
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.hyperpod.lifecycle.plugins.module_utils import docker
from ansible_collections.hyperpod.lifecycle.plugins.module_utils.commands import Fault, run
from ansible_collections.hyperpod.lifecycle.plugins.module_utils.files import difference, replace


def validate(text, root, folder):
    """Fault if the containerd that is installed does not read this root in it."""
    handle, name = tempfile.mkstemp(dir=folder)
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        file.write(text)
    status, out, err = run(["containerd", f"--config={name}", "config", "dump"], 30)
    os.unlink(name)
    if status == 127:
        return
    if status or docker.containerd_root(out) != root:
        raise Fault(err.replace(name, "config.toml") or f"containerd does not read {root} in it")


def main():
    """Entry point."""
    module = AnsibleModule(
        argument_spec={
            "path": {"type": "path", "default": "/etc/containerd/config.toml"},
            "disk": {"type": "str", "required": True},
            "root": {"type": "str", "required": True},
        },
        supports_check_mode=True,
    )
    path, disk, root = Path(module.params["path"]), module.params["disk"], module.params["root"]
    before = path.read_text(encoding="utf-8", errors="surrogateescape") if path.exists() else ""
    after = before
    if disk and not docker.inside(docker.containerd_root(before) or docker.CONTAINERD_ROOT, disk):
        after = docker.with_containerd_root(before, root)
        try:
            validate(after, root, module.tmpdir)
        except Fault as fault:
            module.fail_json(msg=f"{path}: containerd does not take root = {root}: {fault}. Nothing was changed")
        if not module.check_mode:
            path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    changed = replace(module, path, before, after, None if path.exists() else 0o644)
    module.exit_json(changed=changed, diff=difference(path, before, after))


if __name__ == "__main__":
    main()
