#!/usr/bin/python
# SPDX-License-Identifier: GPL-3.0-or-later
# GNU General Public License v3.0+ (see LICENSES/GPL-3.0-or-later.txt or https://www.gnu.org/licenses/gpl-3.0.txt)
# No builtin: the state moves once, under a lock of all controllers, and a kill leaves one of the two copies complete.
"""Share slurmctld's state among controllers."""

from __future__ import annotations

DOCUMENTATION = r"""
module: slurmctld_state_share
short_description: Share slurmctld's state among controllers
description:
  - C(StateSaveLocation) stays as set in C(slurm.conf) and becomes a symbolic link to the shared state. Nothing that the
    agent manages changes, and slurmctld cannot start with another state while the shared directory is not mounted.
  - The first controller creates the shared state, from its own if it has one, while the others wait for a lock in the
    shared directory. A run may be killed at any time, and the next one completes it.
  - State of another cluster is never taken over or abandoned silently, nor is this node's own state if shared state
    exists. Both are errors before any change unless a setting resolves them. Nothing is deleted.
extends_documentation_fragment:
  - hyperpod.lifecycle.attributes
author:
  - hyperpod-lifecycle maintainers (@hyperpod-lifecycle)
options:
  slurm_conf:
    description: File that may set C(StateSaveLocation).
    type: path
    required: true
  default_location:
    description: Value of C(StateSaveLocation) if C(slurm.conf) does not set it.
    type: path
    required: true
  shared_dir:
    description: Shared directory.
    type: path
    required: true
  cluster:
    description: Name of the cluster.
    type: str
    required: true
  arn:
    description: ARN of the cluster, which distinguishes it from an older cluster of the same name.
    type: str
    required: true
  node:
    description: Name of this node, shown to controllers that wait for its lock.
    type: str
    required: true
  owner:
    description: User that runs slurmctld.
    type: str
    required: true
  adopt_state_of:
    description:
      - ARN of another cluster whose state this cluster takes over, or V(unknown) for state that names no cluster.
    type: str
    default: ''
  set_aside_state_of:
    description:
      - ARN of another cluster whose state is kept under another name, or V(unknown). This cluster starts fresh.
    type: str
    default: ''
  set_aside_local_state:
    description: Keep this node's own state under another name, and use the shared state.
    type: bool
    default: false
  wait_seconds:
    description: Seconds to wait for the lock, and afterwards for the work to complete.
    type: int
    default: 300
"""

EXAMPLES = r"""
- name: Share slurmctld's state
  hyperpod.lifecycle.slurmctld_state_share:
    slurm_conf: /opt/slurm/etc/slurm.conf
    default_location: /var/spool/slurmctld
    shared_dir: /fsx
    cluster: demo
    arn: arn:aws:sagemaker:us-west-2:111122223333:cluster/abcdefghijkl
    node: controller-machine-1 (10.20.0.5)
    owner: slurm
"""

RETURN = r"""
location:
  description: Value of C(StateSaveLocation).
  type: str
  returned: success
folder:
  description: Shared directory of the cluster.
  type: str
  returned: success
state:
  description: Directory of the shared state.
  type: str
  returned: success
note:
  description: Note for the summary. Empty if there is none.
  type: str
  returned: success
"""

import os
import pwd
import re
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.hyperpod.lifecycle.plugins.module_utils import slurm
from ansible_collections.hyperpod.lifecycle.plugins.module_utils.commands import Fault, journal, run
from ansible_collections.hyperpod.lifecycle.plugins.module_utils.files import refusal
from ansible_collections.hyperpod.lifecycle.plugins.module_utils.limited import limited
from ansible_collections.hyperpod.lifecycle.plugins.module_utils.shared_state import LOCK, SharedState, lock

STOP_SECONDS = 120
#: Directory in which the public sample scripts keep a cluster's shared files.
BELOW = "aws/hyperpod"


