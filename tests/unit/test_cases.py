# SPDX-License-Identifier: Apache-2.0
"""Every sample input in ``cases/`` and its right result. The samples are self-written, account and names made up."""

from __future__ import annotations

from pathlib import Path

import pytest

from hyperpod_lifecycle.cluster import Cluster, FileSystem, NodeType, load
from hyperpod_lifecycle.create_cluster import GroupRequest, read_create_cluster
from hyperpod_lifecycle.errors import InputError, Problem

CASES = Path(__file__).parent / "cases"
DOCUMENTED = CASES / "00-documented-example"
LEGACY = CASES / "01-legacy-baseline"
API = CASES / "07-resource_config-api-driven-INFERRED.json"

LUSTRE = FileSystem("lustre", "fs-0aaa1111bbb22223.fsx.us-west-2.amazonaws.com", "q7x2nbev", "/fsx")
OPENZFS = FileSystem("openzfs", "fs-0ccc3333ddd44445.fsx.us-west-2.amazonaws.com", None, "/home")


def types(cluster: Cluster) -> dict[str, tuple[NodeType, tuple[str, ...]]]:
    return {group.name: (group.node_type, group.partitions) for group in cluster.groups}


def problems(resource_config: Path, parameters: Path | None) -> list[Problem]:
    with pytest.raises(InputError) as caught:
        load(resource_config, parameters)
    return list(caught.value.problems)


def keys(found: list[Problem]) -> list[tuple[str, str]]:
    return [(Path(problem.file).name, problem.key) for problem in found]


def test_00_documented_example_says_that_its_addresses_are_none() -> None:
    found = problems(DOCUMENTED / "resource_config.json", DOCUMENTED / "provisioning_parameters.json")
    assert [problem.key for problem in found] == [
        f"InstanceGroups[{group}].Instances[{instance}].CustomerIpAddress"
        for group, instance in ((0, 0), (1, 0), (2, 0), (2, 1), (2, 2), (2, 3))
    ]
    assert {problem.found for problem in found} == {'"111.222.333.444" is not an IP address'}


def test_00_documented_example_can_be_planned_by_name() -> None:
    cluster = load(DOCUMENTED / "resource_config.json", DOCUMENTED / "provisioning_parameters.json", planning=True)
    lustre = FileSystem("lustre", "fs-12345678a90b01cde.fsx.us-west-2.amazonaws.com", "1abcdefg", "/fsx")
    assert types(cluster) == {
        "controller-machine": (NodeType.CONTROLLER, ()),
        "login-group": (NodeType.LOGIN, ()),
        "compute-nodes": (NodeType.COMPUTE, ("ml.trn1.32xlarge",)),
    }
    node = cluster.node_by_name("compute-nodes-4")
    assert (node.node_type, node.group.name, node.instance.address) == (NodeType.COMPUTE, "compute-nodes", None)
    assert node.group.file_systems == (lustre,)
    assert len([note for note in cluster.notes if "is not an IP address" in note]) == 6
    assert cluster.node_by_addresses({"111.222.333.444"}) is None


def test_00_documented_example_request() -> None:
    groups = read_create_cluster(DOCUMENTED / "create_cluster.json")
    assert [(group.name, group.instance_type, group.count, group.node_type) for group in groups] == [
        ("controller-machine", "ml.c5.xlarge", 1, None),
        ("login-group", "ml.m5.xlarge", 1, None),
        ("compute-nodes", "ml.trn1.32xlarge", 4, None),
    ]
    assert {group.cluster_name for group in groups} == {"your-hyperpod-cluster"}


def test_01_legacy_baseline() -> None:
    cluster = load(LEGACY / "resource_config.json", LEGACY / "provisioning_parameters.json")
    assert (cluster.name, cluster.region, cluster.source) == ("otter", "us-west-2", "provisioning_parameters")
    assert cluster.arn == "arn:aws:sagemaker:us-west-2:111122223333:cluster/q1w2e3r4t5y6"
    assert types(cluster) == {
        "brain": (NodeType.CONTROLLER, ()),
        "door": (NodeType.LOGIN, ()),
        "muscle": (NodeType.COMPUTE, ("train",)),
    }
    assert cluster.controller_addresses == ("10.20.0.5",)
    assert cluster.login_addresses == ("10.20.0.6",)
    assert all(group.file_systems == (LUSTRE,) for group in cluster.groups)
    assert cluster.notes == ()


@pytest.mark.parametrize(("address", "name"), [("10.20.1.10", "muscle-1"), ("10.20.1.100", "muscle-2")])
def test_01_addresses_match_whole(address: str, name: str) -> None:
    cluster = load(LEGACY / "resource_config.json", LEGACY / "provisioning_parameters.json")
    node = cluster.node_by_addresses({"127.0.0.1", address})
    assert node is not None
    assert node.name == name
    assert cluster.node_by_addresses({"10.20.1.1", "0.20.1.10"}) is None


