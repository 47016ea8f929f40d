# SPDX-License-Identifier: Apache-2.0
"""What Ansible is told about a node: its groups and its `hyperpod_*` variables.

The role `platform` has the argument spec of every variable made here; a test compares the two.
"""

from __future__ import annotations

import platform
import re
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from hyperpod_lifecycle.cluster import Cluster, Node, NodeType
from hyperpod_lifecycle.errors import InputError, Problem
from hyperpod_lifecycle.users import User

#: Groups that exist in every inventory, so that a play for login nodes is not an error on a cluster without any.
NODE_TYPE_GROUPS = tuple(node_type.value for node_type in NodeType)

#: The group of all members of the cluster.
CLUSTER_GROUP = "hyperpod"

#: Names that mean something to Ansible by themselves.
ANSIBLE_NAMES = ("all", "ungrouped", "localhost")


def safe_names(prefix: str, names: Iterable[str]) -> dict[str, str]:
    """Each real name and a group name that Ansible accepts: ``prefix_`` and only letters, digits and underscores.

    Two names that would become the same group (``a-b``, ``a.b``) get a suffix made from the real name, so that
    settings for one never reach the other, and the group of one does not depend on which others exist before it.
    """
    plain = {name: f"{prefix}_{re.sub(r'[^A-Za-z0-9_]', '_', name)}" for name in names}
    taken: dict[str, int] = {}
    for safe in plain.values():
        taken[safe] = taken.get(safe, 0) + 1
    return {
        name: safe if taken[safe] == 1 else f"{safe}_{zlib.crc32(name.encode()):08x}" for name, safe in plain.items()
    }


class GroupNames:
    """The Ansible group names of one cluster's instance groups, partitions and instance types."""

    def __init__(self, cluster: Cluster) -> None:
        groups = cluster.groups
        partitions = dict.fromkeys(partition for group in groups for partition in group.partitions)
        # The type is absent where a group may have one of several.
        types = dict.fromkeys(group.instance_type for group in groups if group.instance_type)
        self.instance_groups: Mapping[str, str] = safe_names("instance_group", (group.name for group in groups))
        self.partitions: Mapping[str, str] = safe_names("partition", partitions)
        self.instance_types: Mapping[str, str] = safe_names("instance_type", types)
        self._check(cluster)

    @property
    def all(self) -> list[str]:
        """Every group that has variables of the user's."""
        made = (self.instance_groups, self.partitions, self.instance_types)
        return [
            *ANSIBLE_NAMES[:2],
            CLUSTER_GROUP,
            *NODE_TYPE_GROUPS,
            *(name for each in made for name in each.values()),
        ]

    def _check(self, cluster: Cluster) -> None:
        """An instance with the name of a group would be what `hosts:` of the group's plays means as well."""
        taken = {*self.all, *ANSIBLE_NAMES}
        key, remedy = "InstanceName", "rename its instance group: HyperPod names instances after it"
        problems = [
            Problem(cluster.resource_config, key, f"found {each.name}, which is a group of Ansible's inventory", remedy)
            for each in cluster.instances
            if each.name in taken
        ]
        if problems:
            raise InputError(problems)

    def of(self, node: Node) -> list[str]:
        """Every group that `node` belongs to, broadest first, which is the order Ansible should merge variables in."""
        return [
            CLUSTER_GROUP,
            node.node_type.value,
            *(self.instance_types[name] for name in [node.group.instance_type] if name),
            *(self.partitions[partition] for partition in node.group.partitions),
            self.instance_groups[node.group.name],
        ]


#: Debian's names of the architectures, by the kernel's.
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


@dataclass(frozen=True)
class Image:
    """What the nodes' image is like. Each field is an option of the inventory source, the one place to change it."""

    slurm_prefix: str = "/opt/slurm"
    slurm_config_dir: str = ""  #: empty: `etc` below the prefix
    slurm_user: str = "slurm"
    slurm_controller_port: int = 0  #: 0: what Slurm's files say
    slurm_accounting_port: int = 0  #: 0: what Slurm's files say
    architecture: str = ""  #: in Debian's spelling; empty: that of this machine

    def variables(self) -> dict[str, Any]:
        """The variables of the contract that are made of it."""
        machine = platform.machine()
        return {
            "hyperpod_architecture": self.architecture or ARCHITECTURES.get(machine, machine),
            "hyperpod_slurm_prefix": self.slurm_prefix,
            "hyperpod_slurm_config_dir": self.slurm_config_dir or f"{self.slurm_prefix}/etc",
            "hyperpod_slurm_user": self.slurm_user,
            "hyperpod_slurm_controller_port": self.slurm_controller_port,
            "hyperpod_slurm_accounting_port": self.slurm_accounting_port,
        }


def host_variables(node: Node, users: Iterable[User] = (), image: Image | None = None) -> dict[str, Any]:
    """The contract between the platform's files and the roles: plain data, never templates."""
    cluster, group, instance = node.cluster, node.group, node.instance
    return {
        "hyperpod_cluster_name": cluster.name,
        "hyperpod_cluster_arn": cluster.arn,
        "hyperpod_region": cluster.region,
        "hyperpod_source": cluster.source,
        "hyperpod_node_type": node.node_type.value,
        "hyperpod_instance_group": group.name,
        "hyperpod_instance_type": group.instance_type,
        "hyperpod_instance_types": list(
            dict.fromkeys(each.instance_type for each in cluster.groups if each.instance_type)
        ),
        "hyperpod_instance_name": instance.name,
        "hyperpod_instance_id": instance.instance_id or "",
        "hyperpod_address": instance.address or "",
        "hyperpod_partitions": list(group.partitions),
        "hyperpod_controller_addresses": list(cluster.controller_addresses),
        "hyperpod_login_addresses": list(cluster.login_addresses),
        "hyperpod_file_systems": [asdict(file_system) for file_system in group.file_systems],
        "hyperpod_slurm_configurations": dict(cluster.slurm_configurations),
        "hyperpod_accounting_database": dict(cluster.accounting_database),
        "hyperpod_users": [asdict(user) for user in users],
        **(image or Image()).variables(),
    }
