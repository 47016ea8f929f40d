# SPDX-License-Identifier: Apache-2.0
"""The files that the agents' stand-in writes, held against the runner's reader, with which it shares no code."""

from __future__ import annotations

import json
import tempfile
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hyperpod_lab import agent
from hyperpod_lab.addresses import SUBNETS, free_addresses, host_name
from hyperpod_lab.agent import Hardware, Node, config_files, slurm_files
from hyperpod_lab.agent.request import from_create_cluster, from_resource_config, parts
from hyperpod_lab.errors import LabUsageError
from hyperpod_lab.image import Release
from hyperpod_lab.scripts import staged
from hyperpod_lab.shape import EXAMPLE, Nesting, Platform, Shape
from hyperpod_lifecycle.cluster import Cluster, NodeType, load
from hyperpod_lifecycle.create_cluster import read_create_cluster

CASES = Path(__file__).parents[1] / "cases"
HARDWARE = Hardware(cpus=4, memory_mb=8192)


def nodes_of(shape: Shape) -> list[Node]:
    places = [(group, name) for group in shape.groups for name in group.instances]
    found = islice(free_addresses(SUBNETS[0], []), len(places))
    return [
        Node(name, group.name, group.instance_type, f"i-{number:017}", address, f"lab-{name}")
        for number, ((group, name), address) in enumerate(zip(places, found, strict=True))
    ]


def cluster_of(shape: Shape, folder: Path) -> Cluster:
    resource_config, parameters = folder / "resource_config.json", None
    resource_config.write_text(config_files.resource_config(shape, nodes_of(shape)))
    if shape.provisioning_parameters is not None:
        parameters = folder / "provisioning_parameters.json"
        parameters.write_text(shape.provisioning_parameters)
    return load(resource_config, parameters)


def slurm_conf(shape: Shape, **platform: Any) -> str:
    shape = replace(shape, platform=Platform(**platform))
    return slurm_files.slurm_conf(shape, nodes_of(shape), HARDWARE)


@pytest.fixture
def example() -> Shape:
    return from_create_cluster(EXAMPLE / "create_cluster.json", None, Release.TRIXIE).resized({"compute-nodes": 2})


@pytest.fixture
def api() -> Shape:
    shape = from_create_cluster(CASES / "08-create_cluster-api-driven.json", None, Release.TRIXIE)
    return shape.resized({"brain": 2, "1-muscle": 1})


def lines(text: str, key: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith(f"{key}=")]


# --- independence ---


def test_the_agent_imports_nothing_of_the_runner() -> None:
    folder = Path(agent.__file__).parent
    files = [*folder.glob("*.py"), folder.with_name("shape.py")]
    assert len(files) > 5
    assert [path.name for path in files if "hyperpod_lifecycle" in path.read_text()] == []


NAMES = st.from_regex(r"[a-z][a-z0-9]{0,7}(-[a-z0-9]{1,3})?", fullmatch=True)
TYPES = st.sampled_from(["ml.c5.xlarge", "ml.m5.12xlarge", "ml.p5.48xlarge", "ml.g5.xlarge", "ml.trn1.32xlarge"])
FSX = st.fixed_dictionaries({}, optional={"MountPath": st.sampled_from(["/a", "/scratch", "/data/b"])})


