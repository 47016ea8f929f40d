# SPDX-License-Identifier: Apache-2.0
"""From two JSON files to a working Slurm cluster: the documented example, from its first boot to a replaced controller.

The tests of this module share one lab and follow each other, as the days of a cluster do.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from conftest import NO_AUTOFS, lab_called, shape, snapshot
from nodes import (
    COMPUTE,
    CONTROLLER,
    GROUP_VARS,
    KILLED,
    LOGIN,
    applied,
    apply,
    bash,
    changed_tasks,
    killed,
    last_line,
    must,
    wait_for,
)

from hyperpod_lab.image import Kind, Release
from hyperpod_lab.lab import Lab
from hyperpod_lab.shape import PLATFORMS

PARTITION = "ml.trn1.32xlarge"
#: `make thorough` goes the same way on another release.
RELEASE = Release(os.environ.get("RELEASE", "trixie"))
IMAGE: Kind = "ami" if os.environ.get("IMAGE") == "ami" else "bare"

Command = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    with lab_called("e2e", NO_AUTOFS) as lab:
        lab.up(shape(RELEASE, platform=PLATFORMS[IMAGE], compute_nodes=2), scripts=False)
        if IMAGE == "ami":
            wait_for(lab, COMPUTE, "mountpoint --quiet /opt/dlami/nvme")
        yield lab


def all_but_ours(lab: Lab, node: str) -> list[str]:
    """A node but for the program itself, its log, and the folders in which these are new."""
    ours = (
        "/opt/hyperpod-lifecycle",
        "/etc/hyperpod-lifecycle",
        "/var/log/provision",
        "/usr/local/bin/hyperpod-lifecycle",
    )
    folders = ("/opt ", "/etc ", "/var/log ", "/usr/local/bin ")
    return [line for line in snapshot(lab, node).splitlines() if not line.startswith((*ours, *folders))]


def srun(lab: Lab, *words: str) -> subprocess.CompletedProcess[str]:
    return lab.exec(LOGIN, ["timeout", "60", "srun", *words], user="ubuntu", timeout=90)


@pytest.mark.parametrize("node", [CONTROLLER, LOGIN, COMPUTE])
def test_check_and_diff_on_a_bare_node_change_nothing(lab: Lab, upload: Callable[..., Path], node: str) -> None:
    before = all_but_ours(lab, node)
    lab.put(node, upload(), "/tmp/src")
    must(lab.exec(node, ["bash", "/tmp/src/on_create.sh", "--check", "--diff"]))
    assert all_but_ours(lab, node) == before


def test_up_ends_with_an_idle_partition_and_a_sentence_per_node(lab: Lab, hyperpod_lifecycle: Command) -> None:
    done = hyperpod_lifecycle("lab", "up", "--name", lab.name)
    assert done.returncode == 0, done.stdout + done.stderr
    for node in (CONTROLLER, LOGIN, COMPUTE, "compute-nodes-2"):
        assert f"{node} (" in done.stdout, done.stdout
    assert f"{PARTITION} " in done.stdout
    assert "idle" in done.stdout


def test_a_job_from_the_login_node_runs_on_compute_nodes(lab: Lab) -> None:
    done = srun(lab, "--nodes=2", f"--partition={PARTITION}", "hostname")
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.split()) == sorted(node.host for node in lab.nodes() if node.group == "compute-nodes")


def test_second_up_changes_nothing(lab: Lab, hyperpod_lifecycle: Command) -> None:
    before = {node.name: (node.instance_id, node.address) for node in lab.nodes()}
    done = hyperpod_lifecycle("lab", "up", "--name", lab.name)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count(" 0 changed") == len(before) == 4, done.stdout
    assert {node.name: (node.instance_id, node.address) for node in lab.nodes()} == before


@pytest.mark.parametrize("node", [CONTROLLER, LOGIN, COMPUTE])
def test_one_concern_again_on_a_live_node_changes_nothing(lab: Lab, node: str) -> None:
    before = snapshot(lab, node)
    done = apply(lab, node, "--tags", "slurm")
    assert done.returncode == 0, done.stdout + done.stderr
    assert changed_tasks(last_line(done)) == 0
    report = json.loads(lab.get(node, "/var/log/provision/report.json"))
    statuses = {concern["name"]: concern["status"] for concern in report["concerns"]}
    assert (statuses.pop("platform"), statuses.pop("slurm"), set(statuses.values())) == ("ok", "ok", {"not_selected"})
    assert report["changed_tasks"] == []
    # Of all files only the log and the report are others now.
    before_lines, after_lines = set(before.splitlines()), set(snapshot(lab, node).splitlines())
    assert all("/var/log/provision" in line or "/etc/hyperpod-lifecycle" in line for line in before_lines ^ after_lines)


def test_both_connections_end_alike(lab: Lab) -> None:
    tasks = {}
    for connection in ("warm", "local"):
        done = apply(lab, COMPUTE, "--connection", connection, "--json")
        assert done.returncode == 0, done.stderr
        report = json.loads(done.stdout)
        tasks[connection] = [(c["name"], c["status"], c["changed"], c["failed"]) for c in report["concerns"]]
    assert tasks["warm"] == tasks["local"]


def test_a_mistyped_tag_is_an_error(lab: Lab) -> None:
    done = apply(lab, COMPUTE, "--tags", "slrum")
    assert done.returncode in (2, 3)
    assert "slurm" in last_line(done)


def test_a_mistyped_setting_stops_before_any_change(lab: Lab) -> None:
    path = f"{GROUP_VARS}/compute.yml"
    lab.put(COMPUTE, b"slurm_restart_secnods: 3\n", path)
    done = apply(lab, COMPUTE)
    lab.exec(COMPUTE, ["rm", path], check=True)
    assert done.returncode != 0
    assert "slurm_restart_seconds" in done.stdout + done.stderr


def test_a_setting_reaches_the_node_it_is_for(lab: Lab) -> None:
    path = f"{GROUP_VARS}/instance_group_compute_nodes.yml"
    lab.put(COMPUTE, b"slurm_log_size: 7M\n", path)
    done = apply(lab, COMPUTE, "--tags", "slurm")
    lab.exec(COMPUTE, ["rm", path], check=True)
    assert changed_tasks(last_line(done)) == 1
    assert "size 7M" in lab.get(COMPUTE, "/etc/logrotate.d/sagemaker-hyperpod-slurm").decode()
    assert changed_tasks(last_line(apply(lab, COMPUTE))) == 1, "and back"


@pytest.mark.parametrize("seconds", [0.3, 1.4, 2.8])
def test_a_run_killed_at_any_moment_leaves_nothing_that_hinders_the_next(lab: Lab, seconds: float) -> None:
    # What the run would have to do again is undone first, so that it is killed amid changes.
    undo = "rm -f /etc/logrotate.d/sagemaker-hyperpod-slurm /etc/systemd/system/slurmd.service.d/hyperpod.conf"
    kill = f"hyperpod-lifecycle apply >/dev/null 2>&1 & run=$!; sleep {seconds}; kill -9 $run; wait $run; test $? = 137"
    killed = lab.exec(COMPUTE, ["bash", "-c", f"{undo}; {kill}"])
    assert killed.returncode == 0, "the run had ended before it was killed"
    done = apply(lab, COMPUTE)
    assert done.returncode == 0, done.stdout + done.stderr
    assert changed_tasks(last_line(apply(lab, COMPUTE))) == 0
    marked = "grep -l -s -z HYPERPOD_LIFECYCLE_RUN /proc/[0-9]*/environ"
    leftovers = f"{marked}; ls -A /run/hyperpod-lifecycle | grep -vE '^(lock|modules)$'"
    assert lab.exec(COMPUTE, ["bash", "-c", leftovers]).stdout == ""


@pytest.mark.parametrize(
    ("node", "spoil", "in_use"),
    [
        # slurmd starts again; slurmctld reads its files and sends them.
        (COMPUTE, "echo '# old' >>/etc/systemd/system/slurmd.service.d/hyperpod.conf", "Start the daemon"),
        (CONTROLLER, "echo 'include plugstack.conf.d/*' >>/opt/slurm/etc/plugstack.conf", "Send plugstack.conf"),
    ],
    ids=["slurmd", "slurmctld"],
)
def test_what_a_killed_run_has_written_is_in_use_after_the_next(lab: Lab, node: str, spoil: str, in_use: str) -> None:
    bash(lab, node, spoil)
    assert killed(lab, node, "slurm")[0] == KILLED
    assert applied(lab, node, tags="slurm") == 1, "what was written is right"
    (changed,) = json.loads(lab.get(node, "/var/log/provision/report.json"))["changed_tasks"]
    assert in_use in changed["task"]
    assert applied(lab, node, tags="slurm") == 0


def test_slurmd_survives_a_controller_that_comes_later(lab: Lab) -> None:
    lab.exec(CONTROLLER, ["systemctl", "stop", "slurmctld"], check=True)
    lab.exec(COMPUTE, ["systemctl", "restart", "--no-block", "slurmd"], check=True)
    path = f"{GROUP_VARS}/all.yml"
    lab.put(COMPUTE, b"slurm_daemon_wait_seconds: 2\n", path)
    done = apply(lab, COMPUTE)
    lab.exec(COMPUTE, ["rm", path], check=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "no controller answers" in last_line(done)
    lab.exec(CONTROLLER, ["systemctl", "start", "slurmctld"], check=True)
    wait_for(lab, LOGIN, f"sinfo --noheader --partition={PARTITION} --states=idle --format=%D | grep -qx 2")


def test_a_broken_daemon_is_told_with_its_last_words(lab: Lab) -> None:
    lab.exec(
        COMPUTE,
        ["bash", "-c", "cp -p /etc/munge/munge.key /root/munge.key && head -c 128 /dev/zero >/etc/munge/munge.key"],
    )
    lab.exec(COMPUTE, ["bash", "-c", "systemctl restart munge && systemctl restart --no-block slurmd"], check=True)
    path = f"{GROUP_VARS}/all.yml"
    lab.put(COMPUTE, b"slurm_daemon_wait_seconds: 2\n", path)
    done = apply(lab, COMPUTE)
    lab.exec(
        COMPUTE,
        ["bash", "-c", f"rm {path}; cp -p /root/munge.key /etc/munge/munge.key; systemctl restart munge slurmd"],
    )
    assert done.returncode == 4, done.stdout + done.stderr
    assert "slurm" in last_line(done)
    assert "Protocol authentication error" in done.stdout + done.stderr
    assert apply(lab, COMPUTE).returncode == 0


def test_a_new_node_is_not_registered_at_first_and_runs_jobs_soon(lab: Lab) -> None:
    (result,) = lab.scale("compute-nodes", 3)
    assert result.exit_code == 0, result.summary
    assert "not in the controller's slurm.conf yet" in result.summary
    wait_for(lab, LOGIN, f"sinfo --noheader --partition={PARTITION} --states=idle --format=%D | grep -qx 3")
    assert srun(lab, "--nodes=3", "hostname").returncode == 0


def test_a_replaced_node_runs_jobs(lab: Lab) -> None:
    before = lab.node("compute-nodes-2")
    keys = bash(lab, before.name, "cat /etc/ssh/ssh_host_*_key.pub")
    (result,) = lab.replace("compute-nodes-2")
    after = lab.node("compute-nodes-2")
    assert result.exit_code == 0, result.summary
    assert after.instance_id != before.instance_id
    assert after.address == before.address, "the network interface stays"
    assert bash(lab, after.name, "cat /etc/ssh/ssh_host_*_key.pub") != keys
    wait_for(lab, LOGIN, f"sinfo --noheader --nodes={after.host} --states=idle --format=%D | grep -qx 1")
    assert srun(lab, f"--nodelist={after.host}", "hostname").stdout.strip() == after.host


def test_fewer_nodes(lab: Lab) -> None:
    assert lab.scale("compute-nodes", 2) == []
    wait_for(lab, LOGIN, f"sinfo --noheader --partition={PARTITION} --format=%D | grep -qx 2")


def test_another_controller_address_is_applied_by_running_again(lab: Lab) -> None:
    old = lab.node(CONTROLLER)
    (result,) = lab.replace(CONTROLLER, new_address=True)
    assert result.exit_code == 0, result.summary
    new = lab.node(CONTROLLER)
    assert new.address != old.address
    for result in lab.up():
        assert result.exit_code == 0, result.summary
    # With `ami`, login nodes are registered.
    for node, unit in ((COMPUTE, "slurmd"), (LOGIN, "slurmd" if IMAGE == "ami" else "sackd")):
        start = lab.exec(node, ["systemctl", "show", unit, "--property=ExecStart", "--value"]).stdout
        assert f"--conf-server {new.address}:6817" in start
        assert f"{old.address}:" not in start
    wait_for(lab, LOGIN, f"sinfo --noheader --partition={PARTITION} --states=idle --format=%D | grep -qx 2")
    assert srun(lab, "hostname").returncode == 0


def test_misspelt_controller_group_stops_every_node_before_any_change(
    tmp_path: Path, upload: Callable[..., Path]
) -> None:
    parameters = json.loads((Path(__file__).parents[2] / "lab/example/provisioning_parameters.json").read_text())
    parameters["controller_group"] = "controler-machine"
    path = tmp_path / "provisioning_parameters.json"
    path.write_text(json.dumps(parameters))
    with lab_called("e2e-bad") as bad:
        bad.up(shape(parameters=path, compute_nodes=1), scripts=False)
        before = {node.name: all_but_ours(bad, node.name) for node in bad.nodes()}
        results = bad.up(upload_folder=upload())
        assert len(results) == 3
        for result in results:
            assert result.exit_code == 3, result.summary
            assert "controler-machine" in result.summary
            for group in ("controller-machine", "login-group", "compute-nodes"):
                assert group in result.summary
            assert all_but_ours(bad, result.node.name) == before[result.node.name]
