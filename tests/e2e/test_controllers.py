# SPDX-License-Identifier: Apache-2.0
"""Two controllers with one state and one database: from their first start to the death of the primary and a new backup.

The tests of this module share one lab and follow each other.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import nodes
import pytest
from accounting import PARAMETERS, SETTINGS
from conftest import THOROUGH, lab_called, shape
from nodes import COMPUTE, KILLED, bash, killed, must, wait_for

from hyperpod_lab.database import Database
from hyperpod_lab.lab import Lab

PRIMARY, BACKUP = CONTROLLERS = ("controller-machine-1", "controller-machine-2")
LUSTRE = "fs-12345678a90b01cde.fsx.us-west-2.amazonaws.com"
CLUSTER = "your-hyperpod-cluster"
BELOW = f"aws/hyperpod/{CLUSTER}"
SHARED = f"/fsx/{BELOW}"
HOST = "otter.c0ffee.us-west-2.rds.amazonaws.com"
PASSWORD = "onlyForTheseTwo1"
SECRET, CA = "/etc/database-password", "/etc/database-ca.pem"
#: First starts at the same moment, beside that of the lab itself.
ROUNDS = 10 if THOROUGH else 1
#: SlurmctldTimeout, and what Slurm may need on top of it: a heartbeat seen twice and pings that time out.
TIMEOUT, SLACK = 10, 60
#: In another partition and region than the cluster.
TOPIC = "arn:aws-us-gov:sns:us-gov-west-1:111122223333:slurm"
TWO = {
    **PARAMETERS,
    "fsx_dns_name": LUSTRE,
    "fsx_mountname": "1abcdefg",
    "slurm_configurations": {
        "slurm_database_endpoint": HOST,
        "slurm_database_user": "slurm",
        "slurm_shared_directory": "/fsx",
        "slurm_sns_arn": TOPIC,
    },
}
OUR_SETTINGS = f"""\
accounting_external_password_file: {SECRET}
accounting_external_ca: {CA}
controllers_takeover_seconds: {TIMEOUT}
"""
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
systemctl stop slurmctld-standby.path; systemctl disable --now slurmctld slurmdbd
rm -rf /var/spool/slurmctld* /var/lib/hyperpod-controllers \
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


#: Runs of this concern alone.
apply = partial(nodes.apply, tags="controllers")
applied = partial(nodes.applied, tags="controllers")
refused = partial(nodes.refused, tags="controllers")


@pytest.fixture(scope="module")
def folder(upload: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("controllers") / "src"
    shutil.copytree(upload(), made)
    (made / "provisioning_parameters.json").write_text(json.dumps(TWO))
    settings = made / "inventory/group_vars" / Path(SETTINGS).name
    settings.parent.mkdir(exist_ok=True)
    settings.write_text(OUR_SETTINGS)
    return made


@pytest.fixture(scope="module")
def lab(folder: Path) -> Iterator[Lab]:
    with lab_called("heads") as lab:
        parameters = folder / "provisioning_parameters.json"
        lab.up(shape(parameters=parameters, controller_machine=2, login_group=0, compute_nodes=1), scripts=False)
        database = Database(lab.services, HOST)
        database.start()
        database.account("slurm", PASSWORD, "slurm\\_acct\\_db")
        for node in CONTROLLERS:
            prepare(lab, node)
        # A compute node gives up before two controllers that share two cores with it have set up their database.
        for nodes_at_once in (CONTROLLERS, [COMPUTE]):
            results = lab.run_scripts([lab.node(name) for name in nodes_at_once], folder)
            assert not any(result.exit_code for result in results), "\n".join(result.summary for result in results)
        yield lab


def prepare(lab: Lab, node: str) -> None:
    """What an administrator puts on a controller."""
    lab.put(node, PASSWORD.encode(), SECRET, mode=0o600)
    lab.put(node, Database(lab.services, HOST).ca, CA)


def at_once(lab: Lab, *words: str) -> list[int]:
    """How much good runs at the same moment changed."""
    with ThreadPoolExecutor() as pool:
        return list(pool.map(lambda node: nodes.applied(lab, node, *words), CONTROLLERS))


def wipe(lab: Lab) -> None:
    # A step that has not told its end yet is an orphan to the new slurmctld, which drains the node of one that lingers.
    bash(lab, COMPUTE, "pkill --signal KILL slurmstepd; true")
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


def test_both_run_slurmdbd_and_a_job_is_known_on_each(lab: Lab) -> None:
    bash(lab, COMPUTE, "timeout 60 srun --job-name=proof true", user="ubuntu")
    for node in CONTROLLERS:
        assert bash(lab, node, "systemctl is-active slurmdbd") == "active\n"
    for node in (*CONTROLLERS, COMPUTE):
        wait_for(lab, node, "sacct --allusers --noheader --format=jobname,state | grep -q 'proof *COMPLETED'")
        assert "ubuntu" in bash(lab, node, "sacctmgr --noheader show assoc format=user")
    conf = {bash(lab, node, "cat /opt/slurm/etc/slurmdbd.conf /opt/slurm/etc/accounting.conf") for node in CONTROLLERS}
    assert len(conf) == 1, "both have the same settings"


def test_a_restore_needs_the_other_controllers_daemons_down(lab: Lab) -> None:
    place = "/fsx/backups"
    lifecycle = ["timeout", "200", "hyperpod-lifecycle"]
    with ThreadPoolExecutor() as pool:
        both = list(pool.map(lambda node: lab.exec(node, [*lifecycle, "backup", place], timeout=240), CONTROLLERS))
    assert [each.returncode for each in both] == [0, 0], [each.stderr for each in both]
    restore = partial(lab.exec, PRIMARY, [*lifecycle, "restore", place, "--replace-newer"], timeout=240)
    for daemon in ("slurmctld", "slurmdbd"):
        done = restore()
        said = done.stdout + done.stderr
        assert f"systemctl stop {daemon} on" in said, said
        bash(lab, BACKUP, f"systemctl stop {daemon}")
    must(restore())
    must(nodes.apply(lab, BACKUP, tags="accounting,slurm"))
    wait_for(lab, BACKUP, BOTH_UP)


def test_second_run_changes_nothing(lab: Lab) -> None:
    ask = f"systemctl show --property=MainPID slurmctld slurmdbd; {STATE}"
    before = [bash(lab, node, ask) for node in CONTROLLERS]
    assert at_once(lab) == [0, 0]
    assert [bash(lab, node, ask) for node in CONTROLLERS] == before


def test_the_second_slurmdbd_answers_while_the_first_does_not(lab: Lab) -> None:
    bash(lab, PRIMARY, "systemctl stop slurmdbd")
    wait_for(lab, COMPUTE, "sacctmgr --noheader show assoc format=user | grep -q ubuntu")
    bash(lab, PRIMARY, "systemctl start slurmdbd")
    wait_for(lab, PRIMARY, "ss -ltn | grep -q ':6819 '")
    wait_for(lab, BACKUP, "! ss -ltn | grep -q ':6819 '")
    # One that stands by does not end by itself.
    bash(lab, BACKUP, "timeout 40 systemctl restart slurmdbd")


def test_the_backup_takes_over_and_hands_back(lab: Lab) -> None:
    state = "/var/spool/slurmctld/job_state"
    # In dev a job has its node to itself.
    shared = "--partition=dev-1"
    job = bash(lab, PRIMARY, f"touch /run/before; sbatch {shared} --parsable --wrap 'sleep 900'").strip()
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
        wait_for(lab, BACKUP, taken, TIMEOUT + SLACK)
        assert bash(lab, BACKUP, f"srun {shared} --immediate=30 hostname").strip() == lab.node(COMPUTE).host
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


def test_a_first_start_of_both_at_the_same_moment_ends_well(lab: Lab) -> None:
    for _ in range(ROUNDS):
        wipe(lab)
        Database(lab.services, HOST).query("DROP DATABASE slurm_acct_db")
        assert min(at_once(lab, "--tags", "controllers,accounting,slurm")) > 0
        assert json.loads(identity(lab).read_text())["arn"] == lab.shape.cluster_arn
        for node in CONTROLLERS:
            wait_for(lab, node, BOTH_UP)
            assert bash(lab, node, "journalctl --unit=slurmdbd --since=-60s | grep -c fatal; true") == "0\n"
            assert "ubuntu" in bash(lab, node, "sacctmgr --noheader show assoc format=user")
    assert at_once(lab) == [0, 0]
    # To controllers without a memory a CLOUD node is powered down until it registers.
    bash(lab, COMPUTE, "systemctl restart slurmd")
    wait_for(lab, BACKUP, "srun --immediate=20 hostname")


def test_a_run_killed_after_any_change_and_run_again_ends_as_an_undisturbed_one(lab: Lab) -> None:
    undisturbed = bash(lab, BACKUP, STATE)
    wipe(lab)
    must(apply(lab, BACKUP, "--check", "--diff"))
    assert not identity(lab).parent.exists()
    # The primary has never run meanwhile, so nobody has the new state yet.
    tasks = []
    while (end := killed(lab, BACKUP, "controllers"))[0] == KILLED:
        tasks.append(end[1][-1])
        assert len(set(tasks)) == len(tasks), tasks
    assert len(tasks) >= 5, tasks
    assert min(at_once(lab, "--tags", "controllers,accounting,slurm")) >= 0
    wait_for(lab, BACKUP, BOTH_UP)
    assert bash(lab, BACKUP, STATE) == undisturbed
    assert at_once(lab) == [0, 0]


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
    assert applied(lab, BACKUP) == 1
    lab.put(BACKUP, settings, SETTINGS)
    assert [applied(lab, node) for node in CONTROLLERS] == [0, 0]


def test_without_a_shared_folder_nothing_is_changed(lab: Lab) -> None:
    before = bash(lab, BACKUP, STATE)
    for folder, reason in ((None, "2 controllers need a directory"), ("/srv", "/srv is on no file system")):
        given = json.loads(json.dumps(TWO))
        given["slurm_configurations"]["slurm_shared_directory"] = folder
        lab.put(BACKUP, json.dumps(given).encode(), "/root/parameters.json")
        done = apply(lab, BACKUP, "--provisioning-parameters", "/root/parameters.json")
        assert (done.returncode, reason in nodes.last_line(done)) == (3, True), done.stdout + done.stderr
    assert bash(lab, BACKUP, STATE) == before


def test_another_backup_takes_the_place_of_the_first(lab: Lab, folder: Path) -> None:
    lab.replace(BACKUP, new_address=True, scripts=False)
    prepare(lab, BACKUP)
    results = lab.up(upload_folder=folder)
    assert [result.exit_code for result in results] == [0, 0, 0], [result.summary for result in results]
    for node in (*CONTROLLERS, COMPUTE):
        wait_for(lab, node, BOTH_UP)
    bash(lab, BACKUP, "srun --immediate=20 hostname")
    assert at_once(lab) == [0, 0]
