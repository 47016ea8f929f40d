# SPDX-License-Identifier: Apache-2.0
"""The rules of reading the JSON pair, one by one. The shared samples have their own module."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import FrozenInstanceError
from pathlib import Path
from typing import Any

import pytest

from hyperpod_lifecycle import addresses
from hyperpod_lifecycle.cluster import Cluster, FileSystem, NodeType, load
from hyperpod_lifecycle.create_cluster import read_create_cluster
from hyperpod_lifecycle.errors import ExitCode, InputError, Problem
from hyperpod_lifecycle.problems import known

PARAMETERS: dict[str, Any] = {
    "version": "1.0.0",
    "workload_manager": "slurm",
    "controller_group": "brain",
    "login_group": "door",
    "worker_groups": [{"instance_group_name": "muscle", "partition_name": "train"}],
}


def group(name: str, *hosts: str | None, **more: Any) -> dict[str, Any]:
    """A group whose instances have these addresses."""
    instances = [
        {"InstanceName": f"{name}-{number}", "CustomerIpAddress": address, "AgentIpAddress": "172.16.9.1"}
        for number, address in enumerate(hosts, start=1)
    ]
    return {"Name": name, "InstanceType": "ml.m5.large", "Instances": instances, **more}


def config(*groups: dict[str, Any], **cluster: Any) -> dict[str, Any]:
    return {"ClusterConfig": {"ClusterName": "otter", **cluster}, "InstanceGroups": list(groups)}


BRAIN, DOOR = group("brain", "10.0.0.1"), group("door", "10.0.0.2")
MUSCLE = group("muscle", "10.0.0.3", "10.0.0.30")


def api(*, brain: Any = None, door: Any = None, muscle: Any = None, **cluster: Any) -> dict[str, Any]:
    """The API-driven form, with one group's SlurmConfig replaced."""
    return config(
        {**BRAIN, "SlurmConfig": brain or {"NodeType": "Controller"}},
        {**DOOR, "SlurmConfig": door or {"NodeType": "Login"}},
        {**MUSCLE, "SlurmConfig": muscle or {"NodeType": "Compute", "PartitionNames": ["train"]}},
        **cluster,
    )


Read = Callable[..., Cluster]


@pytest.fixture
def read(tmp_path: Path) -> Read:
    def write_and_load(document: Any = None, parameters: Any = PARAMETERS, *, planning: bool = False) -> Cluster:
        files = tmp_path / "resource_config.json", tmp_path / "provisioning_parameters.json"
        files[0].write_text(json.dumps(document or config(BRAIN, DOOR, MUSCLE)))
        files[1].unlink(missing_ok=True)
        if parameters is not None:
            files[1].write_text(json.dumps(parameters))
        return load(*files, planning=planning)

    return write_and_load


def problems(read: Read, *args: Any, **options: Any) -> list[Problem]:
    with pytest.raises(InputError) as caught:
        read(*args, **options)
    assert caught.value.exit_code is ExitCode.INPUT
    return list(caught.value.problems)


def problem(read: Read, *args: Any, **options: Any) -> Problem:
    (only,) = problems(read, *args, **options)
    return only


def node_types(cluster: Cluster) -> dict[str, NodeType]:
    return {found.name: found.node_type for found in cluster.groups}


# --- models ---


def test_models_are_frozen_and_hashable(read: Read) -> None:
    cluster = read()
    node = cluster.node_by_name("muscle-2")
    assert len({cluster, node, node.group, node.instance}) == 4
    with pytest.raises(FrozenInstanceError):
        node.group.node_type = NodeType.LOGIN  # type: ignore[misc]
    with pytest.raises(TypeError):
        cluster.slurm_configurations["x"] = 1  # type: ignore[index]


def test_empty_values_of_slurm_configurations_are_left_out(read: Read) -> None:
    given = {"slurm_database_user": "admin", "slurm_sns_arn": "", "_why": "a comment", "extra": [1]}
    cluster = read(parameters={**PARAMETERS, "slurm_configurations": given})
    assert dict(cluster.slurm_configurations) == {"slurm_database_user": "admin", "extra": [1]}
    assert cluster.notes[0].endswith("unknown keys: slurm_configurations.extra")
    assert dict(read(parameters={**PARAMETERS, "slurm_configurations": {}}).slurm_configurations) == {}


def test_an_accounting_database_of_the_api_is_kept_whole(read: Read) -> None:
    database = {"Endpoint": "x.rds.amazonaws.com", "Port": 3306, "SecretArn": None}
    found = read(api(SlurmConfig={"AccountingDatabase": database}), None)
    assert dict(found.accounting_database) == {"Endpoint": "x.rds.amazonaws.com", "Port": 3306}
    assert found.notes == read(api(), None).notes, "it is no unknown key"
    assert dict(read().accounting_database) == {}


