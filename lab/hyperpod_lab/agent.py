# SPDX-License-Identifier: Apache-2.0
"""The cluster agent stand-in's files: the JSON pair, slurm.conf and gres.conf. Pure; `lab.py` puts them in place."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from ipaddress import IPv4Address
from typing import Any

from hyperpod_lab.addresses import host_name
from hyperpod_lab.shape import GroupShape, Shape
from hyperpod_lifecycle.cluster import Cluster, FileSystem, NodeType

RESOURCE_CONFIG = "/opt/ml/config/resource_config.json"
PROVISIONING_PARAMETERS = "/opt/ml/config/provisioning_parameters.json"
SLURM_CONF = "/opt/slurm/etc/slurm.conf"
GRES_CONF = "/opt/slurm/etc/gres.conf"
MUNGE_KEY = "/etc/munge/munge.key"
#: systemd-tmpfiles makes the stand-in devices again at every boot.
FAKE_NVIDIA = "/etc/tmpfiles.d/fake_nvidia.conf"

#: GPUs of the instance types people use; sizes that are not here have none.
GPUS = {
    "ml.g4dn.xlarge": 1, "ml.g4dn.12xlarge": 4, "ml.g4dn.metal": 8,
    "ml.g5.xlarge": 1, "ml.g5.2xlarge": 1, "ml.g5.4xlarge": 1, "ml.g5.8xlarge": 1, "ml.g5.16xlarge": 1,
    "ml.g5.12xlarge": 4, "ml.g5.24xlarge": 4, "ml.g5.48xlarge": 8,
    "ml.g6.xlarge": 1, "ml.g6.2xlarge": 1, "ml.g6.4xlarge": 1, "ml.g6.8xlarge": 1, "ml.g6.16xlarge": 1,
    "ml.g6.12xlarge": 4, "ml.g6.24xlarge": 4, "ml.g6.48xlarge": 8,
    "ml.g6e.xlarge": 1, "ml.g6e.2xlarge": 1, "ml.g6e.4xlarge": 1, "ml.g6e.8xlarge": 1, "ml.g6e.16xlarge": 1,
    "ml.g6e.12xlarge": 4, "ml.g6e.24xlarge": 4, "ml.g6e.48xlarge": 8,
    "ml.p3.2xlarge": 1, "ml.p3.8xlarge": 4, "ml.p3.16xlarge": 8,
    "ml.p4d.24xlarge": 8, "ml.p4de.24xlarge": 8,
    "ml.p5.4xlarge": 1, "ml.p5.48xlarge": 8, "ml.p5e.48xlarge": 8, "ml.p5en.48xlarge": 8,
    "ml.p6-b200.48xlarge": 8, "ml.p6-b300.48xlarge": 8,
}  # fmt: skip


@dataclass(frozen=True)
class Node:
    """One instance as the lab runs it; kept in the container's labels."""

    name: str  #: instance name
    group: str
    instance_type: str
    instance_id: str
    address: IPv4Address
    container: str
    running: bool = True

    @property
    def host(self) -> str:
        return host_name(self.address)


@dataclass(frozen=True)
class Hardware:
    """What every node of the lab has: the machine's processors and memory, shared."""

    cpus: int
    memory_mb: int


def resource_config(shape: Shape, nodes: Iterable[Node]) -> str:
    """resource_config.json as the service writes it: a snapshot of the instances that exist."""
    by_name = {node.name: node for node in nodes}
    groups = []
    for group in shape.groups:
        members = [by_name[name] for name in group.instances if name in by_name]
        entry: dict[str, Any] = {
            "Name": group.name,
            "InstanceType": group.instance_type,
            "Instances": [
                {
                    "InstanceName": node.name,
                    # The service's own network, which users never see.
                    "AgentIpAddress": f"172.16.{str(node.address).split('.', 2)[2]}",
                    "CustomerIpAddress": str(node.address),
                    "InstanceId": node.instance_id,
                }
                for node in members
            ],
        }
        if group.node_type is not None:
            entry["SlurmConfig"] = _slurm_config(group)
        if group.file_systems:
            entry["InstanceStorageConfigs"] = [_storage_config(each) for each in group.file_systems]
        groups.append(entry)
    head: dict[str, Any] = {"ClusterArn": shape.cluster_arn, "ClusterName": shape.cluster_name}
    controllers = [
        str(by_name[name].address)
        for group in shape.groups
        if group.node_type is NodeType.CONTROLLER
        for name in group.instances
        if name in by_name
    ]
    if controllers:
        head["ClusterType"] = "Slurm"
        head["SlurmConfig"] = {"PrimaryControllerIp": controllers[0], "SecondaryControllerIps": controllers[1:]}
    return json.dumps({"ClusterConfig": head, "InstanceGroups": groups}, indent=2) + "\n"


