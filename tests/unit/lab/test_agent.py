# SPDX-License-Identifier: Apache-2.0
"""The files that the cluster agent stand-in writes, read back by the product's own reader."""

from __future__ import annotations

from ipaddress import IPv4Address
from itertools import islice
from pathlib import Path

import pytest

from hyperpod_lab import agent
from hyperpod_lab.addresses import SUBNETS, free_addresses
from hyperpod_lab.agent import Hardware, Node
from hyperpod_lab.image import Release
from hyperpod_lab.shape import EXAMPLE, Shape, from_create_cluster
from hyperpod_lifecycle.cluster import Cluster, NodeType, load

CASES = Path(__file__).parents[1] / "cases"
HARDWARE = Hardware(cpus=4, memory_mb=7000)


def nodes_of(shape: Shape) -> list[Node]:
    places = [(group, name) for group in shape.groups for name in group.instances]
    found = islice(free_addresses(SUBNETS[0], []), len(places))
    return [
        Node(name, group.name, group.instance_type, f"i-{number:017}", address, f"lab-{name}")
        for number, ((group, name), address) in enumerate(zip(places, found, strict=True))
    ]


def cluster_of(shape: Shape, folder: Path) -> Cluster:
    resource_config, parameters = folder / "resource_config.json", None
    resource_config.write_text(agent.resource_config(shape, nodes_of(shape)))
    if shape.provisioning_parameters is not None:
        parameters = folder / "provisioning_parameters.json"
        parameters.write_text(shape.provisioning_parameters)
    return load(resource_config, parameters)


@pytest.fixture
def example() -> Shape:
    return from_create_cluster(EXAMPLE / "create_cluster.json", None, Release.TRIXIE).resized({"compute-nodes": 2})


@pytest.fixture
def api() -> Shape:
    shape = from_create_cluster(CASES / "08-create_cluster-api-driven.json", None, Release.TRIXIE)
    return shape.resized({"brain": 2, "1-muscle": 1})


def lines(text: str, key: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith(f"{key}=")]


def test_file_form_reads_back(example: Shape, tmp_path: Path) -> None:
    cluster = cluster_of(example, tmp_path)
    assert cluster.source == "provisioning_parameters"
    assert [(i.name, i.address) for i in cluster.instances] == [
        ("controller-machine-1", "10.70.0.1"),
        ("login-group-1", "10.70.0.11"),
        ("compute-nodes-1", "10.70.0.10"),
        ("compute-nodes-2", "10.70.0.100"),
    ]
    assert len({instance.instance_id for instance in cluster.instances}) == 4


def test_api_form_reads_back(api: Shape, tmp_path: Path) -> None:
    cluster = cluster_of(api, tmp_path)
    assert cluster.source == "slurm_config"
    assert [group.node_type for group in cluster.groups] == [NodeType.CONTROLLER, NodeType.LOGIN, NodeType.COMPUTE]
    assert cluster.controller_addresses == ("10.70.0.1", "10.70.0.11")
    assert [(each.kind, each.mount_path) for each in cluster.groups[1].file_systems] == [
        ("lustre", "/scratch"),
        ("openzfs", "/home"),
    ]


def test_a_node_that_does_not_exist_yet_is_not_in_the_snapshot(example: Shape, tmp_path: Path) -> None:
    path = tmp_path / "resource_config.json"
    path.write_text(agent.resource_config(example, nodes_of(example)[:3]))
    parameters = tmp_path / "provisioning_parameters.json"
    parameters.write_text(example.provisioning_parameters or "")
    assert [instance.name for instance in load(path, parameters).instances][-1] == "compute-nodes-1"


def test_slurm_conf_has_what_the_agent_manages(example: Shape, tmp_path: Path) -> None:
    text = agent.slurm_conf(cluster_of(example, tmp_path), HARDWARE)
    assert lines(text, "ClusterName") == ["ClusterName=your-hyperpod-cluster"]
    assert lines(text, "SlurmctldHost") == ["SlurmctldHost=ip-10-70-0-1(10.70.0.1)"]
    assert lines(text, "TaskPlugin") == ["TaskPlugin=task/none"]
    assert lines(text, "SchedulerParameters") == ["SchedulerParameters=permit_job_expansion"]
    assert lines(text, "NodeName") == [
        "NodeName=ip-10-70-0-10 NodeAddr=10.70.0.10 CPUs=4 RealMemory=7000 State=UNKNOWN",
        "NodeName=ip-10-70-0-100 NodeAddr=10.70.0.100 CPUs=4 RealMemory=7000 State=UNKNOWN",
    ]
    hosts = "ip-10-70-0-10,ip-10-70-0-100"
    assert lines(text, "PartitionName") == [
        f"PartitionName=ml.trn1.32xlarge Nodes={hosts} Default=NO MaxTime=INFINITE State=UP",
        "PartitionName=dev Nodes=ALL Default=YES MaxTime=INFINITE State=UP",
    ]
    assert "SlurmctldParameters=enable_configless" in text
    assert "\nInclude accounting.conf\n" in text
    assert "GresTypes" not in text


def test_gpus_are_a_resource_with_devices(api: Shape, tmp_path: Path) -> None:
    cluster = cluster_of(api, tmp_path)
    text = agent.slurm_conf(cluster, HARDWARE)
    assert lines(text, "GresTypes") == ["GresTypes=gpu"]
    assert "Gres=gpu:8" in lines(text, "NodeName")[0]
    assert lines(agent.gres_conf(cluster), "NodeName") == ["NodeName=ip-10-70-0-100 Name=gpu File=/dev/nvidia[0-7]"]
    devices = agent.fake_nvidia("ml.p5.48xlarge").splitlines()
    assert devices[0] == "c /dev/nvidia0 0666 root root - 1:3"
    assert len(devices) == 8


def test_one_gpu_is_no_range(api: Shape, tmp_path: Path) -> None:
    request = (CASES / "08-create_cluster-api-driven.json").read_text()
    path = tmp_path / "create_cluster.json"
    path.write_text(request.replace('"ml.p5.48xlarge",', '"ml.g5.xlarge",'))
    shape = from_create_cluster(path, None, Release.TRIXIE).resized({"1-muscle": 1})
    assert "File=/dev/nvidia0\n" in agent.gres_conf(cluster_of(shape, tmp_path))


def test_empty_partitions_name_no_nodes(api: Shape, tmp_path: Path) -> None:
    text = agent.slurm_conf(cluster_of(api.resized({"1-muscle": 0}), tmp_path), HARDWARE)
    assert lines(text, "NodeName") == []
    assert lines(text, "PartitionName") == [
        "PartitionName=train Default=NO MaxTime=INFINITE State=UP",
        "PartitionName=dev Default=YES MaxTime=INFINITE State=UP",
    ]


def test_nodes_get_the_second_file_only_in_the_file_form(example: Shape, api: Shape) -> None:
    for shape, count in ((example, 2), (api, 1)):
        node = nodes_of(shape)[0]
        assert len(agent.node_files(shape, nodes_of(shape), node)) == count
    gpu = nodes_of(api)[-1]
    assert gpu.address == IPv4Address("10.70.0.100")
    assert agent.FAKE_NVIDIA in agent.node_files(api, nodes_of(api), gpu)