def test_unknown_keys_are_noted_once_for_all_elements(read: Read) -> None:
    instances = [{**instance, "Rack": "r1", "_comment": "<none>"} for instance in MUSCLE["Instances"]]
    document = config(BRAIN, DOOR, {**MUSCLE, "Instances": instances}, Colour="blue")
    (note,) = read(document).notes
    assert note.endswith("unknown keys: ClusterConfig.Colour, InstanceGroups[*].Instances[*].Rack")


@pytest.mark.parametrize(
    ("arn", "region"),
    [("arn:aws:sagemaker:eu-north-1:111122223333:cluster/x", "eu-north-1"), ("otter", ""), (None, "")],
)
def test_region(read: Read, arn: str | None, region: str) -> None:
    assert read(config(BRAIN, DOOR, MUSCLE, ClusterArn=arn)).region == region


# --- node types, file form ---


@pytest.mark.parametrize("manager", ["Slurm", "SLURM", "pbs", "", None, 1, ["slurm"]])
def test_workload_manager_is_slurm_or_nothing_runs(read: Read, manager: Any) -> None:
    found = problem(read, parameters={**PARAMETERS, "workload_manager": manager})
    assert found.key == "workload_manager"
    assert 'exactly "slurm"' in found.remedy


def test_workload_manager_absent(read: Read) -> None:
    parameters = {key: value for key, value in PARAMETERS.items() if key != "workload_manager"}
    assert problem(read, parameters=parameters).found == "found nothing"


@pytest.mark.parametrize(
    ("name", "hint"), [("Brain", 'did you mean "brain"?'), ("brian", 'did you mean "brain"?'), ("zzz", "Known groups")]
)
def test_unknown_controller_group(read: Read, name: str, hint: str) -> None:
    found = problem(read, parameters={**PARAMETERS, "controller_group": name})
    assert found.key == "controller_group"
    assert hint in found.remedy
    assert found.remedy.endswith("brain, door, muscle")


@pytest.mark.parametrize("value", [None, ""])
def test_controller_group_without_a_name(read: Read, value: str | None) -> None:
    assert problems(read, parameters={**PARAMETERS, "controller_group": value})[0].key == "controller_group"


@pytest.mark.parametrize("value", ["", None, []])
def test_no_login_group(read: Read, value: Any) -> None:
    cluster = read(config(BRAIN, MUSCLE), {**PARAMETERS, "login_group": value})
    assert cluster.login_addresses == ()


def test_several_login_groups(read: Read) -> None:
    document = config(BRAIN, DOOR, MUSCLE, group("gate", "10.0.0.4", "10.0.0.5"))
    cluster = read(document, {**PARAMETERS, "login_group": ["door", "gate"]})
    assert cluster.login_addresses == ("10.0.0.2", "10.0.0.4", "10.0.0.5")
    found = problem(read, document, {**PARAMETERS, "login_group": ["door", "Gate"]})
    assert (found.key, found.remedy[:20]) == ("login_group[1]", 'did you mean "gate"?')


def test_one_group_cannot_be_controller_and_login(read: Read) -> None:
    assert problems(read, parameters={**PARAMETERS, "login_group": "brain"})[0].key == "login_group"


def test_worker_groups_absent_makes_the_rest_compute_with_a_note(read: Read) -> None:
    cluster = read(parameters={**PARAMETERS, "worker_groups": None})
    assert node_types(cluster)["muscle"] is NodeType.COMPUTE
    assert cluster.node_by_name("muscle-1").group.partitions == ()
    (note,) = cluster.notes
    assert note.endswith("compute, without a partition: muscle")


def test_a_group_that_worker_groups_does_not_list_stops_its_own_nodes_only(read: Read) -> None:
    cluster = read(config(BRAIN, DOOR, MUSCLE, group("spare", "10.0.0.7")))
    assert list(node_types(cluster)) == ["brain", "door", "muscle"]
    assert cluster.node_by_addresses({"10.0.0.1"}) is not None
    (note,) = cluster.notes
    assert "worker_groups: does not list spare" in note
    for look in (lambda: cluster.node_by_name("spare-1"), lambda: cluster.node_by_addresses({"10.0.0.7"})):
        with pytest.raises(InputError, match="worker_groups: does not list spare.*listed are: brain, door, muscle"):
            look()
    with pytest.raises(InputError, match="Known instances: .*spare-1"):
        cluster.node_by_name("nobody")


def test_an_unlisted_group_has_the_type_that_its_slurm_config_says(read: Read) -> None:
    cluster = read(api(), {**PARAMETERS, "worker_groups": []})
    assert cluster.groups == read(api(), None).groups
    (note,) = cluster.notes
    assert "worker_groups does not list muscle; SlurmConfig says compute in partition train" in note


