# SPDX-License-Identifier: Apache-2.0
"""The cluster as its JSON files describe it: the one place where node types are decided.

Two forms exist and both must work (the service's reference pages call the first "legacy", yet fully supported):

* file form: ``provisioning_parameters.json`` names the controller, login and worker groups;
* API-driven form: every group of ``resource_config.json`` has ``SlurmConfig.NodeType``, and there is no second file.

:func:`load` reads them into frozen models or raises one :class:`~hyperpod_lifecycle.errors.InputError` that lists every
problem. Comparison is exact; nothing that is unknown falls back to compute. No Ansible here and no network.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

from .errors import InputError, Problem
from .reading import Problems, did_you_mean, known, nearest, parse, read_json, show, unknown_keys
from .shapes import (
    GroupSlurmConfig,
    InstanceStorageConfig,
    ProvisioningParameters,
    RawGroup,
    ResourceConfig,
    WorkerGroup,
)


class NodeType(str, Enum):
    """What a node does; the value is also the name of its Ansible group."""

    CONTROLLER = "controller"
    LOGIN = "login"
    COMPUTE = "compute"


Source = Literal["provisioning_parameters", "slurm_config"]


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
    source: Source  #: what decided the node types
    resource_config: str  #: path of the file read
    provisioning_parameters: str | None  #: path of the file read; None where there is none
    groups: tuple[Group, ...]
    slurm_configurations: Mapping[str, Any] = field(hash=False)  #: read-only; keys without a value are left out
    notes: tuple[str, ...]  #: warnings, and the unknown keys that were left alone
    #: ``AccountingDatabase`` of the API-driven form; read-only, keys without a value are left out
    accounting_database: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}), hash=False)
    primary_controller: str | None = None  #: address in ``ClusterConfig.SlurmConfig``; empty on the controller itself
    secondary_controllers: tuple[str, ...] = ()

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
        """The node with this exact ``InstanceName``; :class:`InputError` with the known names if there is none."""
        if name in self._by_name:
            return self._by_name[name]
        names = list(self._by_name)
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

        Comparison is of whole addresses. :class:`InputError` if more than one instance matches.
        """
        matches = [node for node in self._by_name.values() if node.instance.address in addresses]
        if len(matches) > 1:
            raise InputError(
                [
                    Problem(
                        self.resource_config,
                        "InstanceGroups[*].Instances[*].CustomerIpAddress",
                        f"this node's addresses match {known(f'{n.name} ({n.instance.address})' for n in matches)}",
                        "a node is one instance; correct the file, or remove the extra address from this node",
                    )
                ]
            )
        return matches[0] if matches else None

    @cached_property
    def _by_name(self) -> dict[str, Node]:
        return {instance.name: Node(self, group, instance) for group in self.groups for instance in group.instances}

    def _members(self, node_type: NodeType) -> Iterator[Instance]:
        return (instance for group in self.groups if group.node_type is node_type for instance in group.instances)


@dataclass(frozen=True)
class Role:
    """What one of the two forms says about a group."""

    node_type: NodeType
    partitions: tuple[str, ...] = ()


def load(resource_config: Path, provisioning_parameters: Path | None, *, planning: bool = False) -> Cluster:
    """Read the JSON pair; ``provisioning_parameters`` may be None or absent on disk (API-driven form).

    ``planning`` is for a plan of a node that is given by name: addresses that are wrong, or that two instances share,
    become notes, and an address that is none is left out. Raises one :class:`InputError` with all problems.
    """
    reading = _Reading(str(resource_config), planning)
    raw = reading.resource_config(resource_config)
    parameters = reading.parameters(provisioning_parameters)
    roles = reading.roles(raw, parameters) if raw else None
    shared = reading.shared_file_systems(parameters) if parameters else ()
    groups = reading.groups(raw, roles or {}, shared) if raw else ()
    primary, secondary = reading.controllers(raw) if raw else (None, ())
    if roles and not planning and not reading.problems:
        reading.require_controller(groups, primary, secondary)
    if reading.problems or raw is None or roles is None:  # a step that returns None has recorded why
        raise InputError(reading.problems.listed())
    return Cluster(
        name=raw.cluster_config.cluster_name,
        arn=raw.cluster_config.cluster_arn or "",
        source="provisioning_parameters" if parameters else "slurm_config",
        resource_config=reading.file,
        provisioning_parameters=reading.parameters_file if parameters else None,
        groups=groups,
        slurm_configurations=_slurm_configurations(parameters),
        notes=(*reading.notes, *map(str, reading.address_faults.listed())),
        accounting_database=_accounting_database(raw),
        primary_controller=primary,
        secondary_controllers=secondary,
    )


