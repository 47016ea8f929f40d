#!/usr/bin/python
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# Not ansible.builtin.systemd_service: a restart that would end containers must wait until they have ended.
"""Start Docker and containerd with current settings, without stopping running containers."""

from __future__ import annotations

DOCUMENTATION = r"""
module: docker_current
short_description: Start Docker and containerd with current settings
description:
  - Enables and starts both. Restarts one if a file that it reads is newer than its process, as in
    M(hyperpod.lifecycle.unit_current).
  - While containers are running that a restart would stop or orphan, nothing is restarted, and RV(note) reports it. A
    run after they have ended restarts it.
extends_documentation_fragment:
  - hyperpod.lifecycle.attributes
author:
  - hyperpod-lifecycle maintainers (@hyperpod-lifecycle)
options:
  containerd_files:
    description: Files that containerd reads when it starts.
    type: list
    elements: path
    required: true
  docker_files:
    description: Files that dockerd reads when it starts.
    type: list
    elements: path
    required: true
  daemon_json:
    description: Docker's configuration file, which sets its data directory.
    type: path
    default: /etc/docker/daemon.json
  wait_seconds:
    description: Seconds to wait for Docker to answer.
    type: int
    default: 60
"""

EXAMPLES = r"""
- name: Start Docker
  hyperpod.lifecycle.docker_current:
    containerd_files: [/etc/containerd/config.toml]
    docker_files: [/etc/docker/daemon.json]
"""

RETURN = r"""
note:
  description: Note for the summary. Empty if there is none.
  type: str
  returned: success
"""

import json
import time
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.hyperpod.lifecycle.plugins.module_utils import docker
from ansible_collections.hyperpod.lifecycle.plugins.module_utils.commands import Fault, journal, run
from ansible_collections.hyperpod.lifecycle.plugins.module_utils.units import carry_out, look, steps

POLL_SECONDS = 0.5
COMMAND_SECONDS = 30
START_SECONDS = 120


def information(seconds):
    """What Docker says of itself. Fault if it does not answer in time."""
    deadline = time.monotonic() + seconds
    while True:
        status, out, err = run(["docker", "info", "--format={{json .}}"], COMMAND_SECONDS)
        found = json.loads(out) if status == 0 else {}
        # The client ends with 0 where it has reached no daemon.
        faults = found.get("ServerErrors") or []
        if found and not faults:
            return found
        if time.monotonic() >= deadline:
            said = "; ".join(faults) or err
            raise Fault(f"Docker does not answer within {seconds} s: {said}; {journal('docker')}")
        time.sleep(POLL_SECONDS)


def held_by(data_root):
    """How many containers a restart would end or lose."""
    if look("docker").get("ActiveState") != "active":
        return 0
    found = information(COMMAND_SECONDS)
    survive = found["LiveRestoreEnabled"] and found["DockerRootDir"] == data_root
    return 0 if survive else found["ContainersRunning"]


def main():
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "containerd_files": {"type": "list", "elements": "path", "required": True},
            "docker_files": {"type": "list", "elements": "path", "required": True},
            "daemon_json": {"type": "path", "default": "/etc/docker/daemon.json"},
            "wait_seconds": {"type": "int", "default": 60},
        },
        supports_check_mode=True,
    )
    path, done, late = Path(module.params["daemon_json"]), [], 0
    try:
        data_root = docker.parse(path.read_text(encoding="utf-8") if path.exists() else "").get(
            "data-root", docker.DATA_ROOT
        )
        for name in ("containerd", "docker"):
            unit = look(name)
            if unit.get("LoadState") != "loaded":
                if module.check_mode:
                    module.exit_json(changed=True, note="", msg=f"{name}.service is not there yet")
                raise Fault(f"systemd cannot start {name}.service: it is {unit.get('LoadState', 'unknown')}")
            todo = steps(name, unit, module.params[f"{name}_files"])
            if ["restart", name] in todo:
                late = late or held_by(data_root)
                todo = [step for step in todo if not late or step[0] != "restart"]
            if not module.check_mode:
                carry_out(name, todo, START_SECONDS)
            done += todo
        if not (module.check_mode and done):
            found = information(module.params["wait_seconds"])
            if found["DockerRootDir"] != data_root and not late:
                raise Fault(
                    f"Docker has its data in {found['DockerRootDir']} and not in {data_root}: an option of the unit "
                    "or in /etc/default/docker comes before daemon.json; take it away there"
                )
    except Fault as fault:
        module.fail_json(msg=str(fault))
    note = (
        f"Docker keeps its older settings because containers run ({late}); when they have ended: "
        "hyperpod-lifecycle apply --tags containers"
    )
    said = ", ".join(" ".join(step) for step in done) or "both run"
    module.exit_json(changed=bool(done), note=note if late else "", msg=said)


if __name__ == "__main__":
    main()