@pytest.mark.parametrize(
    "parameters", [{}, {"version": "1.0.0"}, {"version": "1.0.0", "workload_manager": "slurm", "worker_groups": []}]
)
def test_parameters_that_name_no_groups_decide_nothing(read: Read, parameters: dict[str, Any]) -> None:
    cluster = read(api(), parameters)
    assert (cluster.source, cluster.groups) == ("slurm_config", read(api(), None).groups)
    (note,) = cluster.notes
    assert "provisioning_parameters.json names no groups" in note
    found = problem(read, config(BRAIN, DOOR, MUSCLE), parameters)
    assert (found.key, "names no groups" in found.found) == ("InstanceGroups[*].SlurmConfig", True)


def test_parameters_that_name_no_groups_still_name_storage(read: Read) -> None:
    parameters = {"fsx_dns_name": "fs-1.example.com", "fsx_mountname": "abc", "workload_manager": "pbs"}
    assert problem(read, api(), parameters).key == "workload_manager"
    del parameters["workload_manager"]
    assert read(api(), parameters).groups[0].file_systems == (FileSystem("lustre", "fs-1.example.com", "abc", "/fsx"),)


def test_a_group_in_two_partitions(read: Read) -> None:
    workers = [{"instance_group_name": "muscle", "partition_name": name} for name in ("train", "second")]
    cluster = read(parameters={**PARAMETERS, "worker_groups": workers})
    assert cluster.groups[2].partitions == ("train", "second")
    (note,) = cluster.notes
    assert note.endswith("partitions: train, second")


@pytest.mark.parametrize("name", ["brain", "door"])
def test_a_worker_group_that_has_another_type_keeps_it(read: Read, name: str) -> None:
    workers = [*PARAMETERS["worker_groups"], {"instance_group_name": name, "partition_name": "all"}]
    cluster = read(parameters={**PARAMETERS, "worker_groups": workers})
    assert node_types(cluster) == node_types(read())
    assert [found.partitions for found in cluster.groups] == [(), (), ("train",)]
    assert f"worker_groups lists {name}" in cluster.notes[0]


@pytest.mark.parametrize(
    "name", ["has space", "", "a,b", "a=b", "tr\u00e4in", "DEFAULT", "default", "a\n", "-x", "p" * 256]
)
def test_partition_names_that_slurm_conf_cannot_hold(read: Read, name: str) -> None:
    workers = [{"instance_group_name": "muscle", "partition_name": name}]
    found = problem(read, parameters={**PARAMETERS, "worker_groups": workers})
    assert found.key == "worker_groups[0].partition_name"
    found = problem(read, api(muscle={"NodeType": "Compute", "PartitionNames": [name]}), None)
    assert found.key == "InstanceGroups[2].SlurmConfig.PartitionNames[0]"


# --- node types, API-driven form, and both ---


def test_neither_form_is_an_error_with_the_remedy(read: Read) -> None:
    found = problem(read, config(BRAIN, DOOR, MUSCLE), None)
    assert "provisioning_parameters.json does not exist" in found.found
    assert "SlurmConfig" in found.remedy


def test_absent_parameters_are_noted(read: Read) -> None:
    (note,) = read(api(), None).notes
    assert "provisioning_parameters.json does not exist" in note


def test_unreadable_parameters_are_not_absent_ones(tmp_path: Path) -> None:
    (tmp_path / "rc.json").write_text(json.dumps(api()))
    with pytest.raises(InputError, match="cannot be read: Is a directory"):
        load(tmp_path / "rc.json", tmp_path)


def test_resource_config_must_exist(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"nowhere\.json: the file does not exist"):
        load(tmp_path / "nowhere.json", None)


@pytest.mark.parametrize(
    ("changed", "key"),
    [
        ({"brain": {"NodeType": "controller"}}, "InstanceGroups[0].SlurmConfig.NodeType"),
        ({"brain": {"NodeType": "Compute", "PartitionNames": ["x"]}}, "InstanceGroups[*].SlurmConfig.NodeType"),
        ({"door": {"NodeType": "Controller"}}, "InstanceGroups[*].SlurmConfig.NodeType"),
        ({"door": {"NodeType": "Login", "PartitionNames": ["x"]}}, "InstanceGroups[1].SlurmConfig.PartitionNames"),
        ({"muscle": {"NodeType": "Compute"}}, "InstanceGroups[2].SlurmConfig.PartitionNames"),
        ({"muscle": {"NodeType": "Compute", "PartitionNames": []}}, "InstanceGroups[2].SlurmConfig.PartitionNames"),
        ({"muscle": {"PartitionNames": ["x"]}}, "InstanceGroups[2].SlurmConfig.NodeType"),
    ],
)
def test_slurm_config_rules(read: Read, changed: dict[str, Any], key: str) -> None:
    assert key in [found.key for found in problems(read, api(**changed), None)]


