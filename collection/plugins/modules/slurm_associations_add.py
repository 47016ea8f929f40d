#!/usr/bin/python
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# No builtin: accounts and users are compared with one query and added in batches; a task for each takes minutes.
"""Wait for slurmdbd, and add the cluster, its accounts and its users."""

from __future__ import annotations

DOCUMENTATION = r"""
module: slurm_associations_add
short_description: Add the cluster, its accounts and its users to Slurm's accounting
description:
  - Waits until slurmdbd listens and sacctmgr gets answers, then adds what is missing. Nothing is deleted, and accounts
    and limits that an administrator has set are kept.
extends_documentation_fragment:
  - hyperpod.lifecycle.attributes
author:
  - hyperpod-lifecycle maintainers (@hyperpod-lifecycle)
options:
  cluster:
    description: Value of C(ClusterName).
    type: str
    required: true
  users:
    description:
      - Users, each with C(name) and optionally C(slurm_account), which becomes the default account. Without it, the
        account is C(root).
    type: list
    elements: dict
    required: true
  hosts:
    description: Addresses of slurmdbd. One of them must answer. A backup listens only while the first one does not.
    type: list
    elements: str
    required: true
  port:
    description: Port of slurmdbd.
    type: int
    required: true
  prefix:
    description: Directory in which Slurm is installed.
    type: path
    required: true
  wait_seconds:
    description: Seconds to wait for slurmdbd.
    type: int
    default: 60
  log:
    description: Log of slurmdbd, quoted in the error message.
    type: path
    required: true
"""

EXAMPLES = r"""
- name: Add users
  hyperpod.lifecycle.slurm_associations_add:
    cluster: demo
    users:
      - name: ubuntu
      - {name: ada, slurm_account: physics}
    hosts: [10.20.0.5]
    port: 6819
    prefix: /opt/slurm
    log: /var/log/slurm/slurmdbd.log
"""

RETURN = r"""
commands:
  description: Commands that sacctmgr ran, or in check mode would run.
  type: list
  elements: str
  returned: success
"""

import os
import socket
import time
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.hyperpod.lifecycle.plugins.module_utils import accounting, slurm
from ansible_collections.hyperpod.lifecycle.plugins.module_utils.commands import (
    Fault,
    journal,
    lines_since,
    run,
    run_started,
)
from ansible_collections.hyperpod.lifecycle.plugins.module_utils.waits import pause

POLL_SECONDS = 0.25
LINES = 12
COMMAND_SECONDS = 60


class Accounting:
    """Access to slurmdbd through sacctmgr."""

    def __init__(self, module):
        self.wanted = module.params
        self.cluster = module.params["cluster"].lower()
        self.program = os.path.join(module.params["prefix"], "bin", "sacctmgr")

    def sacctmgr(self, *words):
        """Return the output of sacctmgr. Raises Fault if it fails."""
        status, out, err = run([self.program, *words], COMMAND_SECONDS)
        if status:
            raise Fault(f"sacctmgr {' '.join(words)}: {' '.join((err + ' ' + out).split())}")
        return out

    def show(self, what, *words):
        """Return the rows of sacctmgr's output."""
        return accounting.rows(self.sacctmgr("--noheader", "--parsable2", "show", what, *words))

    def look(self):
        """Return why slurmdbd does not answer at an address that all nodes use; empty if it does."""
        said = ""
        for host in self.wanted["hosts"]:
            try:
                socket.create_connection((host, self.wanted["port"]), timeout=2).close()
                self.show("cluster", "format=cluster")
            except (OSError, Fault) as fault:
                said = said or str(fault)
            else:
                return ""
        return said

    def wait(self, seconds):
        """Wait until slurmdbd answers."""
        deadline = time.monotonic() + seconds
        while True:
            said = self.look()
            if not said:
                return
            refused = slurm.refused(os.path.join(self.wanted["prefix"], "bin", "scontrol"))
            if refused:
                raise Fault(refused)
            if time.monotonic() >= deadline:
                log = Path(self.wanted["log"])
                text = log.read_text(encoding="utf-8", errors="replace") if log.exists() else ""
                words = lines_since(text.splitlines(), run_started())[-LINES:]
                raise Fault(
                    "slurmdbd does not answer on {}, port {}, within {} s: {}; {}\n{}".format(
                        " or ".join(self.wanted["hosts"]),
                        self.wanted["port"],
                        seconds,
                        said,
                        journal("slurmdbd"),
                        "\n".join(words),
                    )
                )
            pause(POLL_SECONDS)

    def todo(self):
        """Return the missing commands."""
        users = [(user["name"], user.get("slurm_account") or "") for user in self.wanted["users"]]
        out = []
        if [self.cluster] not in self.show("cluster", "format=cluster"):
            # sacctmgr adds root with the cluster.
            out.append(["add", "cluster", self.cluster])
            return out + accounting.commands(self.cluster, users, [("root", "root")], {})
        found = self.show("assoc", f"cluster={self.cluster}", "format=account,user")
        defaults = self.show("user", "withassoc", f"cluster={self.cluster}", "format=user,defaultaccount")
        return accounting.commands(self.cluster, users, found, {user.lower(): name for user, name in defaults})

    def see_to(self):
        """Add what is missing, and return what was added.

        Another controller may do the same at this moment, or take slurmdbd's place, so what fails is looked at again.
        """
        done = []
        for last in (False, False, True):
            try:
                for words in self.todo():
                    self.sacctmgr("--immediate", *words)
                    done.append(words)
            except Fault:
                if last:
                    raise
                pause(4 * POLL_SECONDS)
                self.wait(self.wanted["wait_seconds"])
            else:
                break
        return done


def main():
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "cluster": {"type": "str", "required": True},
            "users": {"type": "list", "elements": "dict", "required": True},
            "hosts": {"type": "list", "elements": "str", "required": True},
            "port": {"type": "int", "required": True},
            "prefix": {"type": "path", "required": True},
            "wait_seconds": {"type": "int", "default": 60},
            "log": {"type": "path", "required": True},
        },
        supports_check_mode=True,
    )
    slurmdbd = Accounting(module)
    if module.check_mode and slurmdbd.look():
        module.exit_json(changed=True, commands=[], msg=f"slurmdbd does not answer: {slurmdbd.look()}")
    try:
        slurmdbd.wait(module.params["wait_seconds"])
        todo = slurmdbd.todo() if module.check_mode else slurmdbd.see_to()
    except Fault as fault:
        module.fail_json(msg=str(fault))
    said = [" ".join(words) for words in todo]
    module.exit_json(changed=bool(todo), commands=said, msg="sacctmgr: {}".format("; ".join(said) or "nothing to do"))


if __name__ == "__main__":
    main()
