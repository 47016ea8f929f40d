# SPDX-License-Identifier: Apache-2.0
"""Containers with the real Docker in the nodes of a lab.

The tests of this module share one lab and follow each other.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from conftest import changed_tasks, lab_called, shape

from hyperpod_lab.lab import Lab

CONTROLLER, LOGIN, COMPUTE = "controller-machine-1", "login-group-1", "compute-nodes-1"
NVME, VOLUME = "/opt/dlami/nvme", "/opt/sagemaker"
SETTINGS = "/etc/hyperpod-lifecycle/inventory/group_vars/all.yml"
BIN = "/opt/hyperpod-lifecycle/current/bin"

#: A disk, as far as the kernel and Docker can tell.
DISK = "mkdir -p {0}; truncate -s 2G /srv/{1}.img; mkfs.ext4 -q -F /srv/{1}.img; mount -o loop /srv/{1}.img {0}"

#: A tiny image of the node's own files, for containers that stay.
IMAGE = """
mkdir -p /srv/image/usr/bin; cp /usr/bin/sleep /srv/image/usr/bin
for file in $(ldd /usr/bin/sleep | grep -o '/[^ ]*'); do
    mkdir -p "/srv/image/${file%/*}"; cp -L "$file" "/srv/image/$file"
done
tar -C /srv/image -c . | docker import - sleeper:1
"""

#: Ends Ansible the hard way as soon as a task has changed something, before the next one begins.
KILLER = """\
import os, signal
from ansible.plugins.callback import CallbackBase

class CallbackModule(CallbackBase):
    CALLBACK_VERSION, CALLBACK_NAME, CALLBACK_NEEDS_ENABLED = 2.0, "killer", True

    def v2_runner_on_ok(self, result):
        if result._result.get("changed"):
            os.write(1, f"killed after {result._task.get_name()}\\n".encode())
            os.killpg(0, signal.SIGKILL)
