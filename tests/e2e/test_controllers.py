# SPDX-License-Identifier: Apache-2.0
"""Two controllers with one state: from their first start at the same moment to the death of the primary.

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
from conftest import changed_tasks, lab_called, shape

from hyperpod_lab.lab import Lab

PRIMARY, BACKUP, COMPUTE = "controller-machine-1", "controller-machine-2", "compute-nodes-1"
CONTROLLERS = (PRIMARY, BACKUP)
LUSTRE = "fs-12345678a90b01cde.fsx.us-west-2.amazonaws.com"
CLUSTER = "your-hyperpod-cluster"
BELOW = f"aws/hyperpod/{CLUSTER}"
SHARED = f"/fsx/{BELOW}"
SETTINGS = "/etc/hyperpod-lifecycle/inventory/group_vars/controller.yml"
#: SlurmctldTimeout, and what Slurm may need on top of it: a heartbeat seen twice and pings that time out.
TIMEOUT, SLACK = 10, 60
#: In another partition and region than the cluster.
TOPIC = "arn:aws-us-gov:sns:us-gov-west-1:111122223333:slurm"
PARAMETERS = {
    "version": "1.0.0",
    "workload_manager": "slurm",
    "controller_group": "controller-machine",
    "login_group": "login-group",
    "worker_groups": [{"instance_group_name": "compute-nodes", "partition_name": "dev-1"}],
    "fsx_dns_name": LUSTRE,
    "fsx_mountname": "1abcdefg",
    "slurm_configurations": {"slurm_shared_directory": "/fsx", "slurm_sns_arn": TOPIC},
}
#: In the AWS CLI's place on the backup: writes down what it is told. The primary has none.
FAKE_AWS = b"""\
#!/bin/sh
echo "$@" >>/var/log/slurm/fake_aws
"""
BOTH_UP = "test $(scontrol ping | grep -c 'is UP') = 2"

#: While it is there, slurmctld on this controller is in charge.
CONTROLS = "/var/lib/hyperpod-controllers/controls"

#: Back to what the image was, on one controller; the shared folder is emptied on the host.
WIPE = """
systemctl stop slurmctld-standby.path slurmctld; rm -rf /var/spool/slurmctld* /var/lib/hyperpod-controllers \
    /usr/local/lib/hyperpod-lifecycle /etc/systemd/system/slurmctld-standby.* \
    /etc/systemd/system/slurmctld.service.d/shared-state.conf
install -d -o slurm -g slurm /var/spool/slurmctld; : >/opt/slurm/etc/accounting.conf; systemctl daemon-reload
"""

#: All that the concern leaves on a controller, in words that are the same on every run.
STATE = f"""
readlink /var/spool/slurmctld; stat -c '%U %a' {SHARED}/var/spool/slurmctld; cat /opt/slurm/etc/accounting.conf
find /usr/local/lib/hyperpod-lifecycle /etc/systemd/system/slurmctld* /var/lib/hyperpod-controllers ! -name controls \
    -printf '%p %u %m %y\\n' | sort