@st.composite
def requests(draw: st.DrawFn) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """A request that the service accepts, in either form, and the second file of the file form."""
    names = draw(st.lists(NAMES, min_size=2, max_size=6, unique=True))
    order = draw(st.permutations(names))
    logins = draw(st.integers(0, min(1, len(names) - 2)))
    controller, login, workers = names[0], names[1 : 1 + logins], names[1 + logins :]
    in_groups = draw(st.booleans())
    partitions = {name: draw(st.sampled_from(["train", "infer", "ml.p5", name])) for name in workers}
    groups = []
    for name in order:
        group: dict[str, Any] = {"InstanceGroupName": name, "InstanceCount": draw(st.integers(name == controller, 3))}
        types = draw(st.lists(TYPES, min_size=1, max_size=2, unique=True))
        if draw(st.booleans()):
            group["InstanceType"] = types[0]
        else:
            group["InstanceRequirements"] = {"InstanceTypes": types}
        if in_groups:
            kind = "Controller" if name == controller else "Login" if name in login else "Compute"
            group["SlurmConfig"] = {"NodeType": kind}
            if kind == "Compute":
                partitions[name] = partitions[name].replace(".", "-")
                group["SlurmConfig"]["PartitionNames"] = [partitions[name]]
            storage = []
            if draw(st.booleans()):
                lustre = {"DnsName": "fs-1.fsx.example", "MountName": "m1", **draw(FSX)}
                storage.append({"FsxLustreConfig": lustre})
            if draw(st.booleans()):
                openzfs: dict[str, Any] = {"DnsName": "fs-2.fsx.example"}
                storage.append({"FsxOpenZfsConfig": openzfs})
            if storage:
                group["InstanceStorageConfigs"] = storage
        groups.append(group)
    request = {"ClusterName": draw(NAMES), "InstanceGroups": groups}
    if in_groups:
        # Sources differ on whether nodes have the second file then; at least it names no groups.
        return request, draw(st.sampled_from([None, {}, {"version": "1.0.0", "workload_manager": "slurm"}]))
    parameters: dict[str, Any] = {
        "version": "1.0.0",
        "workload_manager": "slurm",
        "controller_group": controller,
        "worker_groups": [{"instance_group_name": w, "partition_name": partitions[w]} for w in workers],
    }
    if login:
        parameters["login_group"] = draw(st.sampled_from([login[0], login[:1]]))
    if draw(st.booleans()):
        parameters |= {"fsx_dns_name": "fs-1.fsx.example", "fsx_mountname": "m1"}
    return request, parameters


@pytest.mark.once
@settings(max_examples=200, deadline=None)
@given(requests(), st.sampled_from(["nested", "top"]))
def test_agent_and_runner_agree_on_who_is_what(
    request: tuple[dict[str, Any], dict[str, Any] | None], nesting: Nesting
) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        asked, parameters = folder / "create_cluster.json", folder / "provisioning_parameters.json"
        asked.write_text(json.dumps(request[0]))
        if request[1] is not None:
            parameters.write_text(json.dumps(request[1]))
        given = parameters if request[1] is not None else None
        shape = from_create_cluster(asked, given, Release.TRIXIE)
        shape = replace(shape, platform=Platform(slurm_config=nesting))
        cluster = cluster_of(shape, folder)
        theirs = read_create_cluster(asked)
        again = from_resource_config(folder / "resource_config.json", None, Release.TRIXIE)
    nodes = nodes_of(shape)
    assert [(each.name, each.instance_type, each.count) for each in theirs] == [
        (group.name, group.instance_type, len(group.instances)) for group in shape.groups
    ]
    assert [(g.name, g.node_type, g.partitions) for g in cluster.groups] == [
        (group.name, parts(shape)[group.name].node_type, parts(shape)[group.name].partitions) for group in shape.groups
    ]
    assert [(i.name, i.group, i.instance_id, i.address) for i in cluster.instances] == [
        (node.name, node.group, node.instance_id, str(node.address)) for node in nodes
    ]
    assert [str(node.address) for node in config_files.controllers(shape, nodes)] == [*cluster.controller_addresses]
    for group in cluster.groups:
        for system in group.file_systems:
            assert system.dns_name in {"fs-1.fsx.example", "fs-2.fsx.example"}
    assert [g.file_systems for g in shape.groups] == [g.file_systems for g in again.groups]
    if "controller_group" not in (request[1] or {}):
        assert [[vars(each) for each in g.file_systems] for g in shape.groups] == [
            [vars(each) for each in g.file_systems] for g in cluster.groups
        ]
    text = slurm_files.slurm_conf(shape, nodes, HARDWARE)
    for group in cluster.groups:
        hosts = [f"NodeName={host_name(node.address)} " for node in nodes if node.group == group.name]
        assert [host in text for host in hosts] == [group.node_type is NodeType.COMPUTE] * len(hosts)
        for partition in group.partitions:
            (line,) = [line for line in text.splitlines() if line.startswith(f"PartitionName={partition} ")]
            assert all(host.split("=")[1].strip() in line for host in hosts)


