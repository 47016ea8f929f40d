# SPDX-License-Identifier: Apache-2.0
"""Read the instance groups of a CreateCluster request (``create_cluster.json``).

It has node types in the API-driven form only; in the file form they are in ``provisioning_parameters.json``.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from hyperpod_lifecycle.cluster.model import FileSystem, NodeType
from hyperpod_lifecycle.cluster.rules import (
    check_one_controller,
    group_file_systems,
    orchestrator_fault,
    slurm_config_roles,
    unique,
)
from hyperpod_lifecycle.cluster.schema import CreateCluster, RequestGroup
from hyperpod_lifecycle.problems import Problems
from hyperpod_lifecycle.strict_json import parse, read_json


@dataclass(frozen=True)
class GroupRequest:
    """One instance group of the request."""

    cluster_name: str
    name: str
    node_type: NodeType | None  #: None in the file form
    instance_type: str  #: of ``InstanceRequirements``, the first, which the service tries first
    count: int  #: number of instances; may be 0
    partitions: tuple[str, ...]  #: Slurm partitions in addition to ``dev``; empty unless compute
    file_systems: tuple[FileSystem, ...]  #: the group's own; empty in the file form


def read_create_cluster(path: Path) -> tuple[GroupRequest, ...]:
    """Return the groups of a request in their order. Raises one :class:`InputError` that lists every problem."""
    file, problems = str(path), Problems()
    groups: tuple[GroupRequest, ...] = ()
    document = read_json(path, problems)
    if document is not None:
        if other := orchestrator_fault(document):
            problems.add(file, *other, "a cluster that Slurm orchestrates is expected")
        request, _ = parse(CreateCluster, document, file, problems)
        groups = _groups(request, file, problems) if request else ()
    problems.raise_any()
    return groups


def _groups(request: CreateCluster, file: str, problems: Problems) -> tuple[GroupRequest, ...]:
    groups = request.instance_groups
    if not groups:
        problems.add(file, "InstanceGroups", "there is none", "a cluster has one group at least")
    unique(
        problems,
        file,
        (
            (f"InstanceGroups[{index}].InstanceGroupName", group.instance_group_name)
            for index, group in enumerate(groups)
        ),
    )
    configs = [(group.instance_group_name, group.slurm_config) for group in groups]
    roles = slurm_config_roles(problems, file, configs)
    if any(config for _, config in configs):
        check_one_controller(problems, file, roles)
        for index, (name, config) in enumerate(configs):
            if config is None:
                key, said = f"InstanceGroups[{index}].SlurmConfig", f"{name} has none, but other groups do"
                problems.add(file, key, said, "give every group a NodeType")
    found = []
    for index, group in enumerate(groups):
        at = f"InstanceGroups[{index}]"
        role = roles.get(group.instance_group_name)
        found.append(
            GroupRequest(
                cluster_name=request.cluster_name,
                name=group.instance_group_name,
                node_type=role.node_type if role else None,
                instance_type=_instance_type(group, file, at, problems),
                count=_count(group, file, at, problems),
                partitions=role.partitions if role else (),
                file_systems=group_file_systems(
                    problems, file, f"{at}.InstanceStorageConfigs", group.instance_storage_configs or ()
                ),
            )
        )
    return tuple(found)


def _instance_type(group: RequestGroup, file: str, at: str, problems: Problems) -> str:
    types = group.instance_requirements.instance_types if group.instance_requirements else []
    if bool(group.instance_type) == bool(types):
        found = "is there beside InstanceRequirements" if types else "is absent, and so is InstanceRequirements"
        problems.add(file, f"{at}.InstanceType", found, "give InstanceType, or InstanceRequirements.InstanceTypes")
    return group.instance_type or (types[0] if types else "")


def _count(group: RequestGroup, file: str, at: str, problems: Problems) -> int:
    if group.instance_count < 0:
        problems.add(file, f"{at}.InstanceCount", f"found {group.instance_count}", "0 or more is expected")
    return group.instance_count
