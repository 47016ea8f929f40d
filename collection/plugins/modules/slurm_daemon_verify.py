#!/usr/bin/python
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# No builtin: the node's state in Slurm, the unit and the log are polled together until jobs can start.
"""Wait until a Slurm daemon works, and report why it does not."""

from __future__ import annotations

DOCUMENTATION = r"""
module: slurm_daemon_verify
short_description: Wait until this node's Slurm daemon works
description:
  - slurmctld must answer a ping. A compute node must be registered with the controller. A login node must reach a
    controller.
  - It is not a fault of this node if no controller answers yet, if the controller does not know this node yet, or if a
    backup controller waits for the primary's state. systemd and the daemon keep trying, and the module succeeds with a
    RV(note).
  - Everything else is a fault. The message has the last lines of the daemon's journal and log.
extends_documentation_fragment:
  - hyperpod.lifecycle.attributes
author:
  - hyperpod-lifecycle maintainers (@hyperpod-lifecycle)
options:
  daemon:
    description: Unit of the daemon, without suffix.
    type: str
    required: true
  node_type:
    description: Type of this node.
    type: str
    choices: [controller, login, compute]
    required: true
  controllers:
    description: Addresses of the controllers, primary first.
    type: list
    elements: str
    required: true
  address:
    description: Address of this node, which distinguishes it from other controllers.
    type: str
    required: true
  port:
    description: Port of the controllers (C(SlurmctldPort)).
    type: int
    required: true
  prefix:
    description: Directory in which Slurm is installed.
    type: path
    default: /opt/slurm
  log_dir:
    description: Directory of the daemon's log.
    type: path
    default: /var/log/slurm
  wait_seconds:
    description: Seconds to wait.
    type: int
    default: 60
"""

EXAMPLES = r"""
- name: Wait until slurmd is registered
  hyperpod.lifecycle.slurm_daemon_verify:
    daemon: slurmd
    node_type: compute
    controllers: [10.20.0.5]
    address: 10.20.1.10
    port: 6817
"""

RETURN = r"""
state:
  description: V(ready), V(not_registered), V(controller_silent) or V(standby_down).
  type: str
  returned: success
note:
  description: Note for the summary. Empty if the daemon is ready and needs none.
  type: str
  returned: success
"""

import os
import re
import socket
import time
from contextlib import suppress

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.hyperpod.lifecycle.plugins.module_utils.slurm import another_in_charge, node_state, ping
from ansible_collections.hyperpod.lifecycle.plugins.module_utils.waits import pause

READY = "ready"
NOT_REGISTERED = "not_registered"
SILENT = "controller_silent"
STANDBY = "standby_down"
BROKEN = "broken"
POLL_SECONDS = 0.25
CONNECT_SECONDS = 2
LINES = 12


