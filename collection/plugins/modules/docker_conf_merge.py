#!/usr/bin/python
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# Not ansible.builtin.template or lineinfile: both files belong to the image too, so their settings are merged, and the
# programs themselves validate the result before it is installed.
"""Merge settings into the configuration files of Docker and containerd."""

from __future__ import annotations

DOCUMENTATION = r"""
module: docker_conf_merge
short_description: Merge settings into daemon.json and containerd's config.toml
description:
  - Existing settings are kept, except for O(settings) and for data directories that are on another disk than O(disk).
  - A C(daemon.json) that is not a JSON object is an error before any change. New content is first checked with
    C(dockerd --validate), if available, and C(containerd config dump).
extends_documentation_fragment:
  - hyperpod.lifecycle.attributes.files
author:
  - hyperpod-lifecycle maintainers (@hyperpod-lifecycle)
options:
  path:
    description: Docker's configuration file.
    type: path
    default: /etc/docker/daemon.json
  containerd_path:
    description: containerd's configuration file.
    type: path
    default: /etc/containerd/config.toml
  disk:
    description: Mount point of the disk for container data. If empty, the root disk, and data stays where it is.
    type: str
    required: true
  data_root:
    description: Docker's directory on that disk.
    type: str
    required: true
  containerd_root:
    description: containerd's directory on that disk.
    type: str
    required: true
  defaults:
    description: Settings of Docker that are added if missing.
    type: dict
    default: {}
  settings:
    description: Settings of Docker that override those in the file.
    type: dict
    default: {}
"""

EXAMPLES = r"""
- name: Put container data on the NVMe disk
  hyperpod.lifecycle.docker_conf_merge:
    disk: /opt/dlami/nvme
    data_root: /opt/dlami/nvme/docker/data-root
    containerd_root: /opt/dlami/nvme/docker/containerd
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


def content(path):
    """The text of a file; empty if there is none."""
    return path.read_text(encoding="utf-8", errors="surrogateescape") if path.exists() else ""


def tried(text, folder, command):
    """Exit status, output and errors of a program that reads this text from the file ``{}`` of the command."""
    handle, name = tempfile.mkstemp(dir=folder)
    with os.fdopen(handle, "w", encoding="utf-8", errors="surrogateescape") as file:
        file.write(text)
    status, out, err = run([word.format(name) for word in command], 30)
    os.unlink(name)
    return status, out.replace(name, "its file"), err.replace(name, "its file")


def daemon_json(before, params, folder):
    """The daemon.json there should be. Fault if what is there cannot be read, or dockerd does not take the result."""
    path = params["path"]
    try:
        there = docker.parse(before)
    except Fault as fault:
        raise Fault(f"{path}: {fault}; correct the file, or move it away to begin with an empty one") from fault
    wanted = docker.daemon_settings(there, params["disk"], params["data_root"], params["defaults"], params["settings"])
    after = before if wanted == there and before else docker.dumped(wanted)
    if after != before and "--validate" in run(["dockerd", "--help"], 30)[1]:
        status, out, err = tried(after, folder, ["dockerd", "--validate", "--config-file={}"])
        if status:
            said = err or out
            raise Fault(f"dockerd does not take the settings that {path} has with containers_docker_settings: {said}")
    return after


def config_toml(before, params, folder):
    """The config.toml there should be. Fault if containerd does not read the root in it."""
    disk, root = params["disk"], params["containerd_root"]
    if not disk or docker.inside(docker.containerd_root(before) or docker.CONTAINERD_ROOT, disk):
        return before
    after = docker.with_containerd_root(before, root)
    status, out, err = tried(after, folder, ["containerd", "--config={}", "config", "dump"])
    if status != 127 and (status or docker.containerd_root(out) != root):
        said = err or f"it does not read {root}"
        raise Fault(f"{params['containerd_path']}: containerd does not take root = {root}: {said}")
    return after


def main():
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "path": {"type": "path", "default": "/etc/docker/daemon.json"},
            "containerd_path": {"type": "path", "default": "/etc/containerd/config.toml"},
            "disk": {"type": "str", "required": True},
            "data_root": {"type": "str", "required": True},
            "containerd_root": {"type": "str", "required": True},
            "defaults": {"type": "dict", "default": {}},
            "settings": {"type": "dict", "default": {}},
        },
        supports_check_mode=True,
    )
    files = []
    try:
        for path, wanted in ((module.params["path"], daemon_json), (module.params["containerd_path"], config_toml)):
            before = content(Path(path))
            files.append((Path(path), before, wanted(before, module.params, module.tmpdir)))
    except Fault as fault:
        module.fail_json(msg=f"{fault}. Nothing was changed")
    changed = [str(path) for path, before, after in files if replace(module, path, before, after)]
    module.exit_json(
        changed=bool(changed),
        msg=f"{' and '.join(changed)} lack settings" if changed else "both files have all settings",
        diff=[difference(*file) for file in files],
    )


if __name__ == "__main__":
    main()
