#!/usr/bin/python
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# Not ansible.builtin.template: the command of the image's unit is kept, without its --conf-server.
"""Write a drop-in for the unit of a Slurm daemon. The unit itself belongs to the image."""

from __future__ import annotations

DOCUMENTATION = r"""
module: slurm_unit_extend
short_description: Write a drop-in for the unit of a Slurm daemon
description:
  - The drop-in starts munge first, restarts the daemon when it exits, and passes a configless daemon its controllers.
  - The unit itself is never edited. Its C(ExecStart) is kept, without a C(--conf-server) that other scripts have added,
    so that a changed controller address takes effect.
extends_documentation_fragment:
  - hyperpod.lifecycle.attributes.files
author:
  - hyperpod-lifecycle maintainers (@hyperpod-lifecycle)
options:
  daemon:
    description: Unit, without suffix.
    type: str
    required: true
  conf_server:
    description: C(address:port) of every controller, separated by commas. Empty for slurmctld and slurmdbd.
    type: str
    required: true
  restart_seconds:
    description: Seconds until systemd restarts the daemon.
    type: int
    required: true
"""

EXAMPLES = r"""
- name: Configure slurmd's controllers
  hyperpod.lifecycle.slurm_unit_extend:
    daemon: slurmd
    conf_server: 10.20.0.5:6817
    restart_seconds: 10
"""

RETURN = r""" # """

from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.hyperpod.lifecycle.plugins.module_utils.files import difference, replace
from ansible_collections.hyperpod.lifecycle.plugins.module_utils.slurm import drop_in, exec_start

#: The image also has Slurm's units here, and the public sample scripts rename them.
DROP_INS = Path("/etc/systemd/system")


def main():
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "daemon": {"type": "str", "required": True},
            "conf_server": {"type": "str", "required": True},
            "restart_seconds": {"type": "int", "required": True},
        },
        supports_check_mode=True,
    )
    daemon = module.params["daemon"]
    command = ["systemctl", "show", daemon, "--property=FragmentPath", "--value"]
    _status, out, _err = module.run_command(command, check_rc=True)
    fragment = Path(out.strip())
    unit = fragment.read_text(encoding="utf-8") if fragment.is_file() else ""
    if not exec_start(unit) and module.check_mode:
        module.exit_json(changed=True, msg=f"{daemon}.service is not there yet")
    if not exec_start(unit):
        renamed = ", ".join(sorted(map(str, DROP_INS.glob(f"{daemon}_*.service"))))
        remedy = f"rename {renamed} back" if renamed else "this role expects a HyperPod Slurm image"
        module.fail_json(msg=f"there is no unit {daemon}.service with an ExecStart; {remedy}")
    conf_server = "" if daemon == "slurmctld" else module.params["conf_server"]
    after = drop_in(daemon, unit, conf_server, module.params["restart_seconds"])
    path = DROP_INS / f"{daemon}.service.d/hyperpod.conf"
    before = path.read_text(encoding="utf-8") if path.exists() else ""
    changed = replace(module, path, before, after, 0o644)
    module.exit_json(changed=changed, diff=difference(path, before, after))


if __name__ == "__main__":
    main()