def test_a_group_without_slurm_config_stops_its_own_nodes_only(read: Read) -> None:
    document = api()
    document["InstanceGroups"].append(group("spare", "10.0.0.7"))
    cluster = read(document, None)
    assert list(node_types(cluster)) == ["brain", "door", "muscle"]
    assert any("InstanceGroups[3].SlurmConfig: spare has none" in note for note in cluster.notes)
    with pytest.raises(InputError, match=r"InstanceGroups\[3\]\.SlurmConfig"):
        cluster.node_by_name("spare-1")


def test_both_forms_that_agree(read: Read) -> None:
    cluster = read(api())
    assert cluster.source == "provisioning_parameters"
    assert read(api(), {**PARAMETERS, "worker_groups": None}).groups == cluster.groups


@pytest.mark.parametrize(
    "changed",
    [
        {"muscle": {"NodeType": "Compute", "PartitionNames": ["other"]}},
        {"muscle": {"NodeType": "Login"}},
    ],
)
def test_both_forms_that_disagree(read: Read, changed: dict[str, Any]) -> None:
    found = problem(read, api(**changed))
    assert found.key == "InstanceGroups[2].SlurmConfig"
    assert "resource_config.json" in found.file
    assert "provisioning_parameters.json" in found.found


# --- controllers and addresses ---


@pytest.mark.parametrize(
    ("primary", "secondary", "expected"),
    [
        ("10.0.0.9", ["10.0.0.1"], ("10.0.0.9", "10.0.0.1")),
        ("10.0.0.1", ["10.0.0.9"], ("10.0.0.1", "10.0.0.9")),
        ("", ["10.0.0.1"], ("10.0.0.9", "10.0.0.1")),  # the primary is empty on the controller itself
        ("10.0.0.1", None, ("10.0.0.1", "10.0.0.9")),
        (None, None, ("10.0.0.9", "10.0.0.1")),
    ],
)
def test_primary_controller_comes_first(
    read: Read, primary: str | None, secondary: list[str] | None, expected: tuple[str, ...]
) -> None:
    slurm = {"PrimaryControllerIp": primary, "SecondaryControllerIps": secondary}
    document = api(SlurmConfig=slurm)
    document["InstanceGroups"][0] |= {"Instances": group("brain", "10.0.0.9", "10.0.0.1")["Instances"]}
    assert read(document, None).controller_addresses == expected


def test_several_controllers_leader_by_name(read: Read) -> None:
    brains = group("brain", "10.0.0.9", "10.0.0.8", None)
    brains["Instances"].reverse()
    assert read(config(brains, DOOR, MUSCLE)).controller_addresses == ("10.0.0.9", "10.0.0.8")


@pytest.mark.parametrize(
    "address",
    ["10.0.0", "10.0.0.256", "10.0.0.03", " 10.0.0.3", "host", "10.0.0.3/24", "127.0.0.1", "0.0.0.0", "fe80::1"],
)
def test_addresses_that_are_none(read: Read, address: str) -> None:
    document = config(BRAIN, DOOR, group("muscle", address))
    found = problem(read, document)
    assert found.key == "InstanceGroups[2].Instances[0].CustomerIpAddress"
    assert address in found.found
    cluster = read(document, planning=True)
    assert cluster.node_by_name("muscle-1").instance.address is None
    assert str(found) in cluster.notes


def test_wrong_controller_addresses(read: Read) -> None:
    slurm = {"PrimaryControllerIp": "brain", "SecondaryControllerIps": ["10.0.0.1", "x"]}
    assert [found.key for found in problems(read, api(SlurmConfig=slurm), None)] == [
        "ClusterConfig.SlurmConfig.PrimaryControllerIp",
        "ClusterConfig.SlurmConfig.SecondaryControllerIps[1]",
    ]


def test_an_address_is_in_one_place_only(read: Read) -> None:
    document = config(BRAIN, DOOR, group("muscle", "10.0.0.3", "10.0.0.2"))
    found = problem(read, document)
    assert found.found == "10.0.0.2 is at InstanceGroups[1].Instances[0].CustomerIpAddress as well"
    cluster = read(document, planning=True)
    assert cluster.node_by_name("muscle-2").instance.address == "10.0.0.2"
    with pytest.raises(InputError, match="door-1 .*muscle-2"):
        cluster.node_by_addresses({"10.0.0.2"})


def test_ipv6_is_compared_in_canonical_spelling(read: Read) -> None:
    cluster = read(config(BRAIN, DOOR, group("muscle", "FD00:0::0a")))
    node = cluster.node_by_addresses({"fd00::a"})
    assert node is not None
    assert node.name == "muscle-1"


def test_a_machine_with_two_nodes_addresses_is_an_error(read: Read) -> None:
    with pytest.raises(InputError, match=r"brain-1 \(10\.0\.0\.1\), door-1 \(10\.0\.0\.2\)"):
        read().node_by_addresses({"10.0.0.1", "10.0.0.2"})


