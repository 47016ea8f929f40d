# SPDX-License-Identifier: Apache-2.0
"""What tests of accounting have in common: jobs that are recorded, and who holds a password."""

from __future__ import annotations

from nodes import CONTROLLER, GROUP_VARS, LOGIN, bash, wait_for

from hyperpod_lab.lab import Lab

ETC = "/opt/slurm/etc"
SETTINGS = f"{GROUP_VARS}/controller.yml"
PARAMETERS = {
    "version": "1.0.0",
    "workload_manager": "slurm",
    "controller_group": "controller-machine",
    "login_group": "login-group",
    "worker_groups": [{"instance_group_name": "compute-nodes", "partition_name": "dev-1"}],
}


def watch(secret: str) -> str:
    """Looks for a password in command lines, environments and temporary files until it is killed."""
    return f"""
    while :; do
        grep -lsazF -f {secret} /proc/[0-9]*/cmdline /proc/[0-9]*/environ
        grep -rlsaF -f {secret} /tmp /run /root
    done >/root/seen &
    watch=$!; cd /
    """


def holders(lab: Lab, secret: str, node: str = CONTROLLER) -> list[str]:
    """Files anywhere on a node that hold the password; `grep` reads it from the file, so that it is in no argv."""
    found = bash(lab, node, f"grep -rlsaF -f {secret} / --exclude-dir=proc --exclude-dir=sys --exclude-dir=dev; true")
    return sorted(found.split())


def run_job(lab: Lab, name: str) -> None:
    done = lab.exec(LOGIN, ["timeout", "60", "srun", f"--job-name={name}", "true"], user="ubuntu")
    assert done.returncode == 0, done.stderr


def wait_for_job(lab: Lab, name: str, node: str = CONTROLLER) -> None:
    """Until accounting knows a job that has run."""
    ask = "sacct --allusers --noheader --parsable2 --format=jobname,user,state"
    wait_for(lab, node, f"{ask} | grep -F '{name}|ubuntu|COMPLETED'", 30)
