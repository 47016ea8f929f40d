# SPDX-License-Identifier: Apache-2.0
"""Containers in the nodes of a lab: the real Docker, and fake_enroot and fake_pyxis from a file server.

The tests of this module share one lab and follow each other.
"""

from __future__ import annotations

import json
import re
import shlex
import shutil
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import nodes
import pytest
import yaml
from conftest import THOROUGH, lab_called, shape
from nodes import COMPUTE, CONTROLLER, GROUP_VARS, KILLED, LOGIN, bash, killed, must, wait_for

from hyperpod_lab.debian import ARCHITECTURE, package
from hyperpod_lab.downloads import Downloads, sha256
from hyperpod_lab.lab import Lab

NVME, VOLUME = "/opt/dlami/nvme", "/opt/sagemaker"
ETC = "/opt/slurm/etc"
TOOLKIT = (
    "nvidia-container-toolkit-base",
    "nvidia-container-toolkit",
    "libnvidia-container-tools",
    "libnvidia-container1",
)
SETTINGS = f"{GROUP_VARS}/hyperpod.yml"
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

#: The nodes' settings; a test may have others for a while.
BASE: dict[str, object] = {"containers_enabled": True}


@pytest.fixture(scope="module")
def lab(upload: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    folder = tmp_path_factory.mktemp("containers") / "src"
    shutil.copytree(upload(), folder)
    with lab_called("containers") as lab:
        lab.up(shape(compute_nodes=1), scripts=False)
        downloads = Downloads(lab.services)
        BASE.update(downloads.start(("4.9.0", "4.9.1")))
        (folder / "inventory/group_vars/hyperpod.yml").write_text(yaml.safe_dump(BASE, sort_keys=False))
        for node in (LOGIN, COMPUTE):
            bash(lab, node, DISK.format(NVME, "nvme"))
        bash(lab, COMPUTE, DISK.format(VOLUME, "volume"))
        # The AMI has the headers of its Slurm.
        for node in (CONTROLLER, LOGIN, COMPUTE):
            bash(lab, node, "apt-get -qq update; apt-get -qq install --no-install-recommends libslurm-dev >/dev/null")
        downloads.fail(2)
        results = lab.up(upload_folder=folder)
        assert [result.exit_code for result in results] == [0, 0, 0], [result.summary for result in results]
        # A node may have been ready before the controller.
        assert all(re.search(": (ok|pending): ", each.summary) for each in results), [each.summary for each in results]
        assert "container data" not in results[0].summary, "the controller has no disk for it, as is meant"
        asked = downloads.requests()
        assert len([line for line in asked if line.endswith(" 503")]) == 2, asked
        assert len([line for line in asked if line.endswith(" 200")]) == 9, "three files for three nodes"
        yield lab


#: Runs of this concern alone.
apply = partial(nodes.apply, tags="containers")
applied = partial(nodes.applied, tags="containers")


def summary(lab: Lab, node: str) -> str:
    """That of a run which ends with 0, whatever it says."""
    return must(apply(lab, node))


def set_to(lab: Lab, node: str, **settings: object) -> None:
    """Give a node further settings, or with none take them back."""
    lab.put(node, yaml.safe_dump({**BASE, **settings}, sort_keys=False).encode(), SETTINGS)


def as_ubuntu(lab: Lab, node: str, script: str) -> str:
    return bash(lab, node, f"runuser --login ubuntu --command {shlex.quote(script)}")


def srun(lab: Lab, *words: str) -> str:
    return as_ubuntu(lab, LOGIN, shlex.join(["timeout", "60", "srun", *words])).strip()


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


def test_only_members_of_the_group_may_use_docker(lab: Lab) -> None:
    bash(lab, COMPUTE, "useradd --create-home ada; chgrp docker /usr/bin/docker; chmod g+s /usr/bin/docker")
    assert "Server Version" in bash(lab, COMPUTE, "runuser --login ada --command 'docker info'", check=False)
    assert applied(lab, COMPUTE) == 1
    assert "permission denied" in bash(lab, COMPUTE, "runuser --login ada --command 'docker info'", check=False)


def test_a_second_run_restarts_nothing_and_jobs_and_containers_go_on(lab: Lab) -> None:
    job = as_ubuntu(lab, LOGIN, "sbatch --parsable --wrap='sleep 600'").strip()
    running = f"squeue --noheader --jobs={job} --format=%T | grep -q RUNNING"
    wait_for(lab, LOGIN, running)
    bash(lab, COMPUTE, "docker run --detach --name=stays --network=none sleeper:1 /usr/bin/sleep 600")
    pids = bash(lab, COMPUTE, "pidof dockerd containerd")
    assert applied(lab, COMPUTE) == 0
    assert bash(lab, COMPUTE, "pidof dockerd containerd") == pids
    bash(lab, LOGIN, f"{running}; scancel {job}")
    assert "true" in bash(lab, COMPUTE, "docker inspect --format='{{.State.Running}}' stays")


def test_a_new_setting_restarts_docker_and_not_its_containers(lab: Lab) -> None:
    pid = bash(lab, COMPUTE, "pidof dockerd")
    # Until systemd refuses to: several new settings in one minute are as good as one.
    bash(lab, COMPUTE, "while systemctl restart docker; do :; done")
    set_to(lab, COMPUTE, containers_docker_settings={"log-opts": {"max-size": "10m"}})
    assert applied(lab, COMPUTE) == 2
    assert bash(lab, COMPUTE, "pidof dockerd") != pid
    assert "true" in bash(lab, COMPUTE, "docker inspect --format='{{.State.Running}}' stays")
    assert applied(lab, COMPUTE) == 0


def test_docker_is_not_moved_under_containers_that_run(lab: Lab) -> None:
    pid = bash(lab, COMPUTE, "pidof dockerd")
    set_to(lab, COMPUTE, containers_docker_settings={"data-root": f"{VOLUME}/docker"})
    assert "keeps its older settings because containers run (1)" in summary(lab, COMPUTE)
    assert bash(lab, COMPUTE, "pidof dockerd") == pid
    bash(lab, COMPUTE, "docker rm --force stays")
    assert applied(lab, COMPUTE) == 1
    assert bash(lab, COMPUTE, "docker info --format='{{.DockerRootDir}}'").strip() == f"{VOLUME}/docker"
    set_to(lab, COMPUTE)
    assert applied(lab, COMPUTE) == 2, "and back: without the setting it goes to the NVMe disk"
    assert applied(lab, COMPUTE) == 0


@pytest.mark.parametrize("required", [False, True])
def test_an_unreadable_daemon_json_is_named_and_left(lab: Lab, required: bool) -> None:
    bash(lab, LOGIN, 'cp -a /etc/docker/daemon.json /root/kept; echo \'{"data-root": "/x"}\' >>/etc/docker/daemon.json')
    before = bash(lab, LOGIN, "sha256sum /etc/docker/daemon.json; pidof dockerd")
    set_to(lab, LOGIN, containers_required=required)
    done = apply(lab, LOGIN)
    last = (done.stdout + done.stderr).strip().splitlines()[-1]
    assert done.returncode == (4 if required else 0), last
    assert (": failed: " if required else ": degraded: ") in last
    assert "/etc/docker/daemon.json: it is no valid JSON (Extra data" in last
    assert bash(lab, LOGIN, "sha256sum /etc/docker/daemon.json; pidof dockerd") == before
    bash(lab, LOGIN, "mv /root/kept /etc/docker/daemon.json")
    set_to(lab, LOGIN)
    assert applied(lab, LOGIN) == 1, "Docker started before the file came, whatever time that has"
    assert applied(lab, LOGIN) == 0


def test_a_setting_that_docker_does_not_know_is_refused(lab: Lab) -> None:
    before = bash(lab, LOGIN, "sha256sum /etc/docker/daemon.json; pidof dockerd")
    set_to(lab, LOGIN, containers_docker_settings={"log-drivr": "local"})
    assert "log-drivr" in summary(lab, LOGIN)
    assert bash(lab, LOGIN, "sha256sum /etc/docker/daemon.json; pidof dockerd") == before
    set_to(lab, LOGIN)


def test_srun_reaches_pyxis_on_the_compute_node(lab: Lab) -> None:
    assert srun(lab, "--container-image=/images/x.sqsh", "printenv", "FAKE_PYXIS_IMAGE") == "/images/x.sqsh"
    assert srun(lab, "bash", "-c", "echo ${FAKE_PYXIS_IMAGE-none}") == "none"
    for node in (CONTROLLER, LOGIN, COMPUTE):
        assert "--container-image" in as_ubuntu(lab, node, "srun --help")
    plugstack = lab.get(CONTROLLER, f"{ETC}/plugstack.conf").decode()
    named = [line for line in plugstack.splitlines() if "pyxis" in line]
    assert named == [f"include {ETC}/plugstack.conf.d/pyxis.conf"]
    cgroup = lab.get(CONTROLLER, f"{ETC}/cgroup.conf").decode()
    assert cgroup.endswith("ConstrainCores=no\nConstrainRAMSpace=no\nConstrainDevices=yes\n")


def test_enroot_has_its_data_on_the_disk_and_downloads_on_shared_storage(lab: Lab) -> None:
    for node, disk in ((COMPUTE, NVME), (CONTROLLER, "/var/lib/hyperpod-scratch")):
        conf = dict(
            line.split(maxsplit=1) for line in lab.get(node, "/etc/enroot/enroot.conf").decode().splitlines()[1:]
        )
        assert conf["ENROOT_DATA_PATH"] == f"{disk}/enroot/data/user-$(id -u)"
        assert conf["ENROOT_CACHE_PATH"] == "/fsx/enroot/user-$(id -u)"
        modes = bash(lab, node, f"cd {disk}/enroot; stat --format='%a %n' . * /fsx/enroot").splitlines()
        assert modes == ["755 .", "1777 cache", "1777 data", "1777 runtime", "1777 tmp", "1777 /fsx/enroot"]
    # A disk that is new after a start has the folders again before jobs come.
    bash(lab, COMPUTE, f"rm -r {NVME}/enroot; systemctl restart hyperpod-scratch; test -k {NVME}/enroot/data")


def test_a_wrong_checksum_installs_nothing_and_what_is_there_works_on(lab: Lab) -> None:
    sums = BASE["containers_enroot_checksums"]
    wrong = {ARCHITECTURE: {"4.9.1": dict.fromkeys(("enroot", "enroot+caps"), "0" * 64)}}
    set_to(
        lab, LOGIN, containers_enroot_version="4.9.1", containers_enroot_checksums=wrong, containers_download_attempts=2
    )
    last = summary(lab, LOGIN)
    assert ": degraded: " in last
    assert "checksum" in last
    assert "4.9.0" in bash(lab, LOGIN, "enroot version; ! ls /var/cache/hyperpod-lifecycle/*4.9.1*")
    set_to(lab, LOGIN, containers_enroot_version="4.9.1", containers_enroot_checksums={"other": {}})
    assert "no checksums of Enroot 4.9.1 for" in summary(lab, LOGIN)
    set_to(lab, LOGIN, containers_enroot_version="4.9.1", containers_enroot_checksums=sums)
    assert applied(lab, LOGIN) == 2, "downloaded and installed, and enroot.conf stays ours"
    assert "4.9.1" in bash(lab, LOGIN, "enroot version")
    set_to(lab, LOGIN)
    assert applied(lab, LOGIN) == 0, "nothing becomes older"


def test_pyxis_is_built_anew_for_another_slurm_and_jobs_go_on(lab: Lab) -> None:
    job = as_ubuntu(lab, LOGIN, "sbatch --parsable --wrap='sleep 600'").strip()
    wait_for(lab, LOGIN, f"squeue --noheader --jobs={job} --format=%T | grep -q RUNNING")
    stamp = "/usr/local/share/pyxis/hyperpod-lifecycle.json"
    bash(lab, COMPUTE, f'sed -i \'s/"slurm": "[^"]*/"slurm": "22.05.8/\' {stamp}; mv /usr/bin/gcc /usr/bin/gcc.away')
    bash(lab, COMPUTE, "printf '#!/bin/sh\\nexit 1\\n' >/usr/bin/gcc; chmod +x /usr/bin/gcc")
    digest = bash(lab, COMPUTE, "sha256sum /usr/local/lib/slurm/spank_pyxis.so")
    assert "Pyxis cannot be built" in summary(lab, COMPUTE)
    assert bash(lab, COMPUTE, "sha256sum /usr/local/lib/slurm/spank_pyxis.so") == digest, "the old one works on"
    bash(lab, COMPUTE, "mv /usr/bin/gcc.away /usr/bin/gcc")
    assert applied(lab, COMPUTE) == 2, "built, and slurmd has it"
    assert applied(lab, COMPUTE) == 0
    wait_for(lab, LOGIN, f"squeue --noheader --jobs={job} --format=%T | grep -q RUNNING")
    bash(lab, LOGIN, f"scancel {job}")


def test_a_pyxis_and_an_enroot_conf_of_the_image_are_kept(lab: Lab) -> None:
    conf = f"ENROOT_RUNTIME_PATH /run/enroot/$(id -u)\nENROOT_CACHE_PATH {NVME}/c/$(id -u)\n"
    conf += f"ENROOT_DATA_PATH {NVME}/d/$(id -u)\nENROOT_TEMP_PATH {NVME}/t\n"
    bash(lab, LOGIN, f"mkdir -m 1777 /run/enroot {NVME}/c {NVME}/d {NVME}/t; cp -a /etc/enroot/enroot.conf /root")
    lab.put(LOGIN, conf.encode(), "/etc/enroot/enroot.conf")
    bash(lab, LOGIN, "mv /usr/local/share/pyxis/hyperpod-lifecycle.json /root")
    assert applied(lab, LOGIN) == 0
    bash(lab, LOGIN, "mv /root/hyperpod-lifecycle.json /usr/local/share/pyxis; mv /root/enroot.conf /etc/enroot")


def test_slurmctld_is_told_once_of_what_has_changed(lab: Lab) -> None:
    pid = bash(lab, CONTROLLER, "systemctl show slurmctld --property=ExecMainStartTimestamp")
    bash(lab, CONTROLLER, f"sed -i /ConstrainDevices/d {ETC}/cgroup.conf")
    assert applied(lab, CONTROLLER) == 2
    assert applied(lab, CONTROLLER) == 0
    assert "ConstrainDevices=yes" in bash(lab, COMPUTE, "cat /run/slurm/conf/cgroup.conf")
    assert pid
    bash(lab, CONTROLLER, f"sed -i s/ConstrainDevices=yes/ConstrainDevices=no/ {ETC}/cgroup.conf")
    assert applied(lab, CONTROLLER) == 1, "somebody's decision stays, and is sent"
    assert "ConstrainDevices=no" in bash(lab, COMPUTE, "cat /run/slurm/conf/cgroup.conf")


def toolkit(lab: Lab, node: str, folder: str, version: str) -> None:
    """fake_nvidia packages in a repository that the node's image is said to know."""
    index = ""
    for name in TOOLKIT:
        files = {"/usr/bin/nvidia-container-runtime": b"#!/bin/sh\n"} if name == TOOLKIT[1] else {}
        made = package(name, version, files, Description="fake_nvidia of the lab")
        lab.put(node, made, f"{folder}/{name}_{version}.deb")
        index += f"Package: {name}\nVersion: {version}\nArchitecture: all\nFilename: ./{name}_{version}.deb\n"
        index += f"Size: {len(made)}\nSHA256: {sha256(made)}\nDescription: fake_nvidia\n\n"
    lab.put(node, index.encode(), f"{folder}/Packages-{version}")


def test_the_toolkit_comes_in_the_images_version_where_there_is_a_gpu_with_a_driver(lab: Lab) -> None:
    for version in ("1.17.9-1", "1.18.1-1"):
        toolkit(lab, LOGIN, "/srv/nvidia", version)
    bash(lab, LOGIN, "cd /srv/nvidia; cat Packages-* >Packages; mknod /dev/nvidia0 c 1 3")
    bash(
        lab,
        LOGIN,
        "echo 'deb [trusted=yes] file:/srv/nvidia ./' >/etc/apt/sources.list.d/theirs.list; apt-get -qq update",
    )
    set_to(lab, LOGIN, containers_nvidia_repository="file:/srv/nvidia")
    assert "an NVIDIA device and no driver" in summary(lab, LOGIN)
    # fake_nvidia's driver, as far as /proc tells.
    bash(lab, LOGIN, "mount -t tmpfs tmpfs /proc/driver; mkdir /proc/driver/nvidia; touch /proc/driver/nvidia/version")
    bash(lab, LOGIN, f"dpkg --install /srv/nvidia/{TOOLKIT[0]}_1.17.9-1.deb >/dev/null")
    applied(lab, LOGIN)
    assert applied(lab, LOGIN) == 0
    shown = bash(lab, LOGIN, f"dpkg-query --show --showformat='${{Version}} ${{db:Status-Want}}\n' {' '.join(TOOLKIT)}")
    assert shown.splitlines() == ["1.17.9-1 hold"] * 4, "the image's version, though there is a newer one"
    assert "nvidia" in bash(lab, LOGIN, "docker info --format='{{json .Runtimes}}'")
    bash(lab, LOGIN, "umount /proc/driver; rm /dev/nvidia0")
    set_to(lab, LOGIN)


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
    ask = f"cd /; {BIN}/ansible localhost -m hyperpod.lifecycle.scratch_disk_find -a '{words}' -o"
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


def test_a_run_killed_after_changes_is_completed_by_the_next(lab: Lab) -> None:
    undo = f"""
    systemctl disable --now docker.socket docker containerd; gpasswd --delete ubuntu docker
    rm -rf /etc/systemd/system/docker.service.d; echo '{{"default-cgroupns-mode": "private"}}' >/etc/docker/daemon.json
    sed -i '/^root/d' /etc/containerd/config.toml; chmod g+s /usr/bin/docker
    systemctl disable --now hyperpod-scratch; rm -r /etc/systemd/system/hyperpod-scratch.service {NVME}/enroot
    dpkg --purge enroot+caps enroot; rm -r /var/cache/hyperpod-lifecycle /usr/local/share/pyxis /usr/local/lib/slurm
    rm {ETC}/plugstack.conf.d/pyxis.conf; systemctl daemon-reload
    """
    bash(lab, LOGIN, undo)
    tasks, changes = [], 1 if THOROUGH else 3
    while (end := killed(lab, LOGIN, "containers", changes=changes))[0] == KILLED:
        tasks.append(end[1][-1])
        assert len(set(tasks)) == len(tasks), tasks
    assert len(tasks) >= 14 // changes, tasks
    assert applied(lab, LOGIN) == 0
    assert bash(lab, LOGIN, "docker info --format='{{.DockerRootDir}}'").strip() == f"{NVME}/docker/data-root"
    assert "docker" in bash(lab, LOGIN, "id ubuntu")
    assert as_ubuntu(lab, LOGIN, "docker run --rm --network=none sleeper:1 /usr/bin/sleep 0") == ""
