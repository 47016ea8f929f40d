# SPDX-License-Identifier: Apache-2.0
"""The files below /opt/ml/config, as the agents write them. Pure."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from typing import Any

from hyperpod_lab.agent.node import ACCELERATED, GPUS, Node
from hyperpod_lab.agent.request import NODE_TYPES, parts
from hyperpod_lab.errors import LabUsageError
from hyperpod_lab.shape import FileSystem, GroupShape, Shape

FOLDER = "/opt/ml/config"
RESOURCE_CONFIG = f"{FOLDER}/resource_config.json"
PROVISIONING_PARAMETERS = f"{FOLDER}/provisioning_parameters.json"
LIFE_CYCLE_CONFIG = f"{FOLDER}/life_cycle_config.json"
HOST_AGENT = f"{FOLDER}/host_agent.json"
CLUSTER_AGENT = f"{FOLDER}/cluster_agent.json"
#: systemd-tmpfiles makes the stand-in devices again at every boot.
FAKE_NVIDIA = "/etc/tmpfiles.d/fake_nvidia.conf"
#: What instance metadata says, for fake_imds.
FAKE_IMDS = "/etc/fake_imds.json"
#: Made up; a bucket's name and a prefix with a blank, both of which are allowed.
SCRIPTS = "s3://sagemaker-lab-bucket/life cycle/v1/src/"


def node_files(shape: Shape, nodes: Iterable[Node], node: Node) -> Mapping[str, str]:
    """What the agents write to a node before any script runs; all 0600 and root's."""
    resource_uri = f"s3://fake-service-bucket/{shape.cluster_arn.rpartition('/')[2]}/resource_config.json"
    files = {
        RESOURCE_CONFIG: resource_config(shape, nodes),
        LIFE_CYCLE_CONFIG: _json({"S3Uri": SCRIPTS, "OnCreate": "on_create.sh"}),
        HOST_AGENT: _json({"ResourceConfigS3Uri": resource_uri}),
    }
    if shape.provisioning_parameters is not None:
        files[PROVISIONING_PARAMETERS] = shape.provisioning_parameters
    if node_type_of(shape, node) == "controller":
        topology = shape.platform.topology != "none"
        options = {
            "EnableTopology": topology,
            "TopologyLabel": "network-node-layer-3" if topology else "",
            "UseInstanceNames": False,
            "CreateMagneticReservations": False,
        }
        files[CLUSTER_AGENT] = _json({"ResourceConfigS3Uri": resource_uri, "SlurmConfiguration": options})
    if devices := fake_nvidia(node.instance_type):
        files[FAKE_NVIDIA] = devices
    if shape.platform.image == "ami":
        files[FAKE_IMDS] = _json(identity(shape, node))
    return files


def identity(shape: Shape, node: Node) -> Mapping[str, str]:
    """What fake_imds answers from."""
    return {
        "address": str(node.address),
        "cluster_name": shape.cluster_name,
        "host": node.host,
        "instance_id": node.instance_id,
        "instance_type": node.instance_type.removeprefix("ml."),
        "mac": ":".join(f"{number:02x}" for number in (2, 0, *node.address.packed)),
        "region": (shape.cluster_arn.split(":")[3:4] or ["us-west-2"])[0],
        "subnet": f"{str(node.address).rpartition('.')[0]}.0/24",
    }


def node_type_of(shape: Shape, node: Node) -> str | None:
    """What a node is; None where the files do not say."""
    try:
        part = parts(shape).get(node.group)
    except LabUsageError:
        return None
    return part.node_type if part else None


def resource_config(shape: Shape, nodes: Iterable[Node]) -> str:
    """resource_config.json: a snapshot of the instances that exist."""
    by_name = {node.name: node for node in nodes}
    groups = []
    for group in shape.groups:
        members = [by_name[name] for name in group.instances if name in by_name]
        entry: dict[str, Any] = {
            "Name": group.name,
            "InstanceType": group.instance_type,
            "Instances": [_instance(node) for node in members],
        }
        if group.node_type is not None:
            entry["SlurmConfig"] = _slurm_config(group)
        if group.file_systems:
            entry["InstanceStorageConfigs"] = [_storage_config(each) for each in group.file_systems]
        groups.append(entry)
    head: dict[str, Any] = {"ClusterArn": shape.cluster_arn, "ClusterName": shape.cluster_name}
    kind: dict[str, Any] = {"ClusterType": "Slurm"}
    found = [str(node.address) for node in controllers(shape, by_name.values())]
    if found and any(group.node_type for group in shape.groups):
        kind["SlurmConfig"] = {"PrimaryControllerIp": found[0], "SecondaryControllerIps": found[1:]}
    if shape.platform.slurm_config == "top":
        return _json({"ClusterConfig": head, **kind, "InstanceGroups": groups})
    return _json({"ClusterConfig": head | kind, "InstanceGroups": groups})


def controllers(shape: Shape, nodes: Iterable[Node]) -> list[Node]:
    """The controllers in their order, ``<group>-1`` first; none where the files do not say."""
    found = [node for node in nodes if node_type_of(shape, node) == "controller"]
    order = [name for group in shape.groups for name in group.instances]
    return sorted(found, key=lambda node: (node.name != f"{node.group}-1", order.index(node.name)))


def _instance(node: Node) -> dict[str, Any]:
    entry: dict[str, Any] = {
        "InstanceName": node.name,
        # The service's own network, which users never see.
        "AgentIpAddress": f"172.16.{str(node.address).split('.', 2)[2]}",
        "CustomerIpAddress": str(node.address),
        "InstanceId": node.instance_id,
    }
    if node.instance_type in GPUS or node.instance_type.startswith(ACCELERATED):
        layers = enumerate(network_layers(node), 1)
        entry["InstanceLabel"] = {f"network-node-layer-{number}": layer for number, layer in layers}
    return entry


def network_layers(node: Node) -> tuple[str, str, str]:
    """Made-up switches from the spine down; two neighbours of a group share the lowest."""
    number = int(node.name.rpartition("-")[2]) if node.name.rpartition("-")[2].isdigit() else 0
    names = ("spine", f"spine/{node.group}", f"spine/{node.group}/{(number - 1) // 2}")
    top, middle, lowest = (f"nn-{hashlib.sha256(name.encode()).hexdigest()[:17]}" for name in names)
    return top, middle, lowest


def _slurm_config(group: GroupShape) -> dict[str, Any]:
    spelling = next(word for word, node_type in NODE_TYPES.items() if node_type == group.node_type)
    names = {"PartitionNames": list(group.partitions)} if group.partitions else {}
    return {"NodeType": spelling, **names}


def _storage_config(each: FileSystem) -> dict[str, Any]:
    config = {"DnsName": each.dns_name, "MountPath": each.mount_path}
    if each.kind == "lustre":
        return {"FsxLustreConfig": {**config, "MountName": each.mount_name}}
    return {"FsxOpenZfsConfig": config}


def fake_nvidia(instance_type: str) -> str:
    """tmpfiles.d lines for the stand-in GPU devices: /dev/null under another name. "" for a type without GPUs."""
    lines = [f"c /dev/nvidia{number} 0666 root root - 1:3" for number in range(GPUS.get(instance_type, 0))]
    return "\n".join([*lines, ""])


def _json(document: Mapping[str, Any]) -> str:
    return json.dumps(document, indent=2) + "\n"