def test_01_request() -> None:
    groups = read_create_cluster(LEGACY / "create_cluster.json")
    assert [(group.name, group.count) for group in groups] == [("brain", 1), ("door", 1), ("muscle", 2)]


def test_02_one_group_comment_no_workers_no_version(tmp_path: Path) -> None:
    config = tmp_path / "resource_config.json"
    config.write_text(
        '{"ClusterConfig": {"ClusterName": "one"}, "InstanceGroups": [{"Name": "solo", "InstanceType": "ml.m5.large",'
        ' "Instances": [{"InstanceName": "solo-1", "CustomerIpAddress": "10.0.0.1"}]}]}'
    )
    cluster = load(config, CASES / "02-minimal-comment-no-workers.provisioning_parameters.json")
    assert types(cluster) == {"solo": (NodeType.CONTROLLER, ())}
    assert cluster.groups[0].file_systems == ()
    assert cluster.notes == ()


def test_02_beside_groups_that_it_does_not_name() -> None:
    (problem,) = problems(
        LEGACY / "resource_config.json", CASES / "02-minimal-comment-no-workers.provisioning_parameters.json"
    )
    assert problem.key == "controller_group"
    assert '"solo"' in problem.found
    assert "brain, door, muscle" in problem.remedy


def test_03_placeholders_are_named_all_at_once() -> None:
    name = "03-placeholders-left-in.provisioning_parameters.json"
    found = problems(LEGACY / "resource_config.json", CASES / name)
    assert keys(found) == [
        (name, "fsx_dns_name"),
        (name, "fsx_mountname"),
        (name, "s3_bucket"),
    ]
    assert [problem.found for problem in found] == [
        'the placeholder "<FSX_DNS_NAME>"',
        'the placeholder "PLACEHOLDER_FSX_MOUNT"',
        'the placeholder "${BUCKET}"',
    ]


def test_04_lustre_and_openzfs_no_login_group(tmp_path: Path) -> None:
    config = tmp_path / "resource_config.json"
    text = (LEGACY / "resource_config.json").read_text()
    config.write_text(text.replace('"door"', '"muscle-b"'))
    parameters = CASES / "04-lustre-and-openzfs.provisioning_parameters.json"
    assert "muscle-b" not in types(load(config, parameters))
    with pytest.raises(InputError, match="worker_groups: does not list muscle-b"):
        load(config, parameters).node_by_name("door-1")

    mended = tmp_path / "provisioning_parameters.json"
    more = '"worker_groups": [{"instance_group_name": "muscle-b", "partition_name": "train"},'
    mended.write_text(parameters.read_text().replace('"worker_groups": [', more))
    cluster = load(config, mended)
    assert types(cluster)["muscle-b"] == (NodeType.COMPUTE, ("train",))
    assert cluster.login_addresses == ()
    assert all(group.file_systems == (LUSTRE, OPENZFS) for group in cluster.groups)


def test_06_instances_null_empty_absent_and_half_made(tmp_path: Path) -> None:
    parameters = tmp_path / "provisioning_parameters.json"
    parameters.write_text('{"workload_manager": "slurm", "controller_group": "brain"}')
    cluster = load(CASES / "06-resource_config-empty-groups.json", parameters)
    assert {group.name: len(group.instances) for group in cluster.groups} == {
        "brain": 1,
        "idle-null": 0,
        "idle-list": 0,
        "idle-absent": 0,
        "half": 2,
    }
    half = cluster.node_by_name("half-1").instance
    assert (half.address, half.agent_address, half.instance_id) == (None, None, None)
    assert cluster.node_by_name("half-2").instance.address == "10.20.2.2"
    (note,) = cluster.notes
    assert "worker_groups is absent" in note
    assert "idle-null, idle-list, idle-absent, half" in note


def test_07_api_driven_needs_no_second_file() -> None:
    cluster = load(API, None)
    assert (cluster.source, cluster.provisioning_parameters) == ("slurm_config", None)
    assert types(cluster) == {
        "brain": (NodeType.CONTROLLER, ()),
        "door": (NodeType.LOGIN, ()),
        "muscle": (NodeType.COMPUTE, ("train",)),
    }
    assert cluster.controller_addresses == ("10.20.0.5",)
    assert cluster.notes == ()


def test_07_api_driven_agrees_with_the_second_file() -> None:
    cluster = load(API, LEGACY / "provisioning_parameters.json")
    assert cluster.source == "provisioning_parameters"
    assert types(cluster) == types(load(API, None))
    assert cluster.groups[0].file_systems == (LUSTRE,)