# --- /opt/ml/config ---


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


def test_a_node_that_does_not_exist_yet_is_not_in_the_snapshot(example: Shape) -> None:
    snapshot = json.loads(config_files.resource_config(example, nodes_of(example)[:3]))
    names = [i["InstanceName"] for group in snapshot["InstanceGroups"] for i in group["Instances"]]
    assert names == ["controller-machine-1", "login-group-1", "compute-nodes-1"]


def test_five_files_and_the_fifth_on_the_controller_only(example: Shape, api: Shape) -> None:
    five = {
        config_files.RESOURCE_CONFIG,
        config_files.PROVISIONING_PARAMETERS,
        config_files.LIFE_CYCLE_CONFIG,
        config_files.HOST_AGENT,
        config_files.CLUSTER_AGENT,
    }
    nodes = nodes_of(example)
    assert set(config_files.node_files(example, nodes, nodes[0])) == five
    assert set(config_files.node_files(example, nodes, nodes[1])) == five - {config_files.CLUSTER_AGENT}
    nodes = nodes_of(api)
    assert set(config_files.node_files(api, nodes, nodes[0])) == five - {config_files.PROVISIONING_PARAMETERS}
    assert config_files.FAKE_NVIDIA in config_files.node_files(api, nodes, nodes[-1])
    agents = json.loads(config_files.node_files(api, nodes, nodes[0])[config_files.CLUSTER_AGENT])
    assert set(agents["SlurmConfiguration"]) >= {"EnableTopology", "UseInstanceNames"}


def test_accelerator_groups_have_network_labels(api: Shape) -> None:
    groups = json.loads(config_files.resource_config(api, nodes_of(api)))["InstanceGroups"]
    labels = {group["Name"]: ["InstanceLabel" in each for each in group["Instances"]] for group in groups}
    assert labels["1-muscle"] == [True]
    assert labels["brain"] == [False, False]


def test_files_that_do_not_say_which_group_is_the_controller(example: Shape) -> None:
    wrong = (example.provisioning_parameters or "").replace('"controller-machine"', '"controler-machine"')
    with pytest.raises(LabUsageError, match="no group is the controller"):
        parts(replace(example, provisioning_parameters=wrong))
    with pytest.raises(LabUsageError, match="not JSON"):
        parts(replace(example, provisioning_parameters="{"))


# --- Slurm's files ---


def test_slurm_conf_has_what_the_agent_manages(example: Shape) -> None:
    text = slurm_conf(example)
    assert lines(text, "ClusterName") == ["ClusterName=your-hyperpod-cluster"]
    assert lines(text, "SlurmctldHost") == ["SlurmctldHost=ip-10-70-0-1(10.70.0.1)"]
    assert lines(text, "TaskPlugin") == ["TaskPlugin=task/none"]
    assert lines(text, "SchedulerParameters") == ["SchedulerParameters=permit_job_expansion"]
    assert lines(text, "NodeName") == [
        f"NodeName={host} NodeHostname={host} NodeAddr={address} CPUs=4 RealMemory=8192 State=CLOUD"
        for host, address in (("ip-10-70-0-10", "10.70.0.10"), ("ip-10-70-0-100", "10.70.0.100"))
    ]
    assert lines(text, "PartitionName") == [
        "PartitionName=ml.trn1.32xlarge Nodes=ip-10-70-0-10,ip-10-70-0-100 Default=NO MaxTime=INFINITE State=UP",
        "PartitionName=dev Nodes=ALL Default=YES MaxTime=INFINITE State=UP OverSubscribe=EXCLUSIVE",
    ]
    assert "SlurmctldParameters=enable_configless" in text
    assert "\nInclude accounting.conf\n" in text
    assert "GresTypes" not in text
    assert "Topology" not in text
    assert text.endswith("\n")