def _slurm_configurations(parameters: ProvisioningParameters | None) -> Mapping[str, Any]:
    if parameters is None or parameters.slurm_configurations is None:
        return MappingProxyType({})
    return _with_values(parameters.slurm_configurations.model_dump())


def _accounting_database(raw: ResourceConfig) -> Mapping[str, Any]:
    config = raw.cluster_config.slurm_config
    return _with_values((config and config.accounting_database) or {})


def _with_values(given: Mapping[str, Any]) -> Mapping[str, Any]:
    return MappingProxyType({key: value for key, value in given.items() if value not in (None, "")})


class _Reading:
    """One reading of the pair: the problems and notes that its steps gather."""

    def __init__(self, file: str, planning: bool) -> None:
        self.file = file
        self.parameters_file = ""
        self.problems = Problems()
        self.address_faults = Problems() if planning else self.problems
        self.notes: list[str] = []
        self._no_parameters = "no provisioning_parameters.json was given"
        self._meant: set[str | None] = set()  # groups that a misspelt name stands for, as far as one can tell
        self._unusable = False  # the parameters are there but cannot be read
        self._wrong: frozenset[str] = frozenset()  # top-level keys of the parameters that are wrong already

    # --- the files, each by itself ---

    def resource_config(self, path: Path) -> ResourceConfig | None:
        document = read_json(path, self.problems)
        if document is None:
            return None
        if self._other_orchestrator(document):
            return None
        raw, _ = parse(ResourceConfig, document, self.file, self.problems)
        if raw is None:
            return None
        self._note_unknown(self.file, unknown_keys(raw))
        groups = list(enumerate(raw.instance_groups))
        unique(self.problems, self.file, ((f"InstanceGroups[{i}].Name", group.name) for i, group in groups))
        names = (
            (f"InstanceGroups[{i}].Instances[{j}].InstanceName", instance.instance_name)
            for i, group in groups
            for j, instance in enumerate(group.instances or ())
        )
        unique(self.problems, self.file, names)
        return raw

    def parameters(self, path: Path | None) -> ProvisioningParameters | None:
        if path is None:
            return None
        self.parameters_file = file = str(path)
        before = len(self.problems)
        document = read_json(path, self.problems, optional=True)
        if document is None:
            self._unusable = len(self.problems) > before
            self._no_parameters = f"{file} does not exist"
            return None
        parameters, self._wrong = parse(ProvisioningParameters, document, file, self.problems)
        if parameters is None:
            self._unusable = True
            return None
        self._note_unknown(file, unknown_keys(parameters))
        manager = parameters.workload_manager
        if manager != "slurm":
            found = show(manager) if "workload_manager" in document else "nothing"
            self.problems.add(file, "workload_manager", f"found {found}", 'it must be exactly "slurm"')
        if not parameters.controller_group and "controller_group" not in self._wrong:
            found = show(parameters.controller_group) if "controller_group" in document else "nothing"
            self.problems.add(file, "controller_group", f"found {found}", "name the group of the Slurm controller")
        return parameters

    def _other_orchestrator(self, document: dict[str, Any]) -> bool:
        """An EKS cluster's file has nothing for us; say that instead of listing what it lacks."""
        found = orchestrator_fault(document)
        config = document.get("ClusterConfig")
        kind = config.get("ClusterType") if isinstance(config, dict) else None
        if kind == "Slurm":
            return False
        if kind is not None:
            found = found or ("ClusterConfig.ClusterType", f"found {show(kind)}")
        if isinstance(config, dict):
            nested = orchestrator_fault(config)
            found = found or (nested and (f"ClusterConfig.{nested[0]}", nested[1]))
        found = found or _kubernetes_key(document)
        if found:
            self.problems.add(self.file, *found, "a cluster whose ClusterType is Slurm is expected, not one of EKS")
        return found is not None

    def _note_unknown(self, file: str, keys: Sequence[str]) -> None:
        if keys:
            self.notes.append(f"{file}: left alone, unknown keys: {known(keys)}")

    # --- node types ---

    def roles(self, raw: ResourceConfig, parameters: ProvisioningParameters | None) -> dict[str, Role] | None:
        """Group name -> what it is, from the one form or from both if they agree; None if a problem stops that."""
        configs = {group.name: group.slurm_config for group in raw.instance_groups}
        stated = any(configs.values())
        if self._unusable:
            return None
        if parameters is None:
            if stated:
                if self.parameters_file:
                    self.notes.append(f"{self._no_parameters}; node types come from SlurmConfig in {self.file}")
                return slurm_config_roles(self.problems, self.file, list(configs.items()))
            self.problems.add(
                self.file,
                "InstanceGroups[*].SlurmConfig",
                f"no group has it, and {self._no_parameters}",
                "put provisioning_parameters.json beside the lifecycle scripts, or give every group a SlurmConfig",
            )
            return None
        roles = self._parameters_roles(raw, parameters)
        if roles is None or not stated:
            return roles
        also = slurm_config_roles(self.problems, self.file, list(configs.items()), partial=True)
        return self._agreed(raw, roles, also, parameters.worker_groups is None)

    def _parameters_roles(self, raw: ResourceConfig, parameters: ProvisioningParameters) -> dict[str, Role] | None:
        file, names = self.parameters_file, [group.name for group in raw.instance_groups]
        if self._wrong & {"controller_group", "login_group", "worker_groups"}:
            return None
        roles: dict[str, Role] = {}
        if parameters.controller_group:
            self._check_group(parameters.controller_group, "controller_group", names)
            roles[parameters.controller_group] = Role(NodeType.CONTROLLER)
        for index, login in enumerate(parameters.login_group):
            key = "login_group" if len(parameters.login_group) == 1 else f"login_group[{index}]"
            self._check_group(login, key, names)
            if login == parameters.controller_group:
                self.problems.add(file, key, f"{show(login)} is the controller_group", "a group has one node type")
            else:
                roles[login] = Role(NodeType.LOGIN)
        workers = self._partitions(parameters.worker_groups or [], names)
        for name, partitions in workers.items():
            if name in roles:
                self.notes.append(
                    f"{file}: worker_groups lists {name}, a {roles[name].node_type.value} group that stays one; "
                    f"partition {known(partitions)} is left to the cluster agent"
                )
            else:
                roles[name] = Role(NodeType.COMPUTE, tuple(partitions))
        rest = [name for name in names if name not in roles and name not in self._meant]
        if rest and parameters.worker_groups is None:
            self.notes.append(f"{file}: worker_groups is absent; compute, without a partition: {known(rest)}")
            roles.update({name: Role(NodeType.COMPUTE) for name in rest})
        elif rest:
            self.problems.add(
                file,
                "worker_groups",
                f"does not list {known(rest)}, found in {self.file}",
                f"add each group with its partition_name; listed are: {known(roles)}",
            )
        return roles

    def _partitions(self, workers: Sequence[WorkerGroup], names: Sequence[str]) -> dict[str, list[str]]:
        """Group name -> its partitions; a group may be listed once for each of them."""
        found: dict[str, list[str]] = {}
        for index, worker in enumerate(workers):
            name = worker.instance_group_name
            self._check_group(name, f"worker_groups[{index}].instance_group_name", names)
            check_partition(
                self.problems, self.parameters_file, f"worker_groups[{index}].partition_name", worker.partition_name
            )
            if name not in found:
                found[name] = [worker.partition_name]
                continue
            if worker.partition_name not in found[name]:
                found[name].append(worker.partition_name)
            self.notes.append(
                f"{self.parameters_file}: worker_groups lists {name} more than once; partitions: {known(found[name])}"
            )
        return found

    def _check_group(self, name: str, key: str, names: Sequence[str]) -> None:
        if name not in names:
            near = nearest(name, names)
            self._meant.add(near)
            self.problems.add(
                self.parameters_file,
                key,
                f"no group is named {show(name)}",
                f"{did_you_mean(near)}Known groups, from {self.file}: {known(names)}",
            )

    def _agreed(
        self, raw: ResourceConfig, roles: dict[str, Role], also: Mapping[str, Role], partitions_free: bool
    ) -> dict[str, Role]:
        """The service refuses a request with both forms; on a node they may meet, and then they must say the same."""
        for index, group in enumerate(raw.instance_groups):
            if group.name not in also or group.name not in roles:
                continue
            mine, other = roles[group.name], also[group.name]
            if partitions_free and mine.node_type is other.node_type:
                roles[group.name] = other
            elif mine.node_type is not other.node_type or set(mine.partitions) != set(other.partitions):
                self.problems.add(
                    self.file,
                    f"InstanceGroups[{index}].SlurmConfig",
                    f"says that {group.name} is {_say(other)}, but {self.parameters_file} says {_say(mine)}",
                    "make the two agree, or remove one of them",
                )
        return roles

    # --- groups, addresses, file systems ---

    def groups(self, raw: ResourceConfig, roles: Mapping[str, Role], shared: Sequence[FileSystem]) -> tuple[Group, ...]:
        """All groups in the order of the file. Groups without a role are left out: that is a problem already."""
        seen: dict[str, str] = {}
        found = []
        for index, group in enumerate(raw.instance_groups):
            at = f"InstanceGroups[{index}]"
            instances = self._instances(group, at, seen)
            file_systems = group_file_systems(
                self.problems, self.file, f"{at}.InstanceStorageConfigs", group.instance_storage_configs or (), shared
            )
            if group.name in roles:
                role = roles[group.name]
                found.append(
                    Group(
                        group.name, role.node_type, group.instance_type or "", role.partitions, instances, file_systems
                    )
                )
        return tuple(found)

    def _instances(self, group: RawGroup, at: str, seen: dict[str, str]) -> tuple[Instance, ...]:
        """``Instances`` null, absent and [] all mean none. ``seen`` maps the cluster's addresses to where they are."""
        found = []
        for index, raw in enumerate(group.instances or ()):
            key = f"{at}.Instances[{index}].CustomerIpAddress"
            address = self._address(raw.customer_ip_address, key)
            if address is not None and seen.setdefault(address, key) != key:
                self.address_faults.add(
                    self.file,
                    key,
                    f"{address} is at {seen[address]} as well",
                    "give each instance its own address; a node could be either of them",
                )
            found.append(Instance(raw.instance_name, group.name, address, raw.agent_ip_address, raw.instance_id))
        return tuple(found)

    def _address(self, text: str | None, key: str) -> str | None:
        """``text`` in canonical spelling. Loopback and link-local addresses are no name for one node among many."""
        if text is None:
            return None
        try:
            address = ipaddress.ip_address(text)
        except ValueError:
            self.address_faults.add(
                self.file, key, f"{show(text)} is not an IP address", "put the node's real address there"
            )
            return None
        if address.is_loopback or address.is_link_local or address.is_unspecified or address.is_multicast:
            self.address_faults.add(
                self.file, key, f"{text} cannot be another node's address", "put the node's real address there"
            )
            return None
        return str(address)

    def controllers(self, raw: ResourceConfig) -> tuple[str | None, tuple[str, ...]]:
        """Primary and secondary controller addresses of the API-driven form."""
        config = raw.cluster_config.slurm_config
        if config is None:
            return None, ()
        at = "ClusterConfig.SlurmConfig"
        primary = self._address(config.primary_controller_ip, f"{at}.PrimaryControllerIp")
        secondary = (
            self._address(text, f"{at}.SecondaryControllerIps[{index}]")
            for index, text in enumerate(config.secondary_controller_ips or ())
        )
        return primary, tuple(address for address in secondary if address)

    def require_controller(self, groups: Sequence[Group], primary: str | None, secondary: Sequence[str]) -> None:
        """Without an address of a controller no daemon could ever find one."""
        of_controllers = [group for group in groups if group.node_type is NodeType.CONTROLLER]
        if of_controllers and not (primary or secondary or any(i.address for g in of_controllers for i in g.instances)):
            self.problems.add(
                self.file,
                "InstanceGroups[*].Instances",
                f"no instance of the controller group {known(g.name for g in of_controllers)} has an address",
                "the controller comes first: wait until the service has made it, then run again",
            )

    def shared_file_systems(self, parameters: ProvisioningParameters) -> tuple[FileSystem, ...]:
        """The cluster-wide file systems of the file form: Lustre at /fsx, OpenZFS at /home."""
        found: list[FileSystem] = []
        dns_name, mount_name = parameters.fsx_dns_name, parameters.fsx_mountname
        if dns_name and mount_name:
            found.append(FileSystem("lustre", dns_name, mount_name, "/fsx"))
        elif (dns_name or mount_name) and not self._wrong & {"fsx_dns_name", "fsx_mountname"}:
            missing, given = ("fsx_mountname", "fsx_dns_name") if dns_name else ("fsx_dns_name", "fsx_mountname")
            self.problems.add(
                self.parameters_file, missing, f"is absent or empty, but {given} is set", "give both, or neither"
            )
        if parameters.fsx_openzfs_dns_name:
            found.append(FileSystem("openzfs", parameters.fsx_openzfs_dns_name, None, "/home"))
        return tuple(found)