def _slurm_config(group: GroupShape) -> dict[str, Any]:
    # The API's spelling: Controller, Login, Compute.
    names = {"PartitionNames": list(group.partitions)} if group.partitions else {}
    return {"NodeType": group.node_type.value.capitalize() if group.node_type else None, **names}


def _storage_config(each: FileSystem) -> dict[str, Any]:
    config = {"DnsName": each.dns_name, "MountPath": each.mount_path}
    if each.kind == "lustre":
        return {"FsxLustreConfig": {**config, "MountName": each.mount_name}}
    return {"FsxOpenZfsConfig": config}


def slurm_conf(cluster: Cluster, hardware: Hardware) -> str:
    """slurm.conf with the lines that the agent manages, and what real Slurm needs to run in a container."""
    addresses = {
        instance.address: host_name(IPv4Address(instance.address)) for instance in cluster.instances if instance.address
    }
    gpus = {group.name: GPUS.get(group.instance_type, 0) for group in cluster.groups}
    compute = [group for group in cluster.groups if group.node_type is NodeType.COMPUTE]
    nodes: list[str] = []
    partitions: dict[str, list[str]] = {}
    for group in compute:
        hosts = [(addresses[i.address], i.address) for i in group.instances if i.address]
        for partition in group.partitions:
            partitions.setdefault(partition, []).extend(host for host, _ in hosts)
        gres = f" Gres=gpu:{gpus[group.name]}" if gpus[group.name] else ""
        size = f"CPUs={hardware.cpus} RealMemory={hardware.memory_mb}{gres}"
        nodes += [f"NodeName={host} NodeAddr={address} {size} State=UNKNOWN" for host, address in hosts]
    lines = [
        "# Written by the cluster agent stand-in of the lab.",
        f"ClusterName={cluster.name}",
        *(f"SlurmctldHost={addresses[address]}({address})" for address in cluster.controller_addresses),
        "AuthType=auth/munge",
        "SlurmUser=slurm",
        "ProctrackType=proctrack/linuxproc",
        "TaskPlugin=task/none",
        "JobAcctGatherType=jobacct_gather/linux",
        "MpiDefault=none",
        "SelectType=select/cons_tres",
        "SelectTypeParameters=CR_CPU",
        "SchedulerParameters=permit_job_expansion",
        "StateSaveLocation=/var/spool/slurmctld",
        "SlurmdSpoolDir=/var/spool/slurmd",
        "ReturnToService=1",
        "SlurmdTimeout=60",
        *(["GresTypes=gpu"] if any(gpus[group.name] for group in compute) else []),
        "# Slurmctld settings",
        "SlurmctldParameters=enable_configless",
        "SlurmctldLogFile=/var/log/slurm/slurmctld.log",
        "SlurmdLogFile=/var/log/slurm/slurmd.log",
        "Include accounting.conf",
        *nodes,
        *(_partition(name, ",".join(hosts), default=False) for name, hosts in partitions.items()),
        _partition("dev", "ALL" if nodes else "", default=True),
    ]
    return "\n".join(lines) + "\n"


def _partition(name: str, hosts: str, *, default: bool) -> str:
    # A partition may be empty, but "Nodes=" with nothing is an error.
    nodes = f" Nodes={hosts}" if hosts else ""
    return f"PartitionName={name}{nodes} Default={'YES' if default else 'NO'} MaxTime=INFINITE State=UP"


def gres_conf(cluster: Cluster) -> str:
    """gres.conf for the nodes with GPUs; comments only where there are none."""
    lines = ["# Written by the cluster agent stand-in of the lab."]
    for group in cluster.groups:
        count = GPUS.get(group.instance_type, 0) if group.node_type is NodeType.COMPUTE else 0
        if count:
            devices = f"/dev/nvidia[0-{count - 1}]" if count > 1 else "/dev/nvidia0"
            hosts = [host_name(IPv4Address(i.address)) for i in group.instances if i.address]
            lines += [f"NodeName={host} Name=gpu File={devices}" for host in hosts]
    return "\n".join(lines) + "\n"


def fake_nvidia(instance_type: str) -> str:
    """tmpfiles.d lines for the stand-in GPU devices: /dev/null under another name. "" for a type without GPUs."""
    lines = [f"c /dev/nvidia{number} 0666 root root - 1:3" for number in range(GPUS.get(instance_type, 0))]
    return "\n".join([*lines, ""])


def node_files(shape: Shape, nodes: Iterable[Node], node: Node) -> Mapping[str, str]:
    """What the agent writes to a node before any script runs; all 0600 and root's."""
    files = {RESOURCE_CONFIG: resource_config(shape, nodes)}
    if shape.provisioning_parameters is not None:
        files[PROVISIONING_PARAMETERS] = shape.provisioning_parameters
    devices = fake_nvidia(node.instance_type)
    if devices:
        files[FAKE_NVIDIA] = devices
    return files