def location(slurm_conf, default, shared_dir):
    """Return StateSaveLocation, which must be a directory for slurmctld only, on this node."""
    found = {key.lower(): value for key, value in slurm.parameters(slurm_conf)}
    path = os.path.normpath(found.get("statesavelocation", default))
    if not re.fullmatch(r"/[^/]+/[^/]+/.+", path):
        raise Fault(f"StateSaveLocation={path} in slurm.conf is not a directory for slurmctld only; name one below it")
    if f"{path}/".startswith(shared_dir.rstrip("/") + "/"):
        raise Fault(
            f"StateSaveLocation={path} in slurm.conf is in the shared directory {shared_dir} already, so it is managed "
            "outside of this role; set controllers_enabled: false"
        )
    return path


def stop_slurmctld():
    """Stop slurmctld, which must not write while its state moves."""
    status, _out, err = run(["systemctl", "stop", "slurmctld"], STOP_SECONDS)
    if status:
        raise Fault(f"systemctl stop slurmctld: {err}; {journal('slurmctld')}")


def settle(shared, who, wishes, seconds):
    """Run the remaining steps while holding the lock. Return the steps."""
    os.makedirs(shared.folder, exist_ok=True)
    with lock(os.path.join(shared.folder, LOCK), who, seconds):
        # The previous holder of the lock may have completed everything.
        steps = shared.steps(**wishes)
        if shared.link in steps:
            stop_slurmctld()
        for step in steps:
            step()
    return shared.said


def told(function, seconds):
    """Return the result of a function that runs in a child process with a time limit. Raises its Fault."""

    def answer():
        try:
            return ["result", function()]
        except Fault as fault:
            return ["fault", str(fault)]

    kind, value = limited(answer, seconds)
    if kind == "fault":
        raise Fault(value)
    return value


def main():
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "slurm_conf": {"type": "path", "required": True},
            "default_location": {"type": "path", "required": True},
            "shared_dir": {"type": "path", "required": True},
            "cluster": {"type": "str", "required": True},
            "arn": {"type": "str", "required": True},
            "node": {"type": "str", "required": True},
            "owner": {"type": "str", "required": True},
            "adopt_state_of": {"type": "str", "default": ""},
            "set_aside_state_of": {"type": "str", "default": ""},
            "set_aside_local_state": {"type": "bool", "default": False},
            "wait_seconds": {"type": "int", "default": 300},
        },
        supports_check_mode=True,
    )
    wanted = module.params
    seconds, conf = wanted["wait_seconds"], Path(wanted["slurm_conf"])
    folder = os.path.join(wanted["shared_dir"], BELOW, wanted["cluster"])
    if module.check_mode and not (conf.exists() and os.path.isdir(wanted["shared_dir"])):
        module.exit_json(
            changed=True, location=wanted["default_location"], folder=folder, state="", note="", msg="not there yet"
        )
    wishes = {
        "adopt": wanted["adopt_state_of"],
        "set_aside": wanted["set_aside_state_of"],
        "set_aside_local": wanted["set_aside_local_state"],
    }
    try:
        user = pwd.getpwnam(wanted["owner"])
        text = conf.read_text(encoding="utf-8", errors="replace")
        local = location(text, wanted["default_location"], wanted["shared_dir"])
        shared = SharedState(folder, local, wanted["cluster"], wanted["arn"], user.pw_uid, user.pw_gid)
        steps = told(lambda: [step.__name__ for step in shared.steps(**wishes)], seconds)
        said = []
        if steps and not module.check_mode:
            said = told(lambda: settle(shared, wanted["node"], wishes, seconds), 2 * seconds + STOP_SECONDS)
    except KeyError as error:
        module.fail_json(msg=f"there is no user {error}; this role expects a HyperPod Slurm image")
    except Fault as fault:
        module.fail_json(msg=str(fault))
    except OSError as error:
        said = refusal(error.filename or folder, error)
        module.fail_json(msg=f"{said}; then: hyperpod-lifecycle apply --tags controllers")
    module.exit_json(
        changed=bool(steps),
        location=local,
        folder=folder,
        state=shared.state,
        note="; ".join(said),
        msg=", ".join(steps),
    )


if __name__ == "__main__":
    main()