def test_08_api_driven_request() -> None:
    assert read_create_cluster(CASES / "08-create_cluster-api-driven.json") == (
        GroupRequest("otter-api", "brain", NodeType.CONTROLLER, "ml.c5.xlarge", 1, (), ()),
        GroupRequest(
            "otter-api",
            "door",
            NodeType.LOGIN,
            "ml.m5.4xlarge",
            1,
            (),
            (FileSystem("lustre", LUSTRE.dns_name, LUSTRE.mount_name, "/scratch"), OPENZFS),
        ),
        GroupRequest("otter-api", "1-muscle", NodeType.COMPUTE, "ml.p5.48xlarge", 0, ("train",), (LUSTRE,)),
    )


@pytest.mark.parametrize(
    ("name", "where", "hint"),
    [
        ("missing-value.json", "line 3 column 75", "write the missing value"),
        ("trailing-comma.json", "line 3 column 30", "trailing comma"),
        ("js-comment.json", "line 1 column 1", "JSON has no comments"),
    ],
)
def test_11_syntax_errors_give_line_column_and_hint(name: str, where: str, hint: str) -> None:
    (problem,) = problems(LEGACY / "resource_config.json", CASES / "11-broken" / name)
    assert problem.file.endswith(name)
    assert problem.key == where
    assert hint in problem.remedy


def test_11_wrong_types_are_named_all_at_once() -> None:
    found = problems(LEGACY / "resource_config.json", CASES / "11-broken" / "wrong-types.json")
    assert {problem.key: problem.found for problem in found} == {
        "version": "found 1.0",
        "workload_manager": 'found "Slurm"',
        "controller_group": "found a list",
        "worker_groups": "found an object",
        "fsx_mountname": "is absent or empty, but fsx_dns_name is set",
    }


def test_12_names_that_do_not_match_are_named_all_at_once() -> None:
    folder = CASES / "12-names-do-not-match"
    found = problems(folder / "resource_config.json", folder / "provisioning_parameters.json")
    assert keys(found) == [
        ("provisioning_parameters.json", "controller_group"),
        ("provisioning_parameters.json", "login_group"),
        ("provisioning_parameters.json", "worker_groups[2].instance_group_name"),
        ("provisioning_parameters.json", "worker_groups[3].partition_name"),
        ("resource_config.json", "InstanceGroups[2].Instances[0].CustomerIpAddress"),
    ]
    case, door, ghost, space, twice = found
    assert 'did you mean "brain"?' in case.remedy
    assert "brain, muscle, spare, unlisted" in door.remedy
    assert '"ghost"' in ghost.found
    assert space.found == 'found "has space"'
    assert twice.found == "10.20.1.1 is at InstanceGroups[1].Instances[0].CustomerIpAddress as well"


def test_16_600_nodes_on_one_line(tmp_path: Path) -> None:
    parameters = tmp_path / "provisioning_parameters.json"
    parameters.write_text('{"workload_manager": "slurm", "controller_group": "brain"}')
    cluster = load(CASES / "16-resource_config-600-nodes.json", parameters)
    assert len(cluster.instances) == 601
    assert {group.name: len(group.instances) for group in cluster.groups} == {
        "brain": 1,
        "pod-0": 150,
        "pod-1": 150,
        "pod-2": 150,
        "pod-3": 150,
    }
    node = cluster.node_by_addresses({"10.40.2.209"})
    assert node is not None
    assert (node.name, node.node_type) == ("pod-3-150", NodeType.COMPUTE)


def field_2(number: str) -> list[Problem]:
    (folder,) = (CASES / "field-2").glob(f"{number}-*")
    return problems(folder / "resource_config.json", folder / "provisioning_parameters.json")


def test_field_2_12_values_of_slurm_configurations_are_checked() -> None:
    found = {problem.key.partition(".")[2]: problem for problem in field_2("12")}
    assert list(found) == ["slurm_database_secret_arn", "slurm_database_endpoint", "slurm_sns_arn"]
    assert "arn:aws:secretsmanager:" in found["slurm_database_secret_arn"].remedy
    assert "without scheme, port" in found["slurm_database_endpoint"].remedy
    assert "arn:aws:sns:" in found["slurm_sns_arn"].remedy


def test_field_2_13_none_is_what_a_template_left_behind() -> None:
    found = field_2("13")
    assert [problem.key for problem in found] == [
        "fsx_dns_name",
        "fsx_mountname",
        "slurm_configurations.slurm_database_secret_arn",
        "slurm_configurations.slurm_database_endpoint",
        "slurm_configurations.slurm_database_user",
    ]
    assert {problem.found for problem in found} == {'the placeholder "None"'}
