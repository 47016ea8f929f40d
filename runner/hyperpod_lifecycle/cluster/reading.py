# SPDX-License-Identifier: Apache-2.0
"""Read the two JSON files into a cluster: node types from either form, and the problems and notes of both files."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

from hyperpod_lifecycle import formats
from hyperpod_lifecycle.cluster.model import Cluster, FileSystem, Group, Instance, NodeType, UntypedGroup
from hyperpod_lifecycle.cluster.rules import (
    Role,
    check_one_controller,
    check_partition,
    group_file_systems,
    other_orchestrator,
    slurm_config_roles,
    unique,
)
from hyperpod_lifecycle.cluster.schema import (
    GROUP_KEYS,
    AccountingDatabase,
    ProvisioningParameters,
    RawGroup,
    ResourceConfig,
    WorkerGroup,
)
from hyperpod_lifecycle.errors import InputError, Problem
from hyperpod_lifecycle.problems import Problems, did_you_mean, known, nearest, show
from hyperpod_lifecycle.strict_json import Schema, parse, read_json, unknown_keys

T = TypeVar("T")


def load(resource_config: Path, provisioning_parameters: Path | None, *, planning: bool = False) -> Cluster:
    """Read the two JSON files; ``provisioning_parameters`` may be None or not exist (API-driven form).

    ``planning`` is for a plan of a node that is given by name: addresses that are wrong, or that two instances share,
    become notes, and an address that is none is left out. Raises one :class:`InputError` with all problems.
    """
    reader = _PairReader(str(resource_config), planning)
    raw = reader.resource_config(resource_config)
    parameters = reader.parameters(provisioning_parameters)
    roles = reader.roles(raw, parameters) if raw else None
    shared = reader.shared_file_systems(parameters) if parameters else ()
    groups, untyped = reader.groups(raw, roles or {}, shared) if raw else ((), ())
    primary, secondary, database = reader.slurm_config(raw) if raw else (None, (), None)
    if roles and not planning and not reader.problems:
        reader.require_controller(groups, primary, secondary)
    if reader.problems or raw is None or roles is None:  # a step that returns None has recorded a problem
        raise InputError(reader.problems.listed())
    return Cluster(
        name=raw.cluster_config.cluster_name,
        arn=raw.cluster_config.cluster_arn or "",
        source="provisioning_parameters" if parameters and parameters.names_groups else "slurm_config",
        resource_config=reader.file,
        provisioning_parameters=reader.parameters_file if parameters else None,
        groups=groups,
        slurm_configurations=_with_values(parameters.slurm_configurations if parameters else None),
        notes=(*reader.notes, *map(str, reader.address_faults.listed())),
        accounting_database=_with_values(database),
        primary_controller=primary,
        secondary_controllers=secondary,
        untyped_groups=untyped,
    )


def _with_values(given: Schema | None) -> Mapping[str, Any]:
    values = given.model_dump(by_alias=True) if given else {}
    return MappingProxyType({key: value for key, value in values.items() if value not in (None, "")})


class _PairReader:
    """Reads both files once; its steps collect problems and notes."""

    def __init__(self, file: str, planning: bool) -> None:
        self.file = file
        self.parameters_file = ""
        self.problems = Problems()
        self.address_faults = Problems() if planning else self.problems
        self.notes: list[str] = []
        self._no_parameters = "no provisioning_parameters.json was given"
        self._meant: set[str | None] = set()  # groups that a misspelt name stands for, as far as one can tell
        self._untyped: dict[str, Problem] = {}  # groups whose node type no file says
        self._unusable = False  # the parameters are there but cannot be read
        self._wrong: frozenset[str] = frozenset()  # top-level keys of the parameters that are wrong already

    # --- the files, each by itself ---

    def resource_config(self, path: Path) -> ResourceConfig | None:
        document = read_json(path, self.problems)
        if document is None:
            return None
        if found := other_orchestrator(document):
            self.problems.add(self.file, *found, "a cluster whose ClusterType is Slurm is expected, not one of EKS")
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
        for index, group in groups:
            self._note_long_names(f"InstanceGroups[{index}]", group)
        return raw

    def _note_long_names(self, at: str, group: RawGroup) -> None:
        """Note instance names that are too long for Slurm, which has them as node names with UseInstanceNames only."""
        limit = formats.NODE_NAME_LENGTH
        longest = max((instance.instance_name for instance in group.instances or ()), key=len, default="")
        if len(longest) > limit:
            found = f"the instance name {longest} has {len(longest)} characters, and Slurm's node names at most {limit}"
            self.notes.append(f"{self.file}: {at}: {found}; shorten the group's name, or leave UseInstanceNames off")

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
        sparse = not parameters.names_groups and not self._wrong & GROUP_KEYS
        manager = parameters.workload_manager
        if manager != "slurm" and not (sparse and "workload_manager" not in document):
            found = show(manager) if "workload_manager" in document else "nothing"
            self.problems.add(file, "workload_manager", f"found {found}", 'it must be exactly "slurm"')
        if sparse:
            self._no_parameters = f"{file} names no groups"
        elif not parameters.controller_group and "controller_group" not in self._wrong:
            found = show(parameters.controller_group) if "controller_group" in document else "nothing"
            self.problems.add(file, "controller_group", f"found {found}", "name the group of the Slurm controller")
        return parameters

    def _note_unknown(self, file: str, keys: Sequence[str]) -> None:
        if keys:
            self.notes.append(f"{file}: ignored unknown keys: {known(keys)}")

    # --- node types ---

    def roles(self, raw: ResourceConfig, parameters: ProvisioningParameters | None) -> dict[str, Role] | None:
        """Return the role of each group, from either form or from both if they agree; None if a problem prevents it."""
        if self._unusable or self._wrong & GROUP_KEYS:
            return None
        configs = [(group.name, group.slurm_config) for group in raw.instance_groups]
        also = slurm_config_roles(self.problems, self.file, configs)
        if parameters and parameters.names_groups:
            roles = self._listed_roles(parameters, [name for name, _ in configs])
            self._add_unlisted(roles, also, parameters, [name for name, _ in configs])
            return self._agreed(raw, roles, also, partitions_free=parameters.worker_groups is None)
        if not any(config for _, config in configs):
            found = f"no group has it, and {self._no_parameters}"
            remedy = "name them in provisioning_parameters.json beside the scripts, or give every group a SlurmConfig"
            self.problems.add(self.file, "InstanceGroups[*].SlurmConfig", found, remedy)
            return None
        if self.parameters_file:
            self.notes.append(f"{self._no_parameters}; node types come from SlurmConfig in {self.file}")
        check_one_controller(self.problems, self.file, also)
        for index, (name, config) in enumerate(configs):
            if config is None:
                key = f"InstanceGroups[{index}].SlurmConfig"
                found = f"{name} has none, but other groups do"
                self._leave_untyped(name, Problem(self.file, key, found, "give every group a NodeType"))
        return also

    def _leave_untyped(self, name: str, problem: Problem) -> None:
        self._untyped[name] = problem
        self.notes.append(f"{problem} (only nodes of {name} cannot be configured)")

    def _listed_roles(self, parameters: ProvisioningParameters, names: Sequence[str]) -> dict[str, Role]:
        file = self.parameters_file
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
        return roles

    def _add_unlisted(
        self, roles: dict[str, Role], also: Mapping[str, Role], parameters: ProvisioningParameters, names: Sequence[str]
    ) -> None:
        """Groups that the parameters do not list: another form may know them, or they were added later."""
        file, listed = self.parameters_file, known(roles)
        rest = [name for name in names if name not in roles and name not in self._meant]
        if rest and parameters.worker_groups is None:
            self.notes.append(f"{file}: worker_groups is absent; compute, without a partition: {known(rest)}")
            roles.update({name: Role(NodeType.COMPUTE) for name in rest})
            return
        for name in rest:
            if name in also:
                roles[name] = also[name]
                self.notes.append(f"{file}: worker_groups does not list {name}; SlurmConfig says {also[name]}")
            else:
                found = f"does not list {name}, found in {self.file}"
                remedy = f"add it with its partition_name; listed are: {listed}"
                self._leave_untyped(name, Problem(file, "worker_groups", found, remedy))

    def _partitions(self, workers: Sequence[WorkerGroup], names: Sequence[str]) -> dict[str, list[str]]:
        """Return the partitions of each group, which may be listed once for each of them."""
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
        self, raw: ResourceConfig, roles: dict[str, Role], also: Mapping[str, Role], *, partitions_free: bool
    ) -> dict[str, Role]:
        """Check that both forms agree. The service rejects requests with both, but a node may have both."""
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
                    f"says that {group.name} is {other}, but {self.parameters_file} says {mine}",
                    "make the two agree, or remove one of them",
                )
        return roles

    # --- groups, addresses, file systems ---

    def groups(
        self, raw: ResourceConfig, roles: Mapping[str, Role], shared: Sequence[FileSystem]
    ) -> tuple[tuple[Group, ...], tuple[UntypedGroup, ...]]:
        """All groups in the order of the file. One without a role and without a problem of its own is left out."""
        seen: dict[str, str] = {}
        found, untyped = [], []
        for index, group in enumerate(raw.instance_groups):
            at = f"InstanceGroups[{index}]"
            instances = self._instances(group, at, seen)
            file_systems = group_file_systems(
                self.problems, self.file, f"{at}.InstanceStorageConfigs", group.instance_storage_configs or (), shared
            )
            kind = group.instance_type or ""
            if role := roles.get(group.name):
                found.append(Group(group.name, role.node_type, kind, role.partitions, instances, file_systems))
            elif problem := self._untyped.get(group.name):
                untyped.append(UntypedGroup(group.name, kind, instances, problem))
        return tuple(found), tuple(untyped)

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

    def slurm_config(self, raw: ResourceConfig) -> tuple[str | None, tuple[str, ...], AccountingDatabase | None]:
        """Primary and secondary controller addresses and the database of the API-driven form, from either place."""
        places = {"ClusterConfig.SlurmConfig": raw.cluster_config.slurm_config, "SlurmConfig": raw.slurm_config}
        configs = {at: config for at, config in places.items() if config}
        primary = {
            f"{at}.PrimaryControllerIp": self._address(config.primary_controller_ip, f"{at}.PrimaryControllerIp")
            for at, config in configs.items()
        }
        secondary = {
            f"{at}.SecondaryControllerIps": tuple(
                self._address(text, f"{at}.SecondaryControllerIps[{index}]")
                for index, text in enumerate(config.secondary_controller_ips or ())
            )
            for at, config in configs.items()
        }
        database = {f"{at}.AccountingDatabase": config.accounting_database for at, config in configs.items()}
        addresses = self._one(secondary) or ()
        return self._one(primary), tuple(address for address in addresses if address), self._one(database)

    def _one(self, given: Mapping[str, T | None]) -> T | None:
        """The value that is at one key or at several, which must not contradict each other."""
        present = {key: value for key, value in given.items() if value}
        for key, value in present.items():
            first = next(iter(present))
            if value != present[first]:
                found, remedy = f"is not what {first} says", "make the two agree, or remove one of them"
                self.problems.add(self.file, key, found, remedy)
        return next(iter(present.values()), None)

    def require_controller(self, groups: Sequence[Group], primary: str | None, secondary: Sequence[str]) -> None:
        """Add a problem if no controller has an address, because daemons could not reach it."""
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