def test_unknown_instance_name(read: Read) -> None:
    with pytest.raises(InputError, match='did you mean "muscle-1".*brain-1, door-1, muscle-1, muscle-2'):
        read().node_by_name("Muscle-1")


@pytest.mark.parametrize("twice", ["group", "instance"])
def test_names_come_once(read: Read, twice: str) -> None:
    other = (
        group("muscle", "10.0.0.5")
        if twice == "group"
        else {**group("spare"), "Instances": [{"InstanceName": "muscle-1"}]}
    )
    parameters = {**PARAMETERS, "worker_groups": None}
    keys = [found.key for found in problems(read, config(BRAIN, DOOR, MUSCLE, other), parameters)]
    assert keys[-1] == "InstanceGroups[3].Instances[0].InstanceName"
    assert ("InstanceGroups[3].Name" in keys) is (twice == "group")


# --- file systems ---


@pytest.mark.parametrize(
    ("given", "missing"),
    [
        ({"fsx_dns_name": "fs-1.example.com"}, "fsx_mountname"),
        ({"fsx_dns_name": "fs-1.example.com", "fsx_mountname": ""}, "fsx_mountname"),
        ({"fsx_mountname": "abc"}, "fsx_dns_name"),
    ],
)
def test_half_a_lustre(read: Read, given: dict[str, str], missing: str) -> None:
    assert problem(read, parameters=PARAMETERS | given).key == missing


def test_empty_file_system_keys_are_none(read: Read) -> None:
    empty = dict.fromkeys(("fsx_dns_name", "fsx_mountname", "fsx_openzfs_dns_name"), "")
    assert read(parameters=PARAMETERS | empty).groups[0].file_systems == ()


LUSTRE = {"FsxLustreConfig": {"DnsName": "fs-1.example.com", "MountName": "abc", "MountPath": "/scratch/"}}
OPENZFS = {"FsxOpenZfsConfig": {"DnsName": "fs-2.example.com"}}


def test_file_systems_of_one_group_beside_those_of_all(read: Read) -> None:
    stored = {**MUSCLE, "InstanceStorageConfigs": [{"EbsVolumeConfig": {"VolumeSizeInGB": 500}}, LUSTRE, OPENZFS]}
    shared = {"fsx_openzfs_dns_name": "fs-2.example.com"}
    cluster = read(config(BRAIN, DOOR, stored), PARAMETERS | shared)
    home = FileSystem("openzfs", "fs-2.example.com", None, "/home")
    assert [found.file_systems for found in cluster.groups] == [
        (home,),
        (home,),
        (home, FileSystem("lustre", "fs-1.example.com", "abc", "/scratch")),
    ]


def test_two_file_systems_at_one_path(read: Read) -> None:
    stored = {**MUSCLE, "InstanceStorageConfigs": [OPENZFS]}
    found = problem(read, config(BRAIN, DOOR, stored), PARAMETERS | {"fsx_openzfs_dns_name": "fs-3.example.com"})
    assert found.key == "InstanceGroups[2].InstanceStorageConfigs[0].FsxOpenZfsConfig"
    assert "/home" in found.found


def test_two_of_a_kind_in_one_group(read: Read) -> None:
    other = {"FsxLustreConfig": {**LUSTRE["FsxLustreConfig"], "MountPath": "/other"}}
    found = problem(read, config(BRAIN, DOOR, {**MUSCLE, "InstanceStorageConfigs": [LUSTRE, other]}))
    assert found.key == "InstanceGroups[2].InstanceStorageConfigs[1].FsxLustreConfig"


@pytest.mark.parametrize("path", ["/", "scratch", "/a b", "/../etc", "/a/../b", "//x", "/a\n"])
def test_mount_paths_that_are_none(read: Read, path: str) -> None:
    lustre = {"FsxLustreConfig": {**LUSTRE["FsxLustreConfig"], "MountPath": path}}
    found = problem(read, config(BRAIN, DOOR, {**MUSCLE, "InstanceStorageConfigs": [lustre]}))
    assert found.key.endswith("FsxLustreConfig.MountPath")


# --- files that are something else ---


@pytest.mark.parametrize(
    ("change", "key"),
    [
        (lambda d: d["ClusterConfig"].update(ClusterType="Kubernetes"), "ClusterConfig.ClusterType"),
        (lambda d: d["ClusterConfig"].update(ClusterType="slurm"), "ClusterConfig.ClusterType"),
        (lambda d: d.update(Orchestrator={"Eks": {"ClusterArn": "arn"}}), "Orchestrator"),
        (lambda d: d["ClusterConfig"].update(Orchestrator="Eks"), "ClusterConfig.Orchestrator"),
        (lambda d: d["InstanceGroups"][1].update(KubernetesConfig={}), "InstanceGroups[1].KubernetesConfig"),
        (lambda d: d.update(ClusterType="Kubernetes"), "ClusterType"),
    ],
)
def test_eks_shaped_files(read: Read, change: Callable[[Any], None], key: str) -> None:
    document = json.loads(json.dumps(config(BRAIN, DOOR, MUSCLE)))
    change(document)
    assert problem(read, document).key == key
    assert "EKS" in problem(read, document, None).remedy


