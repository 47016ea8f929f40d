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
  - slurmctld must answer a ping. A compute node must be registered with the controller. A login node with a
    NodeName must be registered as well, another one must reach a controller.
  - It is not a fault of this node if no controller answers yet, if the controller does not know this node yet, or if a
    backup controller waits for the primary's state. systemd and the daemon keep trying, and RV(status) is V(pending).
  - Nor is it if Slurm starts no job on a compute node because it is down, drained, powered down, reserved for
    maintenance, or registered with less than its definition. RV(status) is then V(blocked) or V(pending).
  - A reason of Slurm's own (registration, GRES, unexpectedly rebooted, not responding) is lifted once the node answers
    and its registration is valid, a reason that a person or HyperPod has set never.
  - A compute node is drained if a concern in O(verdicts) is blocked, with a reason that names it. Only a run in which
    that concern is V(ok) resumes the node.
  - Everything else is a fault. A configuration that Slurm's own commands refuse is one at once. Other messages have the
    last lines of the daemon's journal and log, of a daemon that runs since the start of the run.
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
  config_dir:
    description: Directory of a C(slurm.conf) that Slurm's commands read before the one that the node has fetched.
    type: path
    default: /opt/slurm/etc
  log_dir:
    description: Directory of the daemon's log.
    type: path
    default: /var/log/slurm
  wait_seconds:
    description:
      - Seconds to wait. A controller that accepts connections but does not answer is waited for five times as long,
        because it may be setting up its database.
    type: int
    default: 60
  verdicts:
    description: Verdicts of this run, by concern, as the action plugin P(hyperpod.lifecycle.verdict#module) keeps them.
    type: dict
    default: {}
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
  description:
    - V(ready), V(not_registered), V(controller_silent), V(standby_down), V(blocked), V(reserved) or V(invalid).
  type: str
  returned: success
status:
  description: Verdict on the node, V(ok), V(pending) or V(blocked).
  type: str
  returned: success
note:
  description: Reason of the verdict, or a note for the summary. Empty if the daemon is ready and needs none.
  type: str
  returned: success
"""

import os
import re
import socket
import time
from contextlib import suppress

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.hyperpod.lifecycle.plugins.module_utils import configless, slurm_node
from ansible_collections.hyperpod.lifecycle.plugins.module_utils.commands import journal, lines_since, run_started
from ansible_collections.hyperpod.lifecycle.plugins.module_utils.slurm import another_in_charge, ping, refused
from ansible_collections.hyperpod.lifecycle.plugins.module_utils.slurm_node import (
    BLOCKED,
    BROKEN,
    INVALID,
    READY,
    RESERVED,
)
from ansible_collections.hyperpod.lifecycle.plugins.module_utils.waits import pause

NOT_REGISTERED = "not_registered"
SILENT = "controller_silent"
STANDBY = "standby_down"
REFUSED = "refused"
MUTE = "mute"  #: controllers accept connections and do not answer
#: The verdict on each state that is no fault of this node.
STATUS = {
    READY: "ok",
    NOT_REGISTERED: "pending",
    SILENT: "pending",
    STANDBY: "pending",
    RESERVED: "pending",
    BLOCKED: "blocked",
    INVALID: "blocked",
}
#: States that may change soon.
UNSETTLED = (SILENT, MUTE, STANDBY, INVALID, BROKEN)
#: How many times longer a mute controller is waited for: it may be setting up its database.
PATIENCE = 5
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
        self.address = module.params["address"]
        self.verdicts = module.params["verdicts"]
        self.name = socket.gethostname().split(".")[0]
        self.updates = []  #: actions of this run, each of which is taken once

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
        if silent:
            return SILENT, ""
        if "authentication" in answer:
            advice = "the credential was rejected: compare /etc/munge/munge.key and the clock with the controller's"
            return BROKEN, f"{answer}; {advice}"
        return MUTE, answer or "Slurm's commands do not work here though a controller accepts connections"

    def controller(self):
        """Check slurmctld with scontrol ping."""
        said = refused(os.path.join(self.module.params["prefix"], "bin", "scontrol"))
        if said:
            return REFUSED, said
        if not self.active():
            return BROKEN, "slurmctld does not run"
        try:
            socket.create_connection((self.address, self.port), timeout=CONNECT_SECONDS).close()
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
        """Check that Slurm's commands work on a login node, and that it is registered if it has a NodeName."""
        if self.daemon == "slurmd" and configless.registered(self.address, self.controllers):
            return self.compute()
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
        name = configless.registered(self.address, self.controllers) or self.name
        status, answer = self.scontrol("--oneliner", "show", "node", name)
        node = slurm_node.parse(answer)
        if status != 0:
            # Only a controller that answers lists nodes, so that no wording decides.
            status, listed = self.scontrol("--oneliner", "show", "node")
            if status != 0:
                return self.unheard(accepting, answer)
            node = slurm_node.find(listed, self.name, self.address)
        if node is None:
            unstarted = self.unstarted()
            return (BROKEN, unstarted) if unstarted else (NOT_REGISTERED, "")
        if not self.active():
            other = "" if node.name == self.name else f", which has this node's address {self.address}"
            return BROKEN, f"slurmd does not run though the controller knows {node.name}{other}"
        found = slurm_node.judge(node, self.verdicts)
        if found.action and found.action not in self.updates:
            return self.update(node, found)
        return found.state, found.said

    def update(self, node, found):
        """Resume or drain the node, and return what is then found."""
        self.updates.append(found.action)
        reason = [f"reason={found.said}"] if found.action == "drain" else []
        status, answer = self.scontrol("update", f"nodename={node.name}", f"state={found.action}", *reason)
        if status != 0:
            return BLOCKED, f"{found.said}; scontrol cannot {found.action} {node.name}: {answer}"
        return self.compute()

    def stale(self):
        """Return what is wrong with a slurm.conf of this node's own; empty on controllers."""
        if self.module.params["node_type"] == "controller":
            return ""
        return configless.stale(os.path.join(self.module.params["config_dir"], "slurm.conf"))

    def look(self):
        """Return state and message, by node type."""
        return getattr(self, self.module.params["node_type"])()

    def last_words(self):
        """Return the end of the daemon's journal and log file, for the error message.

        What a daemon that runs wrote before this run is of an earlier fault.
        """
        since = run_started() if self.active() else 1
        words = "; ".join(filter(None, [self.stale(), journal(self.daemon, LINES, since)]))
        path = os.path.join(self.module.params["log_dir"], self.daemon + ".log")
        if os.path.exists(path):
            with open(path, encoding="utf-8", errors="replace") as file:
                lines = lines_since(file.readlines(), since)
            words += "\n{}:\n{}".format(path, "".join(lines[-LINES:]).rstrip())
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
            "config_dir": {"type": "path", "default": "/opt/slurm/etc"},
            "log_dir": {"type": "path", "default": "/var/log/slurm"},
            "wait_seconds": {"type": "int", "default": 60},
            "verdicts": {"type": "dict", "default": {}},
        },
        supports_check_mode=True,
    )
    if module.check_mode:
        module.exit_json(changed=False, state=READY, status="ok", note="")
    watch = Watch(module)
    limit = module.params["wait_seconds"]
    deadline = time.monotonic() + limit
    state, said = watch.look()
    # Not retried: on a scale-up, the controller learns of this node minutes later.
    while state in UNSETTLED and time.monotonic() < deadline + (PATIENCE - 1) * limit * (state == MUTE):
        pause(POLL_SECONDS)
        state, said = watch.look()
    where = ", ".join(f"{address}:{watch.port}" for address in watch.controllers)
    if state == REFUSED:
        module.fail_json(msg=said)
    if state in (BROKEN, MUTE):
        seconds = limit * PATIENCE if state == MUTE else limit
        module.fail_json(msg=f"{watch.daemon} does not work after {seconds} s: {said}; {watch.last_words()}")
    note = said or {
        NOT_REGISTERED: f"{watch.name} is not in the controller's slurm.conf yet; slurmd keeps trying",
        STANDBY: f"the backup slurmctld on {watch.name} waits until the primary has written to StateSaveLocation",
        SILENT: f"no controller answers on {where} yet; {watch.daemon} keeps trying",
    }.get(state, "")
    note = "; ".join(filter(None, [note, watch.stale()]))
    module.exit_json(changed=bool(watch.updates), state=state, status=STATUS[state], note=note)


if __name__ == "__main__":
    main()
