# SPDX-License-Identifier: Apache-2.0
"""Rules between the values of a file, for `resource_config.json` and for the request that makes a cluster."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hyperpod_lifecycle import formats
from hyperpod_lifecycle.cluster.model import FileSystem, NodeType
from hyperpod_lifecycle.cluster.schema import GroupSlurmConfig, InstanceStorageConfig
from hyperpod_lifecycle.problems import Problems, did_you_mean, known, nearest, show


@dataclass(frozen=True)
class Role:
    """Node type and partitions of a group, from one of the two forms."""

    node_type: NodeType
    partitions: tuple[str, ...] = ()

    def __str__(self) -> str:
        partitions = f" in partition {known(self.partitions)}" if self.partitions else ""
        return f"{self.node_type.value}{partitions}"


def orchestrator_fault(document: Mapping[str, Any]) -> tuple[str, str] | None:
    """Return key and finding if an ``Orchestrator`` other than Slurm is named, else None."""
    orchestrator = document.get("Orchestrator")
    if isinstance(orchestrator, dict):
        orchestrator = next((name for name in orchestrator if name != "Slurm"), None)
        return ("Orchestrator", f"found {show(orchestrator)}") if orchestrator else None
    return ("Orchestrator", f"found {show(orchestrator)}") if orchestrator not in (None, "Slurm") else None


def _kubernetes_key(document: Mapping[str, Any]) -> tuple[str, str] | None:
    """Return key and finding of the first ``KubernetesConfig``. Slurm clusters have ``InstanceLabel`` as well."""
    groups = document.get("InstanceGroups")
    for index, group in enumerate(groups if isinstance(groups, list) else ()):
        if isinstance(group, dict) and group.get("KubernetesConfig") is not None:
            return f"InstanceGroups[{index}].KubernetesConfig", "is a key of EKS clusters"
    return None


def other_orchestrator(document: Mapping[str, Any]) -> tuple[str, str] | None:
    """Return key and finding if ``resource_config.json`` is that of an EKS cluster, else None."""
    config = document.get("ClusterConfig")
    places = [("", document), *([("ClusterConfig.", config)] if isinstance(config, dict) else [])]
    kinds = [(f"{at}ClusterType", place["ClusterType"]) for at, place in places if place.get("ClusterType") is not None]
    for key, kind in kinds:
        if kind != "Slurm":
            return key, f"found {show(kind)}"
    if kinds:
        return None
    for at, place in places:
        if found := orchestrator_fault(place):
            return f"{at}{found[0]}", found[1]
    return _kubernetes_key(document)


def unique(problems: Problems, file: str, named: Iterator[tuple[str, str]]) -> None:
    """Add a problem for each duplicate name; ``named`` has pairs of key and name."""
    seen: dict[str, str] = {}
    for key, name in named:
        if seen.setdefault(name, key) != key:
            problems.add(file, key, f"{show(name)} is at {seen[name]} as well", "give each its own name")


def check_partition(problems: Problems, file: str, key: str, name: str) -> None:
    """Add a problem if slurm.conf cannot hold this partition name."""
    if remedy := formats.partition(name):
        problems.add(file, key, f"found {show(name)}", remedy)


_API_TYPES = {"Controller": NodeType.CONTROLLER, "Login": NodeType.LOGIN, "Compute": NodeType.COMPUTE}


def slurm_config_roles(
    problems: Problems, file: str, groups: Sequence[tuple[str, GroupSlurmConfig | None]]
) -> dict[str, Role]:
    """Return the role of each group that has a ``SlurmConfig``. Only Compute groups have partitions.

    The service currently allows one Login group and one partition per group, and checks both itself.
    """
    roles: dict[str, Role] = {}
    for index, (name, config) in enumerate(groups):
        if config is None:
            continue
        at = f"InstanceGroups[{index}].SlurmConfig"
        node_type = _API_TYPES.get(config.node_type)
        if node_type is None:
            problems.add(
                file,
                f"{at}.NodeType",
                f"found {show(config.node_type)}",
                f"{did_you_mean(nearest(config.node_type, list(_API_TYPES)))}Known types: {known(_API_TYPES)}",
            )
            continue
        partitions = tuple(dict.fromkeys(config.partition_names or ()))
        for number, partition in enumerate(config.partition_names or ()):
            check_partition(problems, file, f"{at}.PartitionNames[{number}]", partition)
        if node_type is NodeType.COMPUTE and not partitions:
            problems.add(file, f"{at}.PartitionNames", f"{name} has none", "name the partition of this Compute group")
        if node_type is not NodeType.COMPUTE and partitions:
            problems.add(
                file,
                f"{at}.PartitionNames",
                f"{name} is {config.node_type} and has {known(partitions)}",
                "only Compute groups have partitions",
            )
        roles[name] = Role(node_type, partitions)
    return roles


def check_one_controller(problems: Problems, file: str, roles: Mapping[str, Role]) -> None:
    """Add a problem unless exactly one group is a Controller group."""
    controllers = [name for name, role in roles.items() if role.node_type is NodeType.CONTROLLER]
    if len(controllers) != 1:
        problems.add(
            file,
            "InstanceGroups[*].SlurmConfig.NodeType",
            f"Controller groups: {known(controllers)}",
            "exactly one group must be Controller",
        )


def group_file_systems(
    problems: Problems,
    file: str,
    at: str,
    configs: Sequence[InstanceStorageConfig],
    shared: Sequence[FileSystem] = (),
) -> tuple[FileSystem, ...]:
    """Return ``shared`` and the FSx file systems of a group's ``InstanceStorageConfigs``, without duplicates.

    Adds a problem for two file systems at one path and for two of a kind in the group (the service allows one).
    """
    found = {system.mount_path: system for system in shared}
    kinds: set[str] = set()
    for index, config in enumerate(configs):
        systems: list[tuple[str, FileSystem]] = []
        if lustre := config.fsx_lustre_config:
            systems.append(
                (
                    "FsxLustreConfig",
                    FileSystem("lustre", lustre.dns_name, lustre.mount_name, lustre.mount_path or "/fsx"),
                )
            )
        if openzfs := config.fsx_open_zfs_config:
            systems.append(
                ("FsxOpenZfsConfig", FileSystem("openzfs", openzfs.dns_name, None, openzfs.mount_path or "/home"))
            )
        for kind, system in systems:
            key = f"{at}[{index}].{kind}"
            if system.kind in kinds:
                problems.add(file, key, "is the group's second of its kind", "a group has one of each kind at most")
            kinds.add(system.kind)
            other = found.setdefault(system.mount_path, system)
            if other != system:
                problems.add(
                    file,
                    key,
                    f"{system.dns_name} is to be mounted at {system.mount_path}, and so is {other.dns_name}",
                    "give each file system its own path",
                )
    return tuple(found.values())