@pytest.mark.parametrize("label", [None, {"network-node-layer-1": "nn-1", "network-node-layer-2": "None"}])
def test_an_instance_label_is_no_sign_of_eks(read: Read, label: Any) -> None:
    muscle = {**MUSCLE, "Instances": [{**each, "InstanceLabel": label} for each in MUSCLE["Instances"]]}
    cluster = read(config(BRAIN, DOOR, {**muscle, "KubernetesConfig": None}))
    assert node_types(cluster) == node_types(read())
    (note,) = cluster.notes
    assert note.endswith("unknown keys: InstanceGroups[*].KubernetesConfig")


def test_the_clusters_slurm_config_is_read_in_both_places(read: Read) -> None:
    slurm = {"PrimaryControllerIp": "10.0.0.9", "AccountingDatabase": {"Endpoint": "x.rds.amazonaws.com"}}
    for document in (api(SlurmConfig=slurm), {**api(), "ClusterType": "Slurm", "SlurmConfig": slurm}):
        cluster = read(document, None)
        assert cluster.controller_addresses == ("10.0.0.9", "10.0.0.1")
        assert dict(cluster.accounting_database) == {"Endpoint": "x.rds.amazonaws.com"}
        assert len(cluster.notes) == 1
    more = {"SecondaryControllerIps": ["10.0.0.1"]}
    assert read({**api(SlurmConfig=more), "SlurmConfig": slurm}, None).secondary_controllers == ("10.0.0.1",)
    found = problem(read, {**api(SlurmConfig={"PrimaryControllerIp": "10.0.0.1"}), "SlurmConfig": slurm}, None)
    assert (found.key, "ClusterConfig.SlurmConfig" in found.found) == ("SlurmConfig.PrimaryControllerIp", True)


def test_slurm_cluster_may_name_its_orchestrator(read: Read) -> None:
    document = config(BRAIN, DOOR, MUSCLE, ClusterType="Slurm") | {"Orchestrator": {"Slurm": {}}}
    assert node_types(read(document)) == node_types(read())


@pytest.mark.parametrize("text", ["<NAME>", "s3://<bucket>/x", "${X}", "a-${X}-b", "PLACEHOLDER_X", "PLACEHOLDER"])
def test_placeholders_anywhere(read: Read, text: str) -> None:
    found = problems(read, config(BRAIN, DOOR, MUSCLE, ClusterArn=text), {**PARAMETERS, "odd key": {"a": [1, text]}})
    assert [problem.key for problem in found] == ["ClusterConfig.ClusterArn", '["odd key"].a[1]']


@pytest.mark.parametrize("text", ["None", "null", "undefined", " NONE "])
@pytest.mark.parametrize(
    "key",
    [
        "version",
        "controller_group",
        "login_group",
        "worker_groups[0].instance_group_name",
        "worker_groups[0].partition_name",
        "fsx_dns_name",
        "fsx_mountname",
        "fsx_openzfs_dns_name",
        "slurm_configurations.slurm_database_secret_arn",
        "slurm_configurations.slurm_database_endpoint",
        "slurm_configurations.slurm_database_user",
        "slurm_configurations.slurm_shared_directory",
        "slurm_configurations.slurm_sns_arn",
    ],
)
def test_nothing_as_tools_print_it_is_a_placeholder(read: Read, key: str, text: str) -> None:
    parameters = json.loads(json.dumps(PARAMETERS))
    *parents, last = key.replace("[0]", ".0").split(".")
    place = parameters
    for step in parents:
        place = place[int(step)] if step.isdigit() else place.setdefault(step, {})
    place[last] = text
    found = problem(read, parameters=parameters)
    assert found.key in (key, "login_group[0]")
    assert found.found.startswith("the placeholder")


