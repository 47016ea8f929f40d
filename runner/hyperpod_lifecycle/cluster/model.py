# SPDX-License-Identifier: Apache-2.0
"""Immutable models of the cluster."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property
from types import MappingProxyType
from typing import Any, Literal

from hyperpod_lifecycle.errors import InputError, Problem
from hyperpod_lifecycle.problems import did_you_mean, known, nearest, show


class NodeType(str, Enum):
    """The type of a node; its value is also the name of its Ansible group."""

    CONTROLLER = "controller"
    LOGIN = "login"
    COMPUTE = "compute"


#: What decided the node types.
Form = Literal["provisioning_parameters", "slurm_config"]


@dataclass(frozen=True)
class FileSystem:
    """An FSx file system to mount."""

    kind: Literal["lustre", "openzfs"]
    dns_name: str
    mount_name: str | None  #: Lustre's mount name; None for OpenZFS
    mount_path: str  #: absolute, without a final slash; ``/fsx`` (Lustre) and ``/home`` (OpenZFS) by default


@dataclass(frozen=True)
class Instance:
    """One instance. Address and id are None until the service has assigned them."""

    name: str  #: ``InstanceName``, ``<group>-<n>``
    group: str
    address: str | None  #: ``CustomerIpAddress``, the one in the user's network, in canonical spelling
    agent_address: str | None  #: ``AgentIpAddress``, the service's own network; may repeat within a cluster
    instance_id: str | None  #: EC2 instance id


@dataclass(frozen=True)
class Group:
    """An instance group: what its instances have in common."""

    name: str
    node_type: NodeType
    instance_type: str  #: such as ``ml.p5.48xlarge``; "" where the file names none
    partitions: tuple[str, ...]  #: Slurm partitions beside ``dev``, which every node joins; empty unless compute
    instances: tuple[Instance, ...]
    file_systems: tuple[FileSystem, ...]  #: the cluster's and the group's own


@dataclass(frozen=True)
class UntypedGroup:
    """An instance group without a node type in the files: an error only for its own nodes."""

    name: str
    instance_type: str
    instances: tuple[Instance, ...]
    problem: Problem


@dataclass(frozen=True)
class Node:
    """An instance with its group and cluster."""

    cluster: Cluster = field(repr=False, hash=False)
    group: Group
    instance: Instance

    @property
    def name(self) -> str:
        return self.instance.name

    @property
    def node_type(self) -> NodeType:
        return self.group.node_type


@dataclass(frozen=True)
class Cluster:
    """The cluster at the time the service wrote its files: instances may be missing or gone."""

    name: str
    arn: str  #: "" where the file has none
    source: Form
    resource_config: str  #: path of the file read
    provisioning_parameters: str | None  #: path of the file read; None where there is none
    groups: tuple[Group, ...]
    slurm_configurations: Mapping[str, Any] = field(hash=False)  #: read-only; keys without a value are left out
    notes: tuple[str, ...]  #: warnings, including ignored unknown keys
    #: ``AccountingDatabase`` of the API-driven form; read-only, keys without a value are left out
    accounting_database: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}), hash=False)
    primary_controller: str | None = None  #: address in ``ClusterConfig.SlurmConfig``; empty on the controller itself
    secondary_controllers: tuple[str, ...] = ()
    untyped_groups: tuple[UntypedGroup, ...] = ()  #: not in ``groups``, nor their instances in ``instances``

    @property
    def region(self) -> str:
        """AWS region from the ARN, or ""."""
        parts = self.arn.split(":")
        return parts[3] if parts[0] == "arn" and len(parts) >= 6 else ""

    @cached_property
    def instances(self) -> tuple[Instance, ...]:
        return tuple(instance for group in self.groups for instance in group.instances)

    @cached_property
    def controller_addresses(self) -> tuple[str, ...]:
        """Addresses of all controllers, the primary first, each once.

        Primary is what the API-driven form says, else the instance ``<group>-1``, by convention the leader.
        """
        ordered = sorted(
            self._members(NodeType.CONTROLLER), key=lambda instance: instance.name != f"{instance.group}-1"
        )
        found = [instance.address for instance in ordered if instance.address]
        first = [self.primary_controller] if self.primary_controller else []
        unlisted = [address for address in found if address not in self.secondary_controllers]
        return tuple(dict.fromkeys([*first, *unlisted, *self.secondary_controllers]))

    @cached_property
    def login_addresses(self) -> tuple[str, ...]:
        """Addresses of all login nodes, in the order of the file."""
        return tuple(instance.address for instance in self._members(NodeType.LOGIN) if instance.address)

    def node_by_name(self, name: str) -> Node:
        """Return the node with this exact ``InstanceName``.

        Raises :class:`InputError` if there is none, or its group has no node type.
        """
        if name in self._by_name:
            return self._by_name[name]
        untyped = {instance.name: group for group in self.untyped_groups for instance in group.instances}
        if name in untyped:
            raise InputError([untyped[name].problem])
        names = [*self._by_name, *untyped]
        raise InputError(
            [
                Problem(
                    self.resource_config,
                    "InstanceGroups[*].Instances[*].InstanceName",
                    f"no instance is named {show(name)}",
                    f"{did_you_mean(nearest(name, names))}Known instances: {known(names)}",
                )
            ]
        )

    def node_by_addresses(self, addresses: Collection[str]) -> Node | None:
        """Return the node whose ``CustomerIpAddress`` is in ``addresses`` (canonical spelling), or None.

        Raises :class:`InputError` if several instances match, or the group of the match has no node type.
        """
        groups: tuple[Group | UntypedGroup, ...] = (*self.groups, *self.untyped_groups)
        matches = [each for group in groups for each in group.instances if each.address in addresses]
        if len(matches) > 1:
            raise InputError(
                [
                    Problem(
                        self.resource_config,
                        "InstanceGroups[*].Instances[*].CustomerIpAddress",
                        f"this node's addresses match {known(f'{each.name} ({each.address})' for each in matches)}",
                        "a node is one instance; correct the file, or remove the extra address from this node",
                    )
                ]
            )
        return self.node_by_name(matches[0].name) if matches else None

    @cached_property
    def _by_name(self) -> dict[str, Node]:
        return {instance.name: Node(self, group, instance) for group in self.groups for instance in group.instances}

    def _members(self, node_type: NodeType) -> Iterator[Instance]:
        return (instance for group in self.groups if group.node_type is node_type for instance in group.instances)
