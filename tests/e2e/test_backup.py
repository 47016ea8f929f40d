# SPDX-License-Identifier: Apache-2.0
"""A controller's history and state, saved, lost and brought back."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from conftest import lab_called, shape
from nodes import CONTROLLER, bash

from hyperpod_lab.fake_aws import FakeAws
from hyperpod_lab.lab import Lab

PLACE, BUCKET = "/root/backups", "s3://sagemaker-backups/slurm"
PYTHON = "/opt/hyperpod-lifecycle/current/bin/python3"
NAMES = "sacct --allusers --noheader --parsable2 --allocations --format=jobname,state | sort"

#: Makes a backup's dump one that the server stops at half way, and seals it again.
SPOIL = """\
import json, os, pathlib, sys
from ansible_collections.hyperpod.lifecycle.plugins.module_utils import backups

os.chdir(sys.argv[1])
dump = pathlib.Path(backups.DATABASE)
head, table, rest = dump.read_bytes().partition(b"CREATE TABLE `qos_table`")
assert table
dump.write_bytes(head + b"NO SQL;" + table + rest)
about = json.load(open(backups.MANIFEST))
backups.seal(".", {key: about[key] for key in about if key not in ("format", "files")})
"""


@pytest.fixture(scope="module")
def lab(upload: Callable[..., Path]) -> Iterator[Lab]:
    with lab_called("backup") as lab:
        results = lab.up(shape(compute_nodes=1, login_group=0), upload_folder=upload())
        assert [result.exit_code for result in results] == [0, 0], [result.summary for result in results]
        yield lab


def lifecycle(lab: Lab, *words: str) -> subprocess.CompletedProcess[str]:
    return lab.exec(CONTROLLER, ["hyperpod-lifecycle", *words])


def good(lab: Lab, *words: str) -> str:
    """The path that the last line of a good run ends with."""
    done = lifecycle(lab, *words)
    assert done.returncode == 0, done.stdout + done.stderr
    found = re.search(rf"({PLACE}|{BUCKET}|/var/lib)/\S+$", done.stdout.strip())
    assert found, done.stdout
    return found.group()


def job(lab: Lab, name: str) -> None:
    """Run a job, and wait until it is in the database."""
    recorded = f"for _ in $(seq 200); do {NAMES} | grep -q '{name}|COMPLETED' && exit 0; sleep 0.2; done; exit 1"
    bash(lab, CONTROLLER, f"srun --job-name={name} --nodelist=$(sinfo --noheader --format=%N) true; {recorded}")


def running(lab: Lab) -> str:
    """What slurmctld has been told since it was set up."""
    return bash(
        lab,
        CONTROLLER,
        "scontrol --oneliner show reservation maintenance | grep -o 'StartTime=[^ ]* EndTime=[^ ]*'; "
        "squeue --noheader --format='%j %T %r'; scontrol --oneliner show node | grep -o 'Comment=.*' | cut -d' ' -f1; "
        "sacctmgr --noheader --parsable2 show qos format=name,priority | sort; "
        "find /var/spool/slurmctld -printf '%u %m\n' | sort -u",
    )


def test_history_and_running_configuration_survive_a_new_controller(lab: Lab, upload: Callable[..., Path]) -> None:
    job(lab, "first")
    bash(
        lab,
        CONTROLLER,
        "scontrol create reservation reservationname=maintenance starttime=2040-01-01T00:00:00 duration=60 users=root "
        "nodes=ALL; sbatch --hold --job-name=waiting --wrap=true; sacctmgr -i add qos urgent priority=7; "
        "scontrol update nodename=ALL comment=checked",
    )
    before, history = running(lab), bash(lab, CONTROLLER, NAMES)
    assert "waiting PENDING" in before
    assert "first|COMPLETED" in history
    aws = FakeAws(lab)
    aws.start()
    aws.install_cli(CONTROLLER)
    bash(lab, CONTROLLER, f"aws s3 mb {BUCKET.rpartition('/')[0]}")
    backup = good(lab, "backup", BUCKET)
    assert running(lab) == before, "Slurm goes on"

    # The compute node has another controller now; jobs are not what this is about.
    results = lab.replace(CONTROLLER, new_address=True, upload_folder=upload())
    assert [result.exit_code for result in results] == [0]
    assert "first" not in bash(lab, CONTROLLER, NAMES)
    assert "waiting" not in running(lab)
    aws.install_cli(CONTROLLER)

    done = lifecycle(lab, "restore", BUCKET, "--check")
    assert done.returncode == 0
    assert "first" not in bash(lab, CONTROLLER, NAMES), "nothing changes in check mode"
    good(lab, "restore", BUCKET)
    assert bash(lab, CONTROLLER, NAMES) == history
    assert running(lab) == before
    assert backup in lab.exec(CONTROLLER, ["hyperpod-lifecycle", "report"]).stdout
    again = lifecycle(lab, "apply")
    assert again.returncode == 0, again.stderr


def test_a_newer_state_is_not_replaced_unless_told_and_never_lost(lab: Lab, upload: Callable[..., Path]) -> None:
    results = lab.up(upload_folder=upload())
    assert [result.exit_code for result in results] == [0, 0], [result.summary for result in results]
    good(lab, "backup", PLACE)
    assert {"root 600"} == set(bash(lab, CONTROLLER, f"find {PLACE} -type f -printf '%u %m\n'").splitlines())
    job(lab, "later")
    refused = lifecycle(lab, "restore", PLACE)
    assert refused.returncode == 4
    assert re.search(r"would lose \d+ jobs? of the time since .*--replace-newer", refused.stderr)
    assert "later|COMPLETED" in bash(lab, CONTROLLER, NAMES)
    kept = good(lab, "restore", PLACE, "--replace-newer")
    assert "later" not in bash(lab, CONTROLLER, NAMES)
    good(lab, "restore", kept, "--replace-newer")
    assert "later|COMPLETED" in bash(lab, CONTROLLER, NAMES)


def test_a_damaged_backup_and_a_database_that_refuses_change_nothing(lab: Lab) -> None:
    before = bash(lab, CONTROLLER, f"{NAMES}; systemctl show --property=MainPID slurmctld slurmdbd")
    bash(lab, CONTROLLER, f"cp -r {PLACE} /root/damaged; truncate --size=-9 /root/damaged/*/*/accounting.sql")
    refused = lifecycle(lab, "restore", "/root/damaged", "--replace-newer")
    assert refused.returncode == 4
    assert "is not as it was written" in refused.stderr
    assert bash(lab, CONTROLLER, f"{NAMES}; systemctl show --property=MainPID slurmctld slurmdbd") == before
    lab.put(CONTROLLER, SPOIL.encode(), "/root/spoil.py")
    bash(lab, CONTROLLER, f"cd /root; rm -r damaged; cp -r {PLACE} damaged; {PYTHON} spoil.py damaged/*/*")
    refused = lifecycle(lab, "restore", "/root/damaged", "--replace-newer")
    assert refused.returncode == 4
    assert "all is as it was before" in refused.stderr
    assert bash(lab, CONTROLLER, NAMES) == before.split("MainPID")[0]
    assert lifecycle(lab, "apply").returncode == 0