@pytest.mark.parametrize(
    ("key", "value", "remedy"),
    [
        ("fsx_dns_name", "fs-0aaa1111bbb22223", "fs-0aaa1111bbb22223.fsx.REGION.amazonaws.com"),
        ("fsx_dns_name", "https://fs-1.example.com", "without scheme, port and path"),
        ("fsx_dns_name", "fs-1.example.com@tcp:/abc", "a DNS name"),
        ("fsx_dns_name", "fs-1..example.com", "a DNS name"),
        ("fsx_dns_name", f"{'a' * 64}.example.com", "a DNS name"),
        ("fsx_dns_name", "10.0.0", "a DNS name"),
        ("fsx_openzfs_dns_name", "fs-0aaa1111bbb22223", "fs-0aaa1111bbb22223.fsx.REGION.amazonaws.com"),
        ("fsx_openzfs_dns_name", "fs-1.example.com:/fsx", "without scheme, port and path"),
        ("fsx_mountname", "/abc", "mount name"),
        ("fsx_mountname", "fs-0aaa1111bbb22223", "mount name"),
        ("slurm_database_endpoint", "db.example.com:3306", "without scheme, port and path"),
        ("slurm_database_endpoint", "jdbc:mysql://db.example.com", "without scheme, port and path"),
        ("slurm_database_endpoint", "otter-db", "a DNS name"),
        ("slurm_database_secret_arn", "rds!db-1234", "the secret's ARN"),
        ("slurm_database_secret_arn", "arn:aws:sns:us-west-2:111122223333:x", "the secret's ARN"),
        ("slurm_sns_arn", "arn:aws:sns:us-west-2:111122223333", "the topic's ARN"),
        ("slurm_database_user", 'ad"min', "double quotes"),
        ("slurm_database_user", "a b", "blanks"),
        ("slurm_shared_directory", "fsx", "absolute path"),
        ("slurm_shared_directory", "/", "absolute path"),
        ("slurm_shared_directory", "/var/spool", "system directory"),
    ],
)
def test_values_of_a_wrong_format(read: Read, key: str, value: str, remedy: str) -> None:
    lustre = {"fsx_dns_name": "fs-1.example.com", "fsx_mountname": "abc"}
    given = {"slurm_configurations": {key: value}} if key.startswith("slurm") else {**lustre, key: value}
    found = problem(read, parameters=PARAMETERS | given)
    assert found.key.rpartition(".")[2] == key
    assert (found.found, remedy in found.remedy) == (f"found {json.dumps(value)}", True)


def test_values_of_a_right_format(read: Read) -> None:
    configurations = {
        "slurm_database_endpoint": "10.0.0.9",
        "slurm_database_secret_arn": "arn:aws-us-gov:secretsmanager:us-gov-west-1:111122223333:secret:rds!db-1-AbC",
        "slurm_database_user": "admin@x",
        "slurm_sns_arn": "arn:aws-cn:sns:cn-north-1:111122223333:otter.fifo",
        "slurm_shared_directory": "/fsx/",
    }
    parameters = {**PARAMETERS, "fsx_dns_name": "10.1.2.3", "fsx_mountname": "fsx"}
    cluster = read(parameters={**parameters, "slurm_configurations": configurations})
    assert dict(cluster.slurm_configurations) == {**configurations, "slurm_shared_directory": "/fsx"}


@pytest.mark.parametrize(
    ("given", "key"),
    [
        ({"Endpoint": "db.example.com:3306"}, "Endpoint"),
        ({"SecretArn": "db-password"}, "SecretArn"),
        ({"Name": "slurm-acct"}, "Name"),
        ({"Name": "None"}, "Name"),
        ({"Port": 0}, "Port"),
        ({"Port": "3306"}, "Port"),
    ],
)
def test_values_of_an_accounting_database(read: Read, given: dict[str, Any], key: str) -> None:
    found = problem(read, api(SlurmConfig={"AccountingDatabase": given}), None)
    assert found.key == f"ClusterConfig.SlurmConfig.AccountingDatabase.{key}"


@pytest.mark.parametrize(
    ("document", "key"),
    [
        (config(BRAIN, DOOR, MUSCLE, ClusterName="o" * 64), "ClusterConfig.ClusterName"),
        (config({**BRAIN, "Name": "b" * 64}, DOOR, MUSCLE), "InstanceGroups[0].Name"),
        (config(BRAIN, DOOR, {**MUSCLE, "InstanceType": "null"}), "InstanceGroups[2].InstanceType"),
    ],
)
def test_names_that_are_none_or_too_long(read: Read, document: dict[str, Any], key: str) -> None:
    found = problem(read, document)
    assert found.key == key
    assert key.endswith("Type") or "64 characters; 63 are allowed" in found.remedy


def test_instance_names_that_are_too_long_for_slurm_are_noted_once_a_group(read: Read) -> None:
    """A group's name may have 63 characters, as many as Slurm's node names, and instances have a number too."""
    name = "m" * 61
    instances = [
        {**MUSCLE["Instances"][0], "InstanceName": f"{name}-{i}", "CustomerIpAddress": f"10.1.9.{i}"} for i in (1, 10)
    ]
    group = {**MUSCLE, "Name": name, "Instances": instances}
    workers = [{"instance_group_name": name, "partition_name": "dev"}]
    (note,) = read(config(BRAIN, DOOR, group), {**PARAMETERS, "worker_groups": workers}).notes
    assert f"InstanceGroups[2]: the instance name {name}-10 has 64 characters" in note
    assert "at most 63" in note


