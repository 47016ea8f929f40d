#!/usr/bin/python
# SPDX-License-Identifier: GPL-3.0-or-later
"""Settings in daemon.json, beside those that are there."""

from __future__ import annotations

DOCUMENTATION = r"""
module: docker_config
short_description: Merge settings into daemon.json
description:
  - What the file has stays, but for O(settings) and for a C(data-root) that is on another disk than O(disk).
  - A file that is no JSON object ends the run before anything changes. What is written has been read by
    C(dockerd --validate) first, where there is one that can do it.
author: hyperpod-lifecycle maintainers
options:
  path:
    description: The file.
    type: path
    default: /etc/docker/daemon.json
  disk:
    description: Mount point of the disk for container data; empty for the root disk, where C(data-root) stays as it is.
    type: str
    required: true
  data_root:
    description: The folder on that disk.
    type: str
    required: true
  defaults:
    description: Settings for those that the file does not have.
    type: dict
    default: {}
  settings:
    description: Settings that the file must have.
    type: dict
    default: {}
attributes:
  check_mode:
    support: full
  diff_mode:
    support: full
"""

EXAMPLES = r"""
- name: Put Docker's data on the NVMe disk
  hyperpod.lifecycle.docker_config:
    disk: /opt/dlami/nvme
    data_root: /opt/dlami/nvme/docker/data-root
    settings:
      log-opts: {max-size: 100m}
"""

RETURN = r""" # """

import os
import tempfile
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.hyperpod.lifecycle.plugins.module_utils import docker
from ansible_collections.hyperpod.lifecycle.plugins.module_utils.commands import Fault, run
from ansible_collections.hyperpod.lifecycle.plugins.module_utils.files import difference, replace


def validate(text, folder):
    """Fault if the dockerd that is installed does not take these settings."""
    if "--validate" not in run(["dockerd", "--help"], 30)[1]:
        return
    handle, name = tempfile.mkstemp(dir=folder)
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        file.write(text)
    status, out, err = run(["dockerd", "--validate", f"--config-file={name}"], 30)
    os.unlink(name)
    if status:
        raise Fault((err or out).replace(name, "daemon.json"))


def main():
    """Entry point."""
    module = AnsibleModule(
        argument_spec={
            "path": {"type": "path", "default": "/etc/docker/daemon.json"},
            "disk": {"type": "str", "required": True},
            "data_root": {"type": "str", "required": True},
            "defaults": {"type": "dict", "default": {}},
            "settings": {"type": "dict", "default": {}},
        },
        supports_check_mode=True,
    )
    path = Path(module.params["path"])
    before = path.read_text(encoding="utf-8", errors="surrogateescape") if path.exists() else ""
    try:
        there = docker.parse(before)
    except Fault as fault:
        module.fail_json(
            msg=f"{path}: {fault}; correct the file, or move it away to begin with an empty one. Nothing was changed"
        )
    disk, data_root, defaults, settings = (module.params[key] for key in ("disk", "data_root", "defaults", "settings"))
    wanted = docker.daemon_settings(there, disk, data_root, defaults, settings)
    after = before if wanted == there and before else docker.dumped(wanted)
    if after != before:
        try:
            validate(after, module.tmpdir)
        except Fault as fault:
            module.fail_json(
                msg=f"dockerd does not take the settings that {path} has with containers_docker_settings: {fault}. "
                "Nothing was changed"
            )
        if not module.check_mode:
            path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    changed = replace(module, path, before, after, None if path.exists() else 0o644)
    module.exit_json(
        changed=changed,
        msg=f"{path} {'lacks settings' if changed else 'has all settings'}",
        diff=difference(path, before, after),
    )


if __name__ == "__main__":
    main()