class Watch:
    """Repeated checks of a daemon."""

    def __init__(self, module):
        self.module = module
        self.daemon = module.params["daemon"]
        self.controllers = module.params["controllers"]
        self.port = module.params["port"]
        self.name = socket.gethostname().split(".")[0]

    def run(self, *command):
        """Return exit status and combined output of a command."""
        status, out, err = self.module.run_command(list(command))
        return status, (out + err).strip()

    def scontrol(self, *arguments):
        """Run a Slurm command with the node's own configuration."""
        return self.run(os.path.join(self.module.params["prefix"], "bin", "scontrol"), *arguments)

    def active(self):
        """Return whether the unit is active."""
        return self.run("systemctl", "is-active", "--quiet", self.daemon)[0] == 0

    def unstarted(self):
        """Return why systemd could not execute the daemon; empty if it could. systemd's own exit codes start at 200."""
        status = self.run("systemctl", "show", "--property=ExecMainStatus", "--value", self.daemon)[1]
        return (
            f"systemd cannot start {self.daemon} (status {status})" if status.isdigit() and int(status) >= 200 else ""
        )

    def accepting(self):
        """Return the number of controllers that accept a connection."""
        count = 0
        for address in self.controllers:
            with suppress(OSError):
                socket.create_connection((address, self.port), timeout=CONNECT_SECONDS).close()
                count += 1
        return count

    def unheard(self, accepting, answer):
        """Return the state if a command got no answer, which need not be a fault of this node."""
        unstarted = self.unstarted()
        if unstarted:
            return BROKEN, unstarted
        # A standby accepts connections but does not answer, which is normal until the primary is up.
        silent = accepting < len(self.controllers)
        return (SILENT if silent else BROKEN), answer or "Slurm's commands do not work here though a controller answers"

    def controller(self):
        """Check slurmctld with scontrol ping."""
        if not self.active():
            return BROKEN, "slurmctld does not run"
        try:
            socket.create_connection((self.module.params["address"], self.port), timeout=CONNECT_SECONDS).close()
        except OSError as error:
            return BROKEN, f"slurmctld does not listen on port {self.port}: {error}"
        _status, answer = self.scontrol("ping")
        role, state = ping(answer, self.name)
        if state == "UP":
            return READY, self.unlike() if another_in_charge(answer, self.name) else ""
        # It waits for the primary to write to the shared StateSaveLocation, which may happen later.
        return (STANDBY if role == "backup" else BROKEN), answer

    def unlike(self):
        """Return a note if a standby has other settings than the active controller; empty if they are equal."""
        _status, config = self.scontrol("show", "config")
        if re.search(r"^HASH_VAL\s*=\s*Different", config, re.MULTILINE):
            return f"slurm.conf, or a file it includes, is not the same on {self.name} as on the controller in charge"
        return ""

    def login(self):
        """Check that Slurm's commands work on a login node."""
        status, answer = self.scontrol("ping")
        if status == 0 and "UP" in answer:
            return READY, ""
        return self.unheard(self.accepting(), answer)

    def compute(self):
        """Check that slurmd has registered with a controller."""
        accepting = self.accepting()
        if not accepting:
            unstarted = self.unstarted()
            return (BROKEN, unstarted) if unstarted else (SILENT, "")
        status, answer = self.scontrol("--oneliner", "show", "node", self.name)
        if status != 0:
            if f"{self.name} not found" not in answer:
                return self.unheard(accepting, answer)
            unstarted = self.unstarted()
            return (BROKEN, unstarted) if unstarted else (NOT_REGISTERED, answer)
        if not self.active():
            return BROKEN, f"slurmd does not run though the controller knows {self.name}"
        base, flags = node_state(answer)
        if "INVALID_REG" in flags:
            return BROKEN, f"the controller refused this node's registration: {answer}"
        if "NOT_RESPONDING" in flags or base == "UNKNOWN":
            return BROKEN, f"the controller waits for this node to answer (state {base}, {sorted(flags)})"
        return READY, ""

    def look(self):
        """Return state and message, by node type."""
        return getattr(self, self.module.params["node_type"])()

    def last_words(self):
        """Return the end of the daemon's journal and log file, for the error message."""
        _status, journal = self.run(
            "journalctl", "--unit", self.daemon, "--lines", str(LINES), "--no-pager", "--output", "cat"
        )
        words = f"journal of {self.daemon}:\n{journal}"
        path = os.path.join(self.module.params["log_dir"], self.daemon + ".log")
        if os.path.exists(path):
            with open(path, encoding="utf-8", errors="replace") as file:
                words += "\n{}:\n{}".format(path, "".join(file.readlines()[-LINES:]).rstrip())
        return words


def main():
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "daemon": {"type": "str", "required": True},
            "node_type": {"type": "str", "choices": ["controller", "login", "compute"], "required": True},
            "controllers": {"type": "list", "elements": "str", "required": True},
            "address": {"type": "str", "required": True},
            "port": {"type": "int", "required": True},
            "prefix": {"type": "path", "default": "/opt/slurm"},
            "log_dir": {"type": "path", "default": "/var/log/slurm"},
            "wait_seconds": {"type": "int", "default": 60},
        },
        supports_check_mode=True,
    )
    if module.check_mode:
        module.exit_json(state=READY, note="")
    watch = Watch(module)
    limit = module.params["wait_seconds"]
    deadline = time.monotonic() + limit
    state, said = watch.look()
    # Not retried: on a scale-up, the controller learns of this node minutes later.
    while state in (SILENT, STANDBY, BROKEN) and time.monotonic() < deadline:
        pause(POLL_SECONDS)
        state, said = watch.look()
    where = ", ".join(f"{address}:{watch.port}" for address in watch.controllers)
    if state == BROKEN:
        module.fail_json(msg=f"{watch.daemon} does not work after {limit} s: {said}; {watch.last_words()}")
    note = {
        READY: said,
        NOT_REGISTERED: f"{watch.name} is not in the controller's slurm.conf yet; slurmd keeps trying",
        STANDBY: f"the backup slurmctld on {watch.name} waits until the primary has written to StateSaveLocation",
        SILENT: f"no controller answers on {where} yet; {watch.daemon} keeps trying",
    }[state]
    module.exit_json(state=state, note=note)


if __name__ == "__main__":
    main()