@pytest.mark.parametrize(
    "text", ["ssh-ed25519 AAAA Jo <jo@example.com>", "a < b", "$HOME", "my-PLACEHOLDER", "{{ x }}"]
)
def test_what_is_no_placeholder(read: Read, text: str) -> None:
    (note,) = read(parameters={**PARAMETERS, "ssh_public_key": text, "_comment": "<fill in>"}).notes
    assert note.endswith("unknown keys: ssh_public_key")


def test_all_problems_of_both_files_at_once(read: Read) -> None:
    document = config(group("brain", "x"), DOOR, MUSCLE, group("spare"))
    parameters = {**PARAMETERS, "version": 2, "workload_manager": "pbs", "fsx_mountname": "abc"}
    assert sorted(found.key for found in problems(read, document, parameters)) == [
        "InstanceGroups[0].Instances[0].CustomerIpAddress",
        "fsx_dns_name",
        "version",
        "workload_manager",
    ]


def test_many_problems_of_one_kind_are_summed_up(read: Read) -> None:
    found = problems(read, config(BRAIN, DOOR, group("muscle", *("x" for _ in range(500)))))
    assert len(found) == 11
    assert (found[10].key, found[10].found[:8]) == ("InstanceGroups[*].Instances[*].CustomerIpAddress", "490 more")


# --- this machine ---


def test_own_addresses_are_canonical_and_hold_loopback() -> None:
    assert "127.0.0.1" in addresses.own_addresses()


def test_find_node_waits_for_the_network(read: Read, monkeypatch: pytest.MonkeyPatch) -> None:
    looks = iter([{"127.0.0.1"}, {"127.0.0.1", "fe80::1"}, {"127.0.0.1", "10.0.0.30"}])
    monkeypatch.setattr(addresses, "own_addresses", lambda: frozenset(next(looks)))
    monkeypatch.setattr(addresses, "POLL_SECONDS", 0.001)
    assert addresses.find_node(read(), wait_seconds=30).name == "muscle-2"


@pytest.mark.parametrize(
    ("own", "said"),
    [
        ({"127.0.0.1", "fe80::1"}, "network not ready"),
        ({"127.0.0.1", "10.0.0.33"}, r"none of this node's addresses \(10\.0\.0\.33\).*10\.0\.0\.3 \(muscle-1\)"),
    ],
)
def test_find_node_gives_up(read: Read, monkeypatch: pytest.MonkeyPatch, own: set[str], said: str) -> None:
    monkeypatch.setattr(addresses, "own_addresses", lambda: frozenset(own))
    with pytest.raises(InputError, match=said):
        addresses.find_node(read(), wait_seconds=0)


# --- create_cluster.json ---


@pytest.mark.parametrize(
    ("change", "key"),
    [
        (lambda d: d["InstanceGroups"][0].update(InstanceCount=-1), "InstanceGroups[0].InstanceCount"),
        (lambda d: d["InstanceGroups"][0].update(InstanceCount="1"), "InstanceGroups[0].InstanceCount"),
        (lambda d: d["InstanceGroups"][0].pop("InstanceType"), "InstanceGroups[0].InstanceType"),
        (lambda d: d["InstanceGroups"].append(d["InstanceGroups"][0]), "InstanceGroups[1].InstanceGroupName"),
        (lambda d: d["InstanceGroups"].clear(), "InstanceGroups"),
        (lambda d: d.update(Orchestrator={"Eks": {}}), "Orchestrator"),
        (lambda d: d.pop("ClusterName"), "ClusterName"),
        (
            lambda d: d["InstanceGroups"][0].update(InstanceRequirements={"InstanceTypes": ["ml.m5.large"]}),
            "InstanceGroups[0].InstanceType",
        ),
    ],
)
def test_requests_that_are_wrong(tmp_path: Path, change: Callable[[Any], Any], key: str) -> None:
    file = tmp_path / "create_cluster.json"
    groups = [{"InstanceGroupName": "brain", "InstanceType": "ml.m5.large", "InstanceCount": 1}]
    document: dict[str, Any] = {"ClusterName": "otter", "InstanceGroups": groups}
    file.write_text(json.dumps(document))
    assert len(read_create_cluster(file)) == 1
    change(document)
    file.write_text(json.dumps(document))
    with pytest.raises(InputError) as caught:
        read_create_cluster(file)
    assert [found.key for found in caught.value.problems] == [key]


def test_a_cluster_without_a_controller_is_for_plans_only(read: Read) -> None:
    document = config(group("brain", None), DOOR, MUSCLE)
    with pytest.raises(InputError, match="no instance of the controller group brain has an address"):
        read(document)
    assert read(document, planning=True).controller_addresses == ()


def test_names_in_messages_are_printable() -> None:
    assert known(["brain", "\x1f"]) == 'brain, "\\u001f"'
