# SPDX-License-Identifier: Apache-2.0
"""Two controllers with one database outside of the cluster: both run slurmdbd, and may be set up at the same moment.

The tests of this module share one lab and follow each other.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from accounting import COMPUTE, PARAMETERS, SETTINGS, apply, bash
from conftest import changed_tasks, lab_called, shape

from hyperpod_lab.database import Database
from hyperpod_lab.lab import Lab

PRIMARY, BACKUP = CONTROLLERS = ("controller-machine-1", "controller-machine-2")
HOST = "otter.c0ffee.us-west-2.rds.amazonaws.com"
PASSWORD = "onlyForTheseTwo1"
SECRET, CA = "/etc/database-password", "/etc/database-ca.pem"
TWO = {
    **PARAMETERS,
    "fsx_dns_name": "fs-12345678a90b01cde.fsx.us-west-2.amazonaws.com",
    "fsx_mountname": "1abcdefg",
    "slurm_configurations": {
        "slurm_database_endpoint": HOST,
        "slurm_database_user": "slurm",
        "slurm_shared_directory": "/fsx",
    },
}


@pytest.fixture(scope="module")
def lab(upload: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    folder = tmp_path_factory.mktemp("dbds") / "src"
    shutil.copytree(upload(), folder)
    parameters = folder / "provisioning_parameters.json"
    parameters.write_text(json.dumps(TWO))
    settings = folder / "inventory/group_vars" / Path(SETTINGS).name
    settings.parent.mkdir(exist_ok=True)
    settings.write_text(f"accounting_external_password_file: {SECRET}\naccounting_external_ca: {CA}\n")
    with lab_called("dbds") as lab:
        counts = {"controller_machine": 2, "login_group": 0, "compute_nodes": 1}
        lab.up(shape(parameters=parameters, **counts), scripts=False)
        database = Database(lab.services, HOST)
        database.start()
        database.account("slurm", PASSWORD, "slurm\\_acct\\_db")
        for node in CONTROLLERS:
            lab.put(node, PASSWORD.encode(), SECRET, mode=0o600)
            lab.put(node, database.ca, CA)
        results = lab.up(upload_folder=folder)
        assert [result.exit_code for result in results] == [0, 0, 0], [result.summary for result in results]
        yield lab


def both(lab: Lab) -> list[subprocess.CompletedProcess[str]]:
    """Accounting set up on both controllers at the same moment."""
    with ThreadPoolExecutor() as pool:
        return list(pool.map(lambda node: apply(lab, "--tags", "accounting", node=node), CONTROLLERS))


def wait_for(lab: Lab, node: str, command: str, seconds: float = 90) -> None:
    deadline = time.monotonic() + seconds
    while lab.exec(node, ["timeout", "30", "bash", "-c", command]).returncode != 0:
        assert time.monotonic() < deadline, f"{node}: {command}"
        time.sleep(0.5)


def test_both_run_slurmdbd_and_a_job_is_known_on_each(lab: Lab) -> None:
    done = lab.exec(COMPUTE, ["timeout", "60", "srun", "--job-name=proof", "true"], user="ubuntu")
    assert done.returncode == 0, done.stderr
    for node in CONTROLLERS:
        assert bash(lab, node, "systemctl is-active slurmdbd") == "active\n"
    for node in (*CONTROLLERS, COMPUTE):
        wait_for(lab, node, "sacct --allusers --noheader --format=jobname,state | grep -q 'proof *COMPLETED'")
        assert "ubuntu" in bash(lab, node, "sacctmgr --noheader show assoc format=user")
    conf = {bash(lab, node, "cat /opt/slurm/etc/slurmdbd.conf /opt/slurm/etc/accounting.conf") for node in CONTROLLERS}
    assert len(conf) == 1, "both have the same settings"


def test_second_run_changes_nothing(lab: Lab) -> None:
    for done in both(lab):
        assert done.returncode == 0, done.stdout + done.stderr
        assert changed_tasks(done.stdout.strip().splitlines()[-1]) == 0


def test_the_second_slurmdbd_answers_while_the_first_does_not(lab: Lab) -> None:
    bash(lab, PRIMARY, "systemctl stop slurmdbd")
    wait_for(lab, COMPUTE, "sacctmgr --noheader show assoc format=user | grep -q ubuntu")
    bash(lab, PRIMARY, "systemctl start slurmdbd")
    wait_for(lab, PRIMARY, "ss -ltn | grep -q ':6819 '")
    wait_for(lab, BACKUP, "! ss -ltn | grep -q ':6819 '")


@pytest.mark.parametrize("number", range(2))
def test_a_first_start_at_the_same_moment_ends_well(lab: Lab, number: int) -> None:
    for node in CONTROLLERS:
        bash(lab, node, "systemctl stop slurmctld slurmdbd; rm -f $(readlink -f /var/spool/slurmctld)/clustername")
    Database(lab.services, HOST).query("DROP DATABASE slurm_acct_db")
    for done in both(lab):
        assert done.returncode == 0, done.stdout + done.stderr
    for node in CONTROLLERS:
        assert bash(lab, node, "journalctl --unit=slurmdbd --since=-60s | grep -c fatal; true") == "0\n"
        assert "ubuntu" in bash(lab, node, "sacctmgr --noheader show assoc format=user")
