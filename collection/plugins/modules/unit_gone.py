#!/usr/bin/python
# SPDX-License-Identifier: GPL-3.0-or-later
"""Units of our own that are not wanted."""

from __future__ import annotations

DOCUMENTATION = r"""
module: unit_gone
short_description: Stop units and take their files away
description:
  - For services whose file is one of ours in C(/etc/systemd/system). What they have kept goes too.
author: hyperpod-lifecycle maintainers
options:
  name:
    description: The services, without suffix; those that are not there are what is wanted.
    type: list
    elements: str
    required: true
attributes:
  check_mode:
    support: full
"""

EXAMPLES = r"""
- name: Take the exporters off
  hyperpod.lifecycle.unit_gone:
    name: [hyperpod-node-exporter]
"""

RETURN = r""" # """

import os
import shutil
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.hyperpod.lifecycle.plugins.module_utils.commands import run

UNITS = Path("/etc/systemd/system")
STATES = Path("/var/lib")
SECONDS = 90


def left(name):
    """What there is of a unit: its file, links that start it, and what it keeps."""
    files = [UNITS / f"{name}.service", *UNITS.glob(f"*.wants/{name}.service")]
    return [path for path in (*files, STATES / name) if os.path.lexists(path)]


def main():
    """Entry point."""
    module = AnsibleModule(
        argument_spec={"name": {"type": "list", "elements": "str", "required": True}}, supports_check_mode=True
    )
    names = module.params["name"]
    services = [f"{name}.service" for name in names]
    # Asks about all; a unit that is not there is inactive.
    states = run(["systemctl", "is-active", *services], 30)[1].split() if services else []
    # One that waits to be started again has failed, and is forgotten here.
    known = [service for service, state in zip(services, states, strict=False) if state != "inactive"]
    paths = [path for name in names for path in left(name)]
    if not module.check_mode:
        for verb in ("stop", "reset-failed") if known else ():
            status, _out, err = run(["systemctl", verb, *known], SECONDS)
            if status and verb == "stop":
                module.fail_json(msg=f"systemctl stop {' '.join(known)}: {err}")
        for path in paths:
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()
        if paths or known:
            run(["systemctl", "daemon-reload"], SECONDS)
    module.exit_json(changed=bool(paths or known), paths=[str(path) for path in paths])


if __name__ == "__main__":
    main()