# --- rules that create_cluster.json shares with resource_config.json ---


def orchestrator_fault(document: Mapping[str, Any]) -> tuple[str, str] | None:
    """Key and finding if an ``Orchestrator`` other than Slurm is named."""
    orchestrator = document.get("Orchestrator")
    if isinstance(orchestrator, dict):
        orchestrator = next((name for name in orchestrator if name != "Slurm"), None)
        return ("Orchestrator", f"found {show(orchestrator)}") if orchestrator else None
    return ("Orchestrator", f"found {show(orchestrator)}") if orchestrator not in (None, "Slurm") else None


def _kubernetes_key(document: Mapping[str, Any]) -> tuple[str, str] | None:
    """The first key that only EKS clusters have: ``KubernetesConfig`` of a group, ``InstanceLabel`` of an instance."""
    groups = document.get("InstanceGroups")
    for index, group in enumerate(groups if isinstance(groups, list) else ()):
        if not isinstance(group, dict):
            continue
        if "KubernetesConfig" in group:
            return f"InstanceGroups[{index}].KubernetesConfig", "is a key of EKS clusters"
        instances = group.get("Instances")
        for number, instance in enumerate(instances if isinstance(instances, list) else ()):
            if isinstance(instance, dict) and "InstanceLabel" in instance:
                return f"InstanceGroups[{index}].Instances[{number}].InstanceLabel", "is a key of EKS clusters"
    return None


