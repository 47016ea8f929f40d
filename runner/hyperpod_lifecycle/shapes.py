# SPDX-License-Identifier: Apache-2.0
"""The raw shapes of HyperPod's JSON files, as they lie on disk. Rules between values are the readers' business.

Sources: the reference scripts' contract (file form) and the service's reference pages (API-driven form). Every type is
strict: ``"version": 1.0`` is an error, not ``"1.0"``. What the service may leave out or set to null is optional here.
"""

from __future__ import annotations

import re
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field
from pydantic.alias_generators import to_pascal
from pydantic_core import PydanticCustomError

from .reading import Shape

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_HOST = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?")
_MOUNT_NAME = re.compile(r"[A-Za-z0-9._-]+")
_MOUNT_PATH = re.compile(r"(/[A-Za-z0-9_-][A-Za-z0-9._-]*)+/?")


def _name(value: str) -> str:
    # The service allows letters, digits and hyphens; names become host names, file names and Slurm names.
    if not _NAME.fullmatch(value):
        raise PydanticCustomError("rule", "letters, digits, '.', '_' and '-' are allowed, a letter or digit first")
    return value


def _host(value: str) -> str:
    if not _HOST.fullmatch(value):
        raise PydanticCustomError("rule", "a DNS name is expected")
    return value


def _mount_name(value: str) -> str:
    if not _MOUNT_NAME.fullmatch(value):
        raise PydanticCustomError("rule", "the file system's mount name is expected: letters, digits, '.', '_' and '-'")
    return value


def _mount_path(value: str) -> str:
    if not _MOUNT_PATH.fullmatch(value):
        raise PydanticCustomError("rule", "an absolute path of plain letters is expected, such as /fsx")
    return value.rstrip("/")


def _empty_is_none(value: object) -> object:
    return None if value == "" else value


def _as_list(value: object) -> object:
    if value is None or value == "":
        return []
    if isinstance(value, str):
        return [value]
    if not isinstance(value, list):
        raise PydanticCustomError("rule", "a string, or a list of strings, is expected")
    return value


Name = Annotated[str, AfterValidator(_name)]
HostName = Annotated[str, AfterValidator(_host)]
MountName = Annotated[str, AfterValidator(_mount_name)]
MountPath = Annotated[str, AfterValidator(_mount_path)]
EmptyIsNone = BeforeValidator(_empty_is_none)
Names = Annotated[list[str], BeforeValidator(_as_list)]


class ServiceShape(Shape):
    """A shape of the service's: keys are written in PascalCase."""

    model_config = ConfigDict(alias_generator=to_pascal)


# --- shared by resource_config.json and create_cluster.json (API-driven form) ---


class GroupSlurmConfig(ServiceShape):
    node_type: str
    partition_names: list[str] | None = None


class FsxLustreConfig(ServiceShape):
    dns_name: HostName
    mount_name: MountName
    mount_path: Annotated[MountPath | None, EmptyIsNone] = None


class FsxOpenZfsConfig(ServiceShape):
    dns_name: HostName
    mount_path: Annotated[MountPath | None, EmptyIsNone] = None


class InstanceStorageConfig(ServiceShape):
    ebs_volume_config: dict[str, Any] | None = None
    fsx_lustre_config: FsxLustreConfig | None = None
    fsx_open_zfs_config: FsxOpenZfsConfig | None = None


# --- resource_config.json ---


class RawInstance(ServiceShape):
    instance_name: Name
    customer_ip_address: Annotated[str | None, EmptyIsNone] = None
    agent_ip_address: Annotated[str | None, EmptyIsNone] = None
    instance_id: Annotated[str | None, EmptyIsNone] = None


class RawGroup(ServiceShape):
    name: Name
    instance_type: str | None = None
    instances: list[RawInstance] | None = None
    slurm_config: GroupSlurmConfig | None = None
    instance_storage_configs: list[InstanceStorageConfig] | None = None


class ClusterSlurmConfig(ServiceShape):
    primary_controller_ip: Annotated[str | None, EmptyIsNone] = None
    secondary_controller_ips: list[str] | None = None
    accounting_database: dict[str, Any] | None = None


class ClusterConfig(ServiceShape):
    cluster_name: Name
    cluster_arn: str | None = None
    cluster_type: str | None = None
    slurm_config: ClusterSlurmConfig | None = None


class ResourceConfig(ServiceShape):
    cluster_config: ClusterConfig
    instance_groups: list[RawGroup]


# --- provisioning_parameters.json ---


class WorkerGroup(Shape):
    instance_group_name: str
    partition_name: str


class SlurmConfigurations(Shape):
    """Accounting on a database outside the cluster, and several controllers; all keys optional here."""

    slurm_database_secret_arn: str | None = None
    slurm_database_endpoint: str | None = None
    slurm_database_user: str | None = None
    slurm_shared_directory: str | None = None
    slurm_sns_arn: str | None = None


class ProvisioningParameters(Shape):
    """Every key is optional to the shape, so that a wrong one does not hide what is wrong with the others."""

    version: str | None = None
    workload_manager: Any = None
    controller_group: str | None = None
    login_group: Names = Field(default_factory=list)
    worker_groups: list[WorkerGroup] | None = None
    fsx_dns_name: Annotated[HostName | None, EmptyIsNone] = None
    fsx_mountname: Annotated[MountName | None, EmptyIsNone] = None
    fsx_openzfs_dns_name: Annotated[HostName | None, EmptyIsNone] = None
    slurm_configurations: SlurmConfigurations | None = None


# --- create_cluster.json ---


class InstanceRequirements(ServiceShape):
    instance_types: list[str]


class RequestGroup(ServiceShape):
    instance_group_name: Name
    instance_type: str | None = None
    instance_requirements: InstanceRequirements | None = None
    instance_count: int
    slurm_config: GroupSlurmConfig | None = None
    instance_storage_configs: list[InstanceStorageConfig] | None = None


class CreateCluster(ServiceShape):
    cluster_name: Name
    instance_groups: list[RequestGroup]
    orchestrator: dict[str, Any] | None = None
