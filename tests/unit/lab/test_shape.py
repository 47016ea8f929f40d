# SPDX-License-Identifier: Apache-2.0
"""What a lab is asked to be: counts, names, both forms of the files, and how two requests differ."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from hyperpod_lab.agent.request import from_create_cluster, from_resource_config
from hyperpod_lab.errors import LabUsageError
from hyperpod_lab.image import Release
from hyperpod_lab.shape import (
    EXAMPLE,
    EXAMPLE_COUNTS,
    PARAMETERS,
    GroupShape,
    Platform,
    Shape,
    parse_counts,
)
from hyperpod_lifecycle.cluster import NodeType

CASES = Path(__file__).parents[1] / "cases"
REQUEST = EXAMPLE / "create_cluster.json"


@pytest.fixture
def example() -> Shape:
    return from_create_cluster(REQUEST, None, Release.TRIXIE)


def test_the_example_is_the_documented_one_with_homes_on_openzfs() -> None:
    documented = CASES / "00-documented-example"
    assert REQUEST.read_bytes() == (documented / REQUEST.name).read_bytes()
    ours, theirs = (json.loads((folder / PARAMETERS).read_text()) for folder in (EXAMPLE, documented))
    assert ours.pop("fsx_openzfs_dns_name")
    assert ours == theirs


@pytest.mark.parametrize("name", ["compute-nodes", "../x", "a_b", "-a", "a-", "a" * 64, ""])
def test_a_group_that_cannot_be_added(example: Shape, name: str) -> None:
    with pytest.raises(LabUsageError, match="group"):
        example.with_group(GroupShape(name, "ml.g5.xlarge", ()))


def test_a_group_has_a_size_that_a_machine_can_count(example: Shape) -> None:
    with pytest.raises(LabUsageError, match="from 0 to 10000"):
        example.resized({"compute-nodes": 10**20})
    with pytest.raises(LabUsageError, match="a whole number"):
        parse_counts(["compute-nodes=" + "9" * 5000])


def test_nodes_are_named_and_counted_by_the_request(example: Shape) -> None:
    assert {group.name: group.instances for group in example.groups} == {
        "controller-machine": ("controller-machine-1",),
        "login-group": ("login-group-1",),
        "compute-nodes": tuple(f"compute-nodes-{number}" for number in range(1, 5)),
    }
    smaller = example.resized(EXAMPLE_COUNTS)
    assert smaller.groups[2].instances == ("compute-nodes-1", "compute-nodes-2")


def test_file_form_passes_the_second_file_on_as_it_is(example: Shape, tmp_path: Path) -> None:
    broken = tmp_path / "provisioning_parameters.json"
    broken.write_text('{"controller_group": // not JSON\n')
    assert example.provisioning_parameters == (EXAMPLE / "provisioning_parameters.json").read_text()
    assert from_create_cluster(REQUEST, broken, Release.TRIXIE).provisioning_parameters == broken.read_text()


def test_file_form_without_the_second_file_is_refused(tmp_path: Path) -> None:
    alone = Path(shutil.copy(REQUEST, tmp_path))
    with pytest.raises(LabUsageError, match="--provisioning-parameters"):
        from_create_cluster(alone, None, Release.TRIXIE)


def test_api_form_needs_no_second_file() -> None:
    shape = from_create_cluster(CASES / "08-create_cluster-api-driven.json", None, Release.BOOKWORM)
    assert shape.provisioning_parameters is None
    assert [(group.node_type, group.partitions, len(group.instances)) for group in shape.groups] == [
        (NodeType.CONTROLLER, (), 1),
        (NodeType.LOGIN, (), 1),
        (NodeType.COMPUTE, ("train",), 0),
    ]


def test_resource_config_gives_the_instance_names_whatever_its_addresses_are() -> None:
    shape = from_resource_config(CASES / "00-documented-example/resource_config.json", None, Release.TRIXIE)
    assert sum(len(group.instances) for group in shape.groups) == 6
    assert shape.provisioning_parameters is not None
    assert shape.cluster_arn.endswith("cluster/abcde01234yz")
    assert all(group.node_type is None for group in shape.groups)


def test_resource_config_of_the_api_form_keeps_its_node_types() -> None:
    shape = from_resource_config(CASES / "07-resource_config-api-driven-INFERRED.json", None, Release.TRIXIE)
    assert [group.node_type for group in shape.groups] == [NodeType.CONTROLLER, NodeType.LOGIN, NodeType.COMPUTE]
    assert shape.groups[2].partitions == ("train",)


def test_growing_fills_the_lowest_free_numbers_and_shrinking_keeps_the_first() -> None:
    group = GroupShape("pod", "ml.g5.xlarge", ("pod-2", "odd-name"))
    assert group.resized(4).instances == ("pod-2", "odd-name", "pod-1", "pod-3")
    assert group.resized(1).instances == ("pod-2",)
    assert group.resized(0).instances == ()
    with pytest.raises(LabUsageError):
        group.resized(-1)


def test_unknown_groups_and_instances_are_named_with_the_known_ones(example: Shape) -> None:
    with pytest.raises(LabUsageError, match=r"compute-node\b.*Known groups: controller-machine, login-group"):
        example.resized({"compute-node": 1})
    with pytest.raises(LabUsageError, match="Known instances: controller-machine-1"):
        example.group_of("compute-nodes-9")


def test_a_shape_survives_its_file(example: Shape) -> None:
    api = from_create_cluster(CASES / "08-create_cluster-api-driven.json", None, Release.BOOKWORM)
    assert api.groups[1].file_systems
    for shape in (example, api):
        assert Shape.parse(shape.dump()) == shape
        assert shape.differences(Shape.parse(shape.dump())) == []


def test_differences_are_said_in_words(example: Shape) -> None:
    other = replace(
        example.resized({"compute-nodes": 1}),
        release=Release.BOOKWORM,
        cluster_name="other",
        provisioning_parameters="{}",
        platform=Platform(topology="tree"),
    )
    other = replace(other, groups=(*other.groups[1:], GroupShape("more", "ml.g5.xlarge", ())))
    assert example.differences(other) == [
        "release: trixie is up, bookworm is asked for",
        "group controller-machine: is up and not asked for",
        "group compute-nodes: 4 nodes are up, 1 asked for",
        "group more: is not up",
        "cluster name: your-hyperpod-cluster is up, other is asked for",
        "provisioning_parameters.json: another text is up",
        "topology: none is up, tree is asked for",
    ]


def test_counts() -> None:
    assert parse_counts(["a=1", "b-c=20", "d=e=0"]) == {"a": 1, "b-c": 20, "d=e": 0}


@pytest.mark.parametrize("word", ["a", "a=", "=1", "a=-1", "a=1.5", "a=x", "a= 1", "a=²"])
def test_a_count_that_is_none_is_refused(word: str) -> None:
    with pytest.raises(LabUsageError, match="GROUP=N"):
        parse_counts([word])


def test_a_count_given_twice_is_refused() -> None:
    with pytest.raises(LabUsageError, match="twice"):
        parse_counts(["a=1", "a=2"])


def test_a_lab_from_before_there_were_platforms_can_be_removed(example: Shape) -> None:
    older = json.loads(example.dump())
    del older["platform"]
    assert Shape.parse(json.dumps(older)) == example