def test_login_nodes_may_be_registered(example: Shape) -> None:
    text = slurm_conf(example, login_nodes="registered")
    assert lines(text, "NodeName")[0].split()[0] == "NodeName=ip-10-70-0-11"
    assert "ip-10-70-0-11" not in "".join(lines(text, "PartitionName")), "in dev only, by ALL"


def test_the_last_newline_may_be_missing(example: Shape) -> None:
    assert slurm_conf(example, last_newline=False) + "\n" == slurm_conf(example)


def test_topology_with_and_without_its_file(example: Shape) -> None:
    for topology, has_file in (("tree", True), ("missing", False)):
        shape = replace(example, platform=Platform(topology=topology))  # type: ignore[arg-type]
        files = slurm_files.slurm_files(shape, nodes_of(shape), HARDWARE)
        assert "\nTopologyPlugin=topology/tree\n" in files[slurm_files.SLURM_CONF]
        assert (slurm_files.TOPOLOGY_CONF in files) is has_file
        if has_file:
            switches = lines(files[slurm_files.TOPOLOGY_CONF], "SwitchName")
            assert "Nodes=ip-10-70-0-10,ip-10-70-0-100" in switches[0]
            assert ["Switches=" in line for line in switches] == [False, True, True]


def test_a_rewrite_keeps_what_others_wrote_and_prunes(example: Shape) -> None:
    wanted = slurm_conf(example.resized({"compute-nodes": 1}))
    present = slurm_conf(example).replace("ReturnToService=1", "ReturnToService=2") + "# mine\nInclude mine.conf\n"
    text = slurm_files.rewritten(present, wanted)
    assert lines(text, "NodeName") == lines(wanted, "NodeName")
    assert lines(text, "PartitionName") == lines(wanted, "PartitionName")
    assert lines(text, "SlurmctldHost") == lines(wanted, "SlurmctldHost")
    assert "ReturnToService=2" in text
    assert "# mine\nInclude mine.conf\n" in text
    assert slurm_files.rewritten(text, wanted) == text


def test_gpus_are_a_resource_with_devices(api: Shape) -> None:
    text = slurm_conf(api)
    assert lines(text, "GresTypes") == ["GresTypes=gpu"]
    assert "Gres=gpu:8" in lines(text, "NodeName")[0]
    gres = slurm_files.gres_conf(api, nodes_of(api))
    assert lines(gres, "NodeName") == ["NodeName=ip-10-70-0-100 Name=gpu File=/dev/nvidia[0-7]"]
    devices = config_files.fake_nvidia("ml.p5.48xlarge").splitlines()
    assert devices[0] == "c /dev/nvidia0 0666 root root - 1:3"
    assert len(devices) == 8


def test_one_gpu_is_no_range(tmp_path: Path) -> None:
    request = (CASES / "08-create_cluster-api-driven.json").read_text()
    path = tmp_path / "create_cluster.json"
    path.write_text(request.replace('"ml.p5.48xlarge",', '"ml.g5.xlarge",'))
    shape = from_create_cluster(path, None, Release.TRIXIE).resized({"1-muscle": 1})
    assert "File=/dev/nvidia0\n" in slurm_files.gres_conf(shape, nodes_of(shape))


def test_empty_partitions_name_no_nodes(api: Shape) -> None:
    text = slurm_conf(api.resized({"1-muscle": 0}))
    assert lines(text, "NodeName") == []
    assert lines(text, "PartitionName") == [
        "PartitionName=train Default=NO MaxTime=INFINITE State=UP",
        "PartitionName=dev Default=YES MaxTime=INFINITE State=UP OverSubscribe=EXCLUSIVE",
    ]


def test_scripts_lie_in_folders_of_both_shapes() -> None:
    top, folder = staged("lifecycle")
    assert folder == f"{top}/src"
    assert top.startswith("/tmp/sagemaker-lifecycle-")
    top, folder = staged("bucket")
    assert folder.startswith(f"{top}/")
    assert " " in folder