"""


@pytest.fixture(scope="module")
def lab(upload: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    folder = tmp_path_factory.mktemp("containers") / "src"
    shutil.copytree(upload(), folder)
    (folder / "inventory/group_vars/all.yml").write_text("containers_enabled: true\n")
    with lab_called("containers") as lab:
        lab.up(shape(compute_nodes=1), scripts=False)
        for node in (LOGIN, COMPUTE):
            bash(lab, node, DISK.format(NVME, "nvme"))
        bash(lab, COMPUTE, DISK.format(VOLUME, "volume"))
        results = lab.up(upload_folder=folder)
        assert [result.exit_code for result in results] == [0, 0, 0], [result.summary for result in results]
        assert all(": ok:" in result.summary for result in results), [result.summary for result in results]
        assert "container data is on the root disk" in results[0].summary
        yield lab


def bash(lab: Lab, node: str, script: str, *, check: bool = True) -> str:
    done = lab.exec(node, ["bash", "-c", script], check=check)
    return done.stdout + ("" if check else done.stderr)


def apply(lab: Lab, node: str, *words: str) -> subprocess.CompletedProcess[str]:
    return lab.exec(node, ["hyperpod-lifecycle", "apply", "--tags", "containers", *words])


def applied(lab: Lab, node: str, *words: str) -> int:
    """How much a good run changed."""
    done = apply(lab, node, *words)
    assert done.returncode == 0, done.stdout + done.stderr
    return changed_tasks(done.stdout.strip().splitlines()[-1])


def as_ubuntu(lab: Lab, node: str, script: str) -> str:
    return bash(lab, node, f"runuser --login ubuntu --command {script!r}")


@pytest.mark.parametrize(("node", "disk"), [(COMPUTE, NVME), (LOGIN, NVME), (CONTROLLER, None)])
def test_docker_runs_containers_with_its_data_on_the_best_disk(lab: Lab, node: str, disk: str | None) -> None:
    bash(lab, node, IMAGE)
    as_ubuntu(lab, node, "docker run --rm --network=none sleeper:1 /usr/bin/sleep 0")
    information = json.loads(bash(lab, node, "docker info --format='{{json .}}'"))
    assert information["DockerRootDir"] == (f"{disk}/docker/data-root" if disk else "/var/lib/docker")
    assert information["LiveRestoreEnabled"]
    containerd = bash(lab, node, "containerd config dump | grep ^root")
    assert (f"{disk}/docker/containerd" if disk else "/var/lib/containerd") in containerd
    temporary = bash(lab, node, "tr '\\0' '\\n' </proc/$(pidof dockerd)/environ | grep DOCKER_TMPDIR", check=False)
    assert temporary.strip() == (f"DOCKER_TMPDIR={disk}/docker/tmp" if disk else "")
    daemon_json = json.loads(lab.get(node, "/etc/docker/daemon.json"))
    assert daemon_json["default-cgroupns-mode"] == "private", "what the image sets stays"


@pytest.mark.parametrize("node", [COMPUTE, LOGIN, CONTROLLER])
def test_only_members_of_the_group_may_use_docker(lab: Lab, node: str) -> None:
    bash(lab, node, "useradd --create-home ada; chgrp docker /usr/bin/docker; chmod g+s /usr/bin/docker")
    assert "Server Version" in bash(lab, node, "runuser --login ada --command 'docker info'", check=False)
    assert applied(lab, node) == 1
    assert "permission denied" in bash(lab, node, "runuser --login ada --command 'docker info'", check=False)


def test_a_second_run_restarts_nothing_and_jobs_and_containers_go_on(lab: Lab) -> None:
    job = as_ubuntu(lab, LOGIN, "sbatch --parsable --wrap='sleep 600'").strip()
    state = f"squeue --noheader --jobs={job} --format=%T"
    deadline = time.monotonic() + 30
    while "RUNNING" not in bash(lab, LOGIN, state):
        assert time.monotonic() < deadline
        time.sleep(0.5)
    bash(lab, COMPUTE, "docker run --detach --name=stays --network=none sleeper:1 /usr/bin/sleep 600")
    pids = bash(lab, COMPUTE, "pidof dockerd containerd")
    assert applied(lab, COMPUTE) == 0
    assert bash(lab, COMPUTE, "pidof dockerd containerd") == pids
    assert "RUNNING" in bash(lab, LOGIN, state)
    assert "true" in bash(lab, COMPUTE, "docker inspect --format='{{.State.Running}}' stays")


def test_a_new_setting_restarts_docker_and_not_its_containers(lab: Lab) -> None:
    pid = bash(lab, COMPUTE, "pidof dockerd")
    lab.put(COMPUTE, b"containers_docker_settings: {log-opts: {max-size: 10m}}\n", SETTINGS)
    assert applied(lab, COMPUTE) == 2
    assert bash(lab, COMPUTE, "pidof dockerd") != pid
    assert "true" in bash(lab, COMPUTE, "docker inspect --format='{{.State.Running}}' stays")
    assert applied(lab, COMPUTE) == 0


def test_docker_is_not_moved_under_containers_that_run(lab: Lab) -> None:
    pid = bash(lab, COMPUTE, "pidof dockerd")
    lab.put(COMPUTE, f"containers_docker_settings: {{data-root: {VOLUME}/docker}}\n".encode(), SETTINGS)
    done = apply(lab, COMPUTE)
    assert done.returncode == 0, done.stderr
    assert "keeps its older settings because containers run (1)" in done.stdout.splitlines()[-1]
    assert bash(lab, COMPUTE, "pidof dockerd") == pid
    bash(lab, COMPUTE, "docker rm --force stays")
    assert applied(lab, COMPUTE) == 1
    assert bash(lab, COMPUTE, "docker info --format='{{.DockerRootDir}}'").strip() == f"{VOLUME}/docker"
    bash(lab, COMPUTE, f"rm {SETTINGS}")
    assert applied(lab, COMPUTE) == 2, "and back: without the setting it goes to the NVMe disk"
    assert applied(lab, COMPUTE) == 0


@pytest.mark.parametrize("required", [False, True])
def test_an_unreadable_daemon_json_is_named_and_left(lab: Lab, required: bool) -> None:
    bash(lab, LOGIN, 'cp -a /etc/docker/daemon.json /root/kept; echo \'{"data-root": "/x"}\' >>/etc/docker/daemon.json')
    before = bash(lab, LOGIN, "sha256sum /etc/docker/daemon.json; pidof dockerd")
    if required:
        lab.put(LOGIN, b"containers_required: true\n", SETTINGS)
    done = apply(lab, LOGIN)
    last = (done.stdout + done.stderr).strip().splitlines()[-1]
    assert done.returncode == (4 if required else 0), last
    assert (": failed: " if required else ": degraded: ") in last
    assert "/etc/docker/daemon.json: it is no valid JSON (Extra data" in last
    assert bash(lab, LOGIN, "sha256sum /etc/docker/daemon.json; pidof dockerd") == before
    bash(lab, LOGIN, f"mv /root/kept /etc/docker/daemon.json; rm -f {SETTINGS}")
    assert applied(lab, LOGIN) == 0


def test_a_setting_that_docker_does_not_know_is_refused(lab: Lab) -> None:
    before = bash(lab, LOGIN, "sha256sum /etc/docker/daemon.json; pidof dockerd")
    lab.put(LOGIN, b"containers_docker_settings: {log-drivr: local}\n", SETTINGS)
    done = apply(lab, LOGIN)
    assert "log-drivr" in done.stdout.splitlines()[-1], done.stdout
    assert bash(lab, LOGIN, "sha256sum /etc/docker/daemon.json; pidof dockerd") == before
    bash(lab, LOGIN, f"rm {SETTINGS}")


def test_half_an_installation_is_completed(lab: Lab) -> None:
    bash(lab, LOGIN, "apt-get -qq remove docker-cli >/dev/null; ! command -v docker")
    assert applied(lab, LOGIN) == 1


UNIT = """\
[Service]
Type=oneshot
RemainAfterExit={stays}
ExecStart=/bin/sh -c 'while [ ! -e /run/{name} ]; do sleep 0.1; done; read status </run/{name}; exit $status'
"""


def scratch(lab: Lab, node: str, wait: int = 60) -> dict[str, object]:
    """What the module finds."""
    words = f"paths={NVME},{VOLUME} root_path=/var/lib/x unit=dlami-nvme.service wait_seconds={wait}"
    ask = f"cd /; {BIN}/ansible localhost -m hyperpod.lifecycle.scratch_disk -a '{words}' -o"
    said = bash(lab, node, ask)
    found: dict[str, object] = json.loads(said[said.index("{") :])
    return found


def test_the_disk_is_waited_for_where_a_unit_mounts_it(lab: Lab) -> None:
    assert scratch(lab, COMPUTE)["folder"] == NVME
    bash(lab, COMPUTE, f"umount --lazy {NVME}")
    assert scratch(lab, COMPUTE)["note"] == "", "nobody waits where there is no such unit"
    for stays in ("yes", "no"):
        unit = UNIT.format(stays=stays, name="nvme")
        lab.put(COMPUTE, unit.encode(), "/etc/systemd/system/dlami-nvme.service")
        bash(lab, COMPUTE, "rm -f /run/nvme; systemctl daemon-reload")
        if stays == "yes":
            assert "has not run" in str(scratch(lab, COMPUTE)["note"])
        bash(lab, COMPUTE, "systemctl start --no-block dlami-nvme")
        late = scratch(lab, COMPUTE, wait=0)
        assert (late["folder"], f"had not mounted {NVME} after 0 s" in str(late["note"])) == (VOLUME, True)
        bash(lab, COMPUTE, f"(sleep 3; mount -o loop /srv/nvme.img {NVME}; echo 0 >/run/nvme) >/dev/null 2>&1 &")
        assert scratch(lab, COMPUTE)["folder"] == NVME, "slow"
        bash(lab, COMPUTE, f"umount --lazy {NVME}; systemctl stop dlami-nvme; echo 1 >/run/nvme")
        bash(lab, COMPUTE, "! systemctl start dlami-nvme")
        failed = scratch(lab, COMPUTE)
        assert (failed["folder"], "has failed" in str(failed["note"])) == (VOLUME, True)
        bash(lab, COMPUTE, "systemctl reset-failed dlami-nvme")
    bash(
        lab,
        COMPUTE,
        f"rm /etc/systemd/system/dlami-nvme.service; systemctl daemon-reload; mount -o loop /srv/nvme.img {NVME}",
    )


def test_a_run_killed_after_any_change_is_completed_by_the_next(lab: Lab) -> None:
    undo = """
    systemctl disable --now docker.socket docker containerd; gpasswd --delete ubuntu docker
    rm -rf /etc/systemd/system/docker.service.d; echo '{"default-cgroupns-mode": "private"}' >/etc/docker/daemon.json
    sed -i '/^root/d' /etc/containerd/config.toml; systemctl daemon-reload; chmod g+s /usr/bin/docker
    """
    bash(lab, LOGIN, undo)
    lab.put(LOGIN, KILLER.encode(), "/root/kill/killer.py")
    run = (
        "cd /; ANSIBLE_CALLBACK_PLUGINS=/root/kill ANSIBLE_CALLBACKS_ENABLED=killer setsid --wait timeout 120 "
        f"{BIN}/ansible-playbook -i /etc/hyperpod-lifecycle/inventory hyperpod.lifecycle.site --tags containers; "
        "echo status $?"
    )
    killed = []
    while "status 137" in (said := bash(lab, LOGIN, run, check=False)):
        killed.append(next(line for line in said.splitlines() if line.startswith("killed after")))
        assert len(set(killed)) == len(killed), killed
    assert said.rstrip().endswith("status 0"), said
    assert len(killed) >= 6, killed
    assert applied(lab, LOGIN) == 0
    assert bash(lab, LOGIN, "docker info --format='{{.DockerRootDir}}'").strip() == f"{NVME}/docker/data-root"
    assert "docker" in bash(lab, LOGIN, "id ubuntu")
    assert as_ubuntu(lab, LOGIN, "docker run --rm --network=none sleeper:1 /usr/bin/sleep 0") == ""
