# SPDX-License-Identifier: Apache-2.0
"""The cluster as its JSON files describe it, in frozen models."""

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
    """What a node does; the value is also the name of its Ansible group."""

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
    """One node. Address and id are None while the service has not assigned them."""

    name: str  #: ``InstanceName``, ``<group>-<n>``
    group: str
    address: str | None  #: ``CustomerIpAddress``, the one in the user's network, in canonical spelling
    agent_address: str | None  #: ``AgentIpAddress``, the service's own network; may repeat within a cluster
    instance_id: str | None  #: EC2 instance id


@dataclass(frozen=True)
class Group:
    """An instance group with everything its members have in common."""

    name: str
    node_type: NodeType
    instance_type: str  #: such as ``ml.p5.48xlarge``; "" where the file names none
    partitions: tuple[str, ...]  #: Slurm partitions beside ``dev``, which every node joins; empty unless compute
    instances: tuple[Instance, ...]
    file_systems: tuple[FileSystem, ...]  #: the cluster's and the group's own


@dataclass(frozen=True)
class UntypedGroup:
    """An instance group whose node type no file says: a problem of its own nodes, and of no others."""

    name: str
    instance_type: str
    instances: tuple[Instance, ...]
    problem: Problem


@dataclass(frozen=True)
class Node:
    """One instance in its place."""

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
    """The whole cluster, as of the moment the service wrote its snapshot: peers may be missing or gone."""

    name: str
    arn: str  #: "" where the file has none
    source: Form
    resource_config: str  #: path of the file read
    provisioning_parameters: str | None  #: path of the file read; None where there is none
    groups: tuple[Group, ...]
    slurm_configurations: Mapping[str, Any] = field(hash=False)  #: read-only; keys without a value are left out
    notes: tuple[str, ...]  #: warnings, and the unknown keys that were left alone
    #: ``AccountingDatabase`` of the API-driven form; read-only, keys without a value are left out
    accounting_database: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}), hash=False)
    primary_controller: str | None = None  #: address in ``ClusterConfig.SlurmConfig``; empty on the controller itself
    secondary_controllers: tuple[str, ...] = ()
    untyped_groups: tuple[UntypedGroup, ...] = ()  #: not in ``groups``, nor their instances in ``instances``

    @property
    def region(self) -> str:
        """AWS region from the ARN, "" if there is none."""
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
        """The node with this exact ``InstanceName``.

        :class:`InputError` with the known names if there is none, and if its group has no node type.
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
        """The node whose ``CustomerIpAddress`` is one of ``addresses`` (canonical spelling), None if there is none.

        Comparison is of whole addresses. :class:`InputError` if more than one instance matches, and if the one's group
        has no node type.
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
