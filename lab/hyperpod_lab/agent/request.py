# SPDX-License-Identifier: Apache-2.0
"""The stand-in's own reading of a request, and of who is what by it.

It shares no code with the runner, so that a misreading there shows as a difference. Requests are taken to be what the
service accepts; what cannot be followed is one error.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hyperpod_lab.errors import LabUsageError
from hyperpod_lab.image import Release
from hyperpod_lab.shape import PARAMETERS, FileSystem, GroupShape, NodeType, Shape, cluster_arn

#: The API's spelling.
NODE_TYPES: Mapping[str, NodeType] = {"Controller": "controller", "Login": "login", "Compute": "compute"}


@dataclass(frozen=True)
class Part:
    """What a group is in the cluster."""

    node_type: NodeType
    partitions: tuple[str, ...] = ()


def from_create_cluster(path: Path, parameters: Path | None, release: Release) -> Shape:
    """The groups and counts of a request; in the file form the second file lies beside it if it is not named."""
    request = _object(path)
    try:
        groups = tuple(_requested(group) for group in request["InstanceGroups"])
        name = str(request["ClusterName"])
    except (KeyError, TypeError, IndexError) as error:
        raise LabUsageError(f"{path} is no request for a cluster: {error!r}; try `hyperpod-lifecycle plan`") from error
    if parameters is None and not any(group.node_type for group in groups):
        parameters = path.with_name(PARAMETERS)
        if not parameters.is_file():
            raise LabUsageError(
                f"{path} has no SlurmConfig and no {PARAMETERS} beside it; name it: --provisioning-parameters"
            )
    return Shape(name, cluster_arn(name), release, groups, _text(parameters))


def from_resource_config(path: Path, parameters: Path | None, release: Release) -> Shape:
    """The same groups and instance names; addresses are the lab's own, so the file's may be placeholders."""
    if parameters is None and path.with_name(PARAMETERS).is_file():
        parameters = path.with_name(PARAMETERS)
    document = _object(path)
    try:
        head = document["ClusterConfig"]
        name, arn = str(head["ClusterName"]), head.get("ClusterArn")
        groups = tuple(
            GroupShape(
                group["Name"],
                group.get("InstanceType") or "",
                tuple(instance["InstanceName"] for instance in group.get("Instances") or ()),
                *_configured(group),
            )
            for group in document["InstanceGroups"]
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise LabUsageError(f"{path} is no resource_config.json: {error!r}; try `hyperpod-lifecycle plan`") from error
    return Shape(name, arn or cluster_arn(name), release, groups, _text(parameters))


def _requested(group: Mapping[str, Any]) -> GroupShape:
    instance_type = group.get("InstanceType") or group["InstanceRequirements"]["InstanceTypes"][0]
    shape = GroupShape(group["InstanceGroupName"], instance_type, (), *_configured(group))
    return shape.resized(int(group["InstanceCount"]))


def _configured(group: Mapping[str, Any]) -> tuple[NodeType | None, tuple[str, ...], tuple[FileSystem, ...]]:
    config = group.get("SlurmConfig") or {}
    node_type = NODE_TYPES[config["NodeType"]] if config else None
    found = []
    for each in group.get("InstanceStorageConfigs") or ():
        if lustre := each.get("FsxLustreConfig"):
            path = lustre.get("MountPath") or "/fsx"
            found.append(FileSystem("lustre", lustre["DnsName"], lustre["MountName"], path))
        if openzfs := each.get("FsxOpenZfsConfig"):
            found.append(FileSystem("openzfs", openzfs["DnsName"], None, openzfs.get("MountPath") or "/home"))
    return node_type, tuple(config.get("PartitionNames") or ()), tuple(found)


def parts(shape: Shape) -> Mapping[str, Part]:
    """Group name -> what it is. A group that nothing names has no part; LabUsageError if there is no controller."""
    found: dict[str, Part] = {}
    names = {group.name for group in shape.groups}
    for group in shape.groups:
        if group.node_type:
            found[group.name] = Part(group.node_type, group.partitions)
    if not found:
        parameters = _parameters(shape)
        for worker in parameters.get("worker_groups") or ():
            if isinstance(worker, dict) and (group_name := _name(worker.get("instance_group_name"))) in names:
                partition = worker.get("partition_name")
                before = found[group_name].partitions if group_name in found else ()
                found[group_name] = Part("compute", (*before, *([partition] if partition else [])))
        keys: Mapping[str, NodeType] = {"login_group": "login", "controller_group": "controller"}
        for key, kind in keys.items():
            value = parameters.get(key)
            found |= {
                name: Part(kind) for name in map(_name, value if isinstance(value, list) else [value]) if name in names
            }
    if not any(part.node_type == "controller" for part in found.values()):
        raise LabUsageError(f"no group is the controller. Groups: {', '.join(sorted(names))}")
    return found


def _name(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _parameters(shape: Shape) -> dict[str, Any]:
    try:
        parameters = json.loads((shape.provisioning_parameters or "{}").removeprefix("\ufeff"))
    except ValueError as error:
        raise LabUsageError(f"{PARAMETERS} is not JSON: {error}") from error
    if not isinstance(parameters, dict):
        raise LabUsageError(f"{PARAMETERS} is no JSON object")
    return parameters


def file_systems(shape: Shape) -> list[FileSystem]:
    """The file systems that a cluster's files name, each once; the groups' own only where a file is wrong."""
    found = [each for group in shape.groups for each in group.file_systems]
    try:
        parameters = _parameters(shape)
    except LabUsageError:
        parameters = {}
    lustre, mount_name, openzfs = (
        parameters.get(key) for key in ("fsx_dns_name", "fsx_mountname", "fsx_openzfs_dns_name")
    )
    if isinstance(lustre, str) and isinstance(mount_name, str):
        found.append(FileSystem("lustre", lustre, mount_name, "/fsx"))
    if isinstance(openzfs, str):
        found.append(FileSystem("openzfs", openzfs, None, "/home"))
    usable = [each for each in found if re.fullmatch(r"[A-Za-z0-9.-]+", each.dns_name)]
    return list({(each.dns_name, each.mount_name): each for each in usable}.values())


def _object(path: Path) -> dict[str, Any]:
    try:
        document = json.loads((_text(path) or "").removeprefix("\ufeff"))
    except ValueError as error:
        raise LabUsageError(f"{path} is not JSON: {error}") from error
    if not isinstance(document, dict):
        raise LabUsageError(f"{path} is no JSON object")
    return document


def _text(path: Path | None) -> str | None:
    if path is None:
        return None
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise LabUsageError(f"cannot read {path}: {error}") from error