systemctl is-active slurmctld slurmctld-standby.path; systemctl is-enabled slurmctld slurmctld-standby.path
ls {SHARED}/var/spool
"""


@pytest.fixture(scope="module")
def lab(upload: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    folder = tmp_path_factory.mktemp("controllers") / "src"
    shutil.copytree(upload(), folder)
    parameters = folder / "provisioning_parameters.json"
    parameters.write_text(json.dumps(PARAMETERS))
    settings = folder / "inventory/group_vars/controller.yml"
    settings.parent.mkdir(exist_ok=True)
    settings.write_text(f"accounting_enabled: false\ncontrollers_takeover_seconds: {TIMEOUT}\n")
    with lab_called("heads") as lab:
        counts = {"controller_machine": 2, "login_group": 0, "compute_nodes": 1}
        results = lab.up(shape(parameters=parameters, **counts), upload_folder=folder)
        assert [result.exit_code for result in results] == [0, 0, 0], [result.summary for result in results]
        yield lab


def bash(lab: Lab, node: str, script: str, *, check: bool = True) -> str:
    done = lab.exec(node, ["timeout", "240", "bash", "-c", script], check=check)
    return done.stdout + ("" if check else done.stderr)


def wait_for(lab: Lab, node: str, command: str, seconds: float = 60) -> float:
    """Until a shell command succeeds in a node; how long that took."""
    begin = time.monotonic()
    while (done := lab.exec(node, ["timeout", "60", "bash", "-c", command])).returncode != 0:
        assert time.monotonic() < begin + seconds, f"{command}: {done.stdout}{done.stderr}"
        time.sleep(0.5)
    return time.monotonic() - begin


def apply(lab: Lab, node: str, *words: str) -> subprocess.CompletedProcess[str]:
    return lab.exec(node, ["timeout", "200", "hyperpod-lifecycle", "apply", *words], timeout=240)


def applied(lab: Lab, node: str, *words: str) -> int:
    """How much a good run changed."""
    done = apply(lab, node, *words)
    assert done.returncode == 0, done.stdout + done.stderr
    return changed_tasks(done.stdout.strip().splitlines()[-1])


def refused(lab: Lab, node: str, *words: str) -> str:
    """The last line of a run that must fail."""
    done = apply(lab, node, "--tags", "controllers", *words)
    assert done.returncode == 4, done.stdout + done.stderr
    return done.stderr.strip().splitlines()[-1]


def wipe(lab: Lab) -> None:
    for node in CONTROLLERS:
        bash(lab, node, WIPE)
    shutil.rmtree(lab.storage.path(LUSTRE) / "aws")


def identity(lab: Lab) -> Path:
    return lab.storage.path(LUSTRE) / BELOW / "hyperpod-lifecycle.json"


def log(lab: Lab, node: str) -> str:
    return bash(lab, node, "cat /var/log/slurm/controllers.log")


def test_both_controllers_are_up_with_one_state(lab: Lab) -> None:
    for node in (*CONTROLLERS, COMPUTE):
        wait_for(lab, node, BOTH_UP)
    for node in CONTROLLERS:
        assert bash(lab, node, "readlink /var/spool/slurmctld").strip() == f"{SHARED}/var/spool/slurmctld"
        config = bash(lab, node, "scontrol show config | tr -s ' '")
        assert f"SlurmctldTimeout = {TIMEOUT} sec" in config
        assert "HASH_VAL = Match" in config
    assert "now controls" in log(lab, PRIMARY)
    wait_for(lab, PRIMARY, "grep 'the SNS topic was not told: .*aws' /var/log/slurm/controllers.log")
    assert bash(lab, BACKUP, "srun --immediate=20 hostname").strip() == lab.node(COMPUTE).host


def test_second_run_changes_nothing(lab: Lab) -> None:
    ask = f"systemctl show --property=MainPID slurmctld; {STATE}"
    for node in CONTROLLERS:
        before = bash(lab, node, ask)
        assert applied(lab, node) == 0
        assert bash(lab, node, ask) == before


def test_the_backup_takes_over_and_hands_back(lab: Lab) -> None:
    state = "/var/spool/slurmctld/job_state"
    job = bash(lab, PRIMARY, "touch /run/before; sbatch --parsable --wrap 'sleep 900'").strip()
    running = f"squeue --noheader --jobs={job} --states=running --format=%i | grep -qx {job}"
    # slurmctld writes its jobs within five seconds.
    saved = f"test {state} -nt /run/before -a $(stat --format=%Y {state}) -lt $(($(date +%s) - 5))"
    wait_for(lab, PRIMARY, f"{running} && {saved}")
    lab.put(BACKUP, FAKE_AWS, "/usr/local/bin/aws", mode=0o755)
    # A machine that hangs; the kernel of a paused container alone would still take connections.
    lab.set_link(PRIMARY, up=False)
    lab.pause(PRIMARY)
    try:
        taken = f"test -e {CONTROLS} && {running}"
        assert wait_for(lab, BACKUP, taken, TIMEOUT + SLACK) > TIMEOUT / 2, "it waits for the timeout"
        assert bash(lab, BACKUP, "srun --immediate=30 hostname").strip() == lab.node(COMPUTE).host
    finally:
        # And is started again.
        lab.unpause(PRIMARY)
        lab.stop(PRIMARY)
        lab.start(PRIMARY)
    # Slurm's backup takes half a minute to let go.
    wait_for(lab, BACKUP, f"{BOTH_UP} && ! test -e {CONTROLS}", 90)
    wait_for(lab, PRIMARY, f"{BOTH_UP} && {running}")
    host = lab.node(BACKUP).host
    assert f"{host} now controls" in log(lab, BACKUP)
    wait_for(lab, BACKUP, "test $(wc -l </var/log/slurm/fake_aws) = 2")
    assert f"{host} no longer controls cluster {CLUSTER}" in log(lab, BACKUP)
    told = bash(lab, BACKUP, "cat /var/log/slurm/fake_aws").splitlines()
    assert all(f"sns publish --output text --region us-gov-west-1 --topic-arn {TOPIC} " in line for line in told)
    assert f"--message slurmctld on {host} now controls cluster {CLUSTER}" in told[0]
    bash(lab, PRIMARY, f"scancel {job}")
    wait_for(lab, PRIMARY, f"! squeue --noheader --jobs={job} | grep -q .")


def test_a_standby_reads_its_files_when_the_agent_writes_them(lab: Lab) -> None:
    pid = "systemctl show --property=MainPID --value slurmctld"
    before = {node: bash(lab, node, pid) for node in CONTROLLERS}
    for node in CONTROLLERS:
        bash(lab, node, "cd /opt/slurm/etc; cp -a slurm.conf new; mv new slurm.conf")
    wait_for(lab, BACKUP, f"test $({pid}) != 0 -a $({pid}) != {before[BACKUP]}")
    wait_for(lab, BACKUP, BOTH_UP)
    assert bash(lab, PRIMARY, pid) == before[PRIMARY], "the one in charge is the agent's"


def test_two_controllers_at_the_same_moment(lab: Lab) -> None:
    # Unit tests race more often and with more of them; here each round costs two runs of Ansible.
    for _ in range(4):
        wipe(lab)
        with ThreadPoolExecutor(2) as pool:
            changed = list(pool.map(lambda node: applied(lab, node, "--tags", "controllers"), CONTROLLERS))
        assert min(changed) > 0
        assert json.loads(identity(lab).read_text())["arn"] == lab.cluster().arn
        for node in CONTROLLERS:
            wait_for(lab, node, BOTH_UP)
    assert [applied(lab, node) for node in CONTROLLERS] == [0, 0]
    wait_for(lab, BACKUP, "srun --immediate=20 hostname")


def test_an_older_clusters_state_is_refused_until_somebody_decides(lab: Lab) -> None:
    ours = json.loads(identity(lab).read_text())
    old = ours["arn"][:-4] + "0000"
    identity(lab).write_text(json.dumps({**ours, "arn": old}))
    before = bash(lab, BACKUP, STATE)
    said = refused(lab, BACKUP)
    assert f'controllers_adopt_state_of: "{old}"' in said
    assert bash(lab, BACKUP, STATE) == before
    settings = lab.get(BACKUP, SETTINGS)
    lab.put(BACKUP, settings + f'controllers_adopt_state_of: "{old}"\n'.encode(), SETTINGS)
    assert applied(lab, BACKUP, "--tags", "controllers") == 1
    lab.put(BACKUP, settings, SETTINGS)
    assert [applied(lab, node, "--tags", "controllers") for node in CONTROLLERS] == [0, 0]


def test_without_a_shared_folder_nothing_is_changed(lab: Lab) -> None:
    before = bash(lab, BACKUP, STATE)
    for folder, reason in ((None, "2 controllers need a folder"), ("/var/lib", "cannot be shared")):
        given = {**PARAMETERS, "slurm_configurations": {"slurm_shared_directory": folder}}
        lab.put(BACKUP, json.dumps(given).encode(), "/root/parameters.json")
        assert reason in refused(lab, BACKUP, "--provisioning-parameters", "/root/parameters.json")
    assert bash(lab, BACKUP, STATE) == before