def unique(problems: Problems, file: str, named: Iterator[tuple[str, str]]) -> None:
    """Report each name that an earlier key has already; ``named`` gives keys and names."""
    seen: dict[str, str] = {}
    for key, name in named:
        if seen.setdefault(name, key) != key:
            problems.add(file, key, f"{show(name)} is at {seen[name]} as well", "give each its own name")


_PARTITION = re.compile(r"[A-Za-z0-9._-]+")


def check_partition(problems: Problems, file: str, key: str, name: str) -> None:
    """A partition name must be one that slurm.conf can hold; DEFAULT is a keyword there."""
    if not _PARTITION.fullmatch(name) or name.upper() == "DEFAULT":
        remedy = "letters, digits, '.', '_' and '-' are allowed in a partition name, but not DEFAULT"
        problems.add(file, key, f"found {show(name)}", remedy)


_API_TYPES = {"Controller": NodeType.CONTROLLER, "Login": NodeType.LOGIN, "Compute": NodeType.COMPUTE}


def slurm_config_roles(
    problems: Problems, file: str, groups: Sequence[tuple[str, GroupSlurmConfig | None]], *, partial: bool = False
) -> dict[str, Role]:
    """Roles of the API-driven form: one Controller group, partitions on Compute and only there.

    The service allows one Login group and one partition a group for now; both are its own checks when a cluster is
    made, and more of them do no harm here. ``partial``: some groups may be without ``SlurmConfig``.
    """
    roles: dict[str, Role] = {}
    for index, (name, config) in enumerate(groups):
        at = f"InstanceGroups[{index}].SlurmConfig"
        if config is None:
            if not partial:
                problems.add(file, at, f"{name} has none, but other groups do", "give every group a NodeType")
            continue
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
    controllers = [name for name, role in roles.items() if role.node_type is NodeType.CONTROLLER]
    if not partial and len(controllers) != 1:
        problems.add(
            file,
            "InstanceGroups[*].SlurmConfig.NodeType",
            f"Controller groups: {known(controllers)}",
            "exactly one group must be Controller",
        )
    return roles


def group_file_systems(
    problems: Problems,
    file: str,
    at: str,
    configs: Sequence[InstanceStorageConfig],
    shared: Sequence[FileSystem] = (),
) -> tuple[FileSystem, ...]:
    """``shared`` plus those of a group's ``InstanceStorageConfigs`` (EBS is no file system of ours), each once.

    Two different ones at one path, and two of a kind among the group's own (the service allows one), are problems.
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


def _say(role: Role) -> str:
    partitions = f" in partition {known(role.partitions)}" if role.partitions else ""
    return f"{role.node_type.value}{partitions}"
