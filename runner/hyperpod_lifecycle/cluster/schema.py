# SPDX-License-Identifier: Apache-2.0
"""The schemas of HyperPod's JSON files and the format of each value.

Rules between values are in `rules`.

Sources: the reference scripts (file form) and the service's API reference (API-driven form). Every type is strict:
``"version": 1.0`` is an error, not ``"1.0"``. Keys that the service may omit or set to null are optional.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, ConfigDict, Field
from pydantic.alias_generators import to_pascal
from pydantic_core import PydanticCustomError

from hyperpod_lifecycle import formats
from hyperpod_lifecycle.strict_json import Schema, Text


def _format(rule: Callable[[str], str]) -> AfterValidator:
    """Return a validator from a function of `formats`."""

    def check(value: str) -> str:
        if remedy := rule(value):
            raise PydanticCustomError("rule", "{remedy}", {"remedy": remedy})
        return value

    return AfterValidator(check)


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


Name = Annotated[Text, _format(formats.name)]
InstanceName = Annotated[Text, _format(formats.instance_name)]
HostName = Annotated[Text, _format(formats.host)]
MountName = Annotated[Text, _format(formats.mount_name)]
MountPath = Annotated[Text, _format(formats.mount_path), AfterValidator(lambda path: path.rstrip("/"))]
SecretArn = Annotated[Text, _format(formats.secret_arn)]
TopicArn = Annotated[Text, _format(formats.topic_arn)]
DatabaseUser = Annotated[Text, _format(formats.database_user)]
DatabaseName = Annotated[Text, _format(formats.database)]
Port = Annotated[int, Field(ge=1, le=65535)]
EmptyIsNone = BeforeValidator(_empty_is_none)
Names = Annotated[list[Text], BeforeValidator(_as_list)]


class ServiceSchema(Schema):
    """Base of the service's own objects, whose keys are in PascalCase."""

    model_config = ConfigDict(alias_generator=to_pascal)


# --- shared by resource_config.json and create_cluster.json (API-driven form) ---


class GroupSlurmConfig(ServiceSchema):
    node_type: Text
    partition_names: list[Text] | None = None


class FsxLustreConfig(ServiceSchema):
    dns_name: HostName
    mount_name: MountName
    mount_path: Annotated[MountPath | None, EmptyIsNone] = None


class FsxOpenZfsConfig(ServiceSchema):
    dns_name: HostName
    mount_path: Annotated[MountPath | None, EmptyIsNone] = None


class InstanceStorageConfig(ServiceSchema):
    ebs_volume_config: dict[str, Any] | None = None
    fsx_lustre_config: FsxLustreConfig | None = None
    fsx_open_zfs_config: FsxOpenZfsConfig | None = None


# --- resource_config.json ---


class RawInstance(ServiceSchema):
    """One instance. Its addresses are checked later, because a plan does not need them."""

    instance_name: InstanceName
    customer_ip_address: Annotated[str | None, EmptyIsNone] = None
    agent_ip_address: Annotated[str | None, EmptyIsNone] = None
    instance_id: Annotated[str | None, EmptyIsNone] = None
    instance_label: dict[str, Any] | None = None  #: the network's layers, on accelerator types


class RawGroup(ServiceSchema):
    name: Name
    instance_type: Text | None = None
    instances: list[RawInstance] | None = None
    slurm_config: GroupSlurmConfig | None = None
    instance_storage_configs: list[InstanceStorageConfig] | None = None


class AccountingDatabase(ServiceSchema):
    endpoint: Annotated[HostName | None, EmptyIsNone] = None
    port: Port | None = None
    name: Annotated[DatabaseName | None, EmptyIsNone] = None
    secret_arn: Annotated[SecretArn | None, EmptyIsNone] = None


class ClusterSlurmConfig(ServiceSchema):
    primary_controller_ip: Annotated[str | None, EmptyIsNone] = None
    secondary_controller_ips: list[str] | None = None
    accounting_database: AccountingDatabase | None = None


class ClusterConfig(ServiceSchema):
    cluster_name: Name
    cluster_arn: str | None = None
    cluster_type: str | None = None
    slurm_config: ClusterSlurmConfig | None = None


class ResourceConfig(ServiceSchema):
    """The file. ``ClusterType`` and ``SlurmConfig`` are accepted in both places: the service does not document it."""

    cluster_config: ClusterConfig
    cluster_type: str | None = None
    slurm_config: ClusterSlurmConfig | None = None
    instance_groups: list[RawGroup]


# --- provisioning_parameters.json ---


class WorkerGroup(Schema):
    instance_group_name: Text
    partition_name: Text


class SlurmConfigurations(Schema):
    """An external accounting database and several controllers; all keys are optional."""

    slurm_database_secret_arn: Annotated[SecretArn | None, EmptyIsNone] = None
    slurm_database_endpoint: Annotated[HostName | None, EmptyIsNone] = None
    slurm_database_user: Annotated[DatabaseUser | None, EmptyIsNone] = None
    slurm_shared_directory: Annotated[MountPath | None, EmptyIsNone] = None
    slurm_sns_arn: Annotated[TopicArn | None, EmptyIsNone] = None


#: The keys that assign node types to groups.
GROUP_KEYS = frozenset({"controller_group", "login_group", "worker_groups"})


class ProvisioningParameters(Schema):
    """The file. Every key is optional here, so that a wrong one does not hide problems of the others."""

    version: Text | None = None
    workload_manager: Any = None
    controller_group: Text | None = None
    login_group: Names = Field(default_factory=list)
    worker_groups: list[WorkerGroup] | None = None
    fsx_dns_name: Annotated[HostName | None, EmptyIsNone] = None
    fsx_mountname: Annotated[MountName | None, EmptyIsNone] = None
    fsx_openzfs_dns_name: Annotated[HostName | None, EmptyIsNone] = None
    slurm_configurations: SlurmConfigurations | None = None

    @property
    def names_groups(self) -> bool:
        """Whether the file assigns node types. In the API-driven form it may exist without naming groups."""
        return bool(self.controller_group or self.login_group or self.worker_groups)


# --- create_cluster.json ---


class InstanceRequirements(ServiceSchema):
    instance_types: list[Text]


class RequestGroup(ServiceSchema):
    instance_group_name: Name
    instance_type: Text | None = None
    instance_requirements: InstanceRequirements | None = None
    instance_count: int
    slurm_config: GroupSlurmConfig | None = None
    instance_storage_configs: list[InstanceStorageConfig] | None = None


class CreateCluster(ServiceSchema):
    cluster_name: Name
    instance_groups: list[RequestGroup]
    orchestrator: dict[str, Any] | None = None
