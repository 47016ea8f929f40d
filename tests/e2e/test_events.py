# SPDX-License-Identifier: Apache-2.0
"""What the service does to a cluster in its life, in the lab: which files, identities and services each event leaves.

Scripts of five lines stand in for ours, so that only the lab is looked at. The agent rewrites its lines all the while.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from conftest import lab_called, shape
from nodes import COMPUTE, CONTROLLER, bash, wait_for

from hyperpod_lab.agent import Node
from hyperpod_lab.lab import Lab
from hyperpod_lab.shape import GroupShape, Platform

ETC, CONFIG = "/opt/slurm/etc", "/opt/ml/config"
#: Starts the node's daemon as the service's own scripts do; slurmd again until the controller knows the node.
ON_CREATE = """\
set -eu
[ ! -e /etc/broken ] || exit 1
pwd >/run/ran-in
systemctl start munge
if [ -e /opt/ml/config/cluster_agent.json ]; then exec systemctl start slurmctld; fi
controller=$(jq -r '.InstanceGroups[] | select(.Name == "controller-machine").Instances[0].CustomerIpAddress' \
    /opt/ml/config/resource_config.json)
sed -i "s/\\$SLURMD_OPTIONS/--conf-server $controller/" /etc/systemd/system/slurmd.service
mkdir -p /etc/systemd/system/slurmd.service.d
printf '[Unit]\nStartLimitIntervalSec=0\n[Service]\nRestart=on-failure\n' >/etc/systemd/system/slurmd.service.d/r.conf
systemctl daemon-reload
systemctl enable --now munge slurmd
"""
PLATFORM = Platform("ami", "registered", topology="tree", last_newline=False, staging="bucket", rewrite_every=0.5)


@pytest.fixture(scope="module")
def scripts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("scripts")
    (folder / "on_create.sh").write_text(ON_CREATE)
    return folder


@pytest.fixture(scope="module")
def lab(scripts: Path) -> Iterator[Lab]:
    """A controller, a login node and a compute node."""
    with lab_called("events") as lab:
        results = lab.up(shape(platform=PLATFORM, compute_nodes=1), upload_folder=scripts)
        assert [each.exit_code for each in results] == [0, 0, 0], [each.log.read_text() for each in results]
        yield lab


def idle(lab: Lab, *nodes: Node) -> None:
    """Wait until Slurm would start jobs on these, and knows no other node but the login node."""
    names = sorted(node.host for node in (*nodes, lab.node("login-group-1")))
    command = "sinfo --noheader --Node --partition=dev --format='%N %t' 2>/dev/null | sort"
    wait_for(lab, CONTROLLER, f'test "$({command})" = "{chr(10).join(f"{name} idle" for name in names)}"')


def listed(lab: Lab, node: str) -> set[str]:
    """The instance ids in a node's copy of resource_config.json."""
    document = json.loads(lab.get(node, f"{CONFIG}/resource_config.json"))
    return {each["InstanceId"] for group in document["InstanceGroups"] for each in group["Instances"]}


def host_keys(lab: Lab, node: str) -> str:
    return bash(lab, node, "cat /etc/ssh/ssh_host_*_key.pub")


def test_nodes_are_as_the_image_ships_them(lab: Lab) -> None:
    idle(lab, lab.node(COMPUTE))
    assert bash(lab, CONTROLLER, f"ls {CONFIG}").split() == [
        "cluster_agent.json",
        "host_agent.json",
        "life_cycle_config.json",
        "provisioning_parameters.json",
        "resource_config.json",
    ]
    units = "sagemaker-{host,health-monitoring,role-proxy,cluster}-agent sagemaker-fluent-bit"
    wait_for(lab, COMPUTE, "systemctl show --property=ActiveState --value sagemaker-cluster-agent | grep -qx inactive")
    for node, expected in ((CONTROLLER, "active"), (COMPUTE, "inactive")):
        states = bash(lab, node, f"systemctl is-active {units}; true").split()
        assert states == ["active", "active", "active", expected, "active"], node
    assert bash(lab, COMPUTE, "readlink /opt/slurm; ls -d /opt/slurm-*").split()[0].startswith("/opt/slurm-")
    assert bash(lab, COMPUTE, "id --user slurm; id --user munge").split() == ["992", "991"]
    assert not bash(lab, COMPUTE, f"ls {ETC}/slurm.conf", check=False).startswith("/"), "slurmd's unit has deleted it"
    assert "topology/tree" in bash(lab, CONTROLLER, f"cat {ETC}/slurm.conf")
    assert bash(lab, COMPUTE, "cat /run/ran-in") == "/tmp/sagemaker-lab-bucket/life cycle/v1/src\n"


def test_srun_has_the_options_of_the_images_plugins_and_sbatch_refuses_one(lab: Lab) -> None:
    options = "--partition=dev --immediate=20"
    shown = bash(lab, CONTROLLER, f"srun {options} --auto-resume=1 --container-image=a.sqsh printenv FAKE_PYXIS_IMAGE")
    assert shown == "a.sqsh\n"
    assert "unrecognized option" in bash(lab, CONTROLLER, "sbatch --auto-resume=1 --wrap=true", check=False)


def test_metadata_is_reached_by_nat(lab: Lab) -> None:
    token = "curl -sf -X PUT -H 'X-aws-ec2-metadata-token-ttl-seconds: 60' http://169.254.169.254/latest/api/token"
    ask = f'curl -sf -H "X-aws-ec2-metadata-token: $({token})" http://169.254.169.254/latest/meta-data/instance-id'
    assert bash(lab, COMPUTE, ask) == lab.node(COMPUTE).instance_id


def test_scratch_is_late_and_empty_after_a_reboot(lab: Lab) -> None:
    wait_for(lab, COMPUTE, "mountpoint -q /opt/dlami/nvme && grep -q /opt/dlami/nvme /etc/enroot/enroot.conf")
    bash(lab, COMPUTE, "touch /opt/dlami/nvme/lost /opt/sagemaker/kept /root/kept /tmp/lost")
    before, keys = lab.node(COMPUTE), host_keys(lab, COMPUTE)
    with lab.agent_at_work(every=0.5):
        lab.reboot(COMPUTE)
    assert (lab.node(COMPUTE), host_keys(lab, COMPUTE)) == (before, keys)
    wait_for(lab, COMPUTE, "mountpoint -q /opt/dlami/nvme")
    assert bash(lab, COMPUTE, "ls /opt/dlami/nvme/lost /opt/sagemaker/kept /root/kept /tmp/lost 2>/dev/null; true") == (
        "/opt/sagemaker/kept\n/root/kept\n"
    )
    assert not bash(lab, COMPUTE, "ls /run/ran-in", check=False).startswith("/"), "no scripts run at a reboot"
    # Its own words are those of plain Slurm; an operator resumes it.
    wait_for(
        lab,
        CONTROLLER,
        f"scontrol update NodeName={before.host} State=RESUME; sinfo -hn {before.host} -t idle | grep -q .",
    )
    idle(lab, before)


def test_more_nodes_and_fewer(lab: Lab, scripts: Path) -> None:
    (result,) = lab.scale("compute-nodes", 2, upload_folder=scripts)
    assert result.exit_code == 0
    new = result.node
    idle(lab, lab.node(COMPUTE), new)
    assert new.instance_id in listed(lab, CONTROLLER)
    assert new.instance_id not in listed(lab, COMPUTE), "a worker's copy is old"
    lab.scale("compute-nodes", 1)
    idle(lab, lab.node(COMPUTE))
    assert new.instance_id not in listed(lab, CONTROLLER)
    assert new.host not in bash(lab, CONTROLLER, f"cat {ETC}/slurm.conf {ETC}/topology.conf")


def test_a_group_that_comes_later(lab: Lab, scripts: Path) -> None:
    (result,) = lab.add_group(GroupShape("more", "ml.g5.xlarge", ("more-1",)), "gpus", upload_folder=scripts)
    assert result.exit_code == 0
    idle(lab, lab.node(COMPUTE), result.node)
    assert (
        bash(lab, CONTROLLER, "srun --partition=gpus --gres=gpu:1 --immediate=20 hostname") == f"{result.node.host}\n"
    )
    lab.scale("more", 0)
    idle(lab, lab.node(COMPUTE))


@pytest.mark.parametrize("new_address", [False, True], ids=["same-address", "new-address"])
def test_a_replaced_node(lab: Lab, scripts: Path, new_address: bool) -> None:
    before, keys = lab.node(COMPUTE), host_keys(lab, COMPUTE)
    bash(lab, COMPUTE, "touch /opt/sagemaker/lost")
    (result,) = lab.replace(COMPUTE, new_address=new_address, upload_folder=scripts)
    after = lab.node(COMPUTE)
    assert result.exit_code == 0
    assert after.instance_id != before.instance_id
    assert (after.address != before.address) is new_address
    assert host_keys(lab, COMPUTE) != keys
    assert not bash(lab, COMPUTE, "ls /opt/sagemaker/lost", check=False).startswith("/")
    idle(lab, after)


def test_a_software_update_that_succeeds_and_one_that_rolls_back(lab: Lab, scripts: Path) -> None:
    before, keys = lab.node(COMPUTE), host_keys(lab, COMPUTE)
    (result,) = lab.update(["compute-nodes"], upload_folder=scripts)
    assert (result.exit_code, lab.update_status) == (0, "Succeeded")
    assert lab.node(COMPUTE) == before
    assert host_keys(lab, COMPUTE) != keys, "the root is new"
    idle(lab, before)
    results = lab.update(
        ["compute-nodes"], prepare=lambda node: bash(lab, node.name, "touch /etc/broken"), upload_folder=scripts
    )
    assert [each.exit_code for each in results] == [1, 1, 1, 0]
    assert lab.update_status == "Failed"
    assert lab.node(COMPUTE) == before
    idle(lab, before)
