# SPDX-License-Identifier: Apache-2.0
"""The Ansible groups and `hyperpod_*` variables of a node.

The argument spec of the role `platform` documents every variable; a test compares the two.
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

#: Groups that always exist, so that plays for them are valid in a cluster without such nodes.
NODE_TYPE_GROUPS = tuple(node_type.value for node_type in NodeType)

#: The group of all members of the cluster.
CLUSTER_GROUP = "hyperpod"

#: Names reserved by Ansible.
ANSIBLE_NAMES = ("all", "ungrouped", "localhost")


def safe_names(prefix: str, names: Iterable[str]) -> dict[str, str]:
    """Return a valid Ansible group name for each name: ``prefix_`` and only letters, digits and underscores.

    Names that map to the same group name (``a-b``, ``a.b``) get a checksum as suffix, independent of their order.
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
        """Every group for which the user can set variables."""
        made = (self.instance_groups, self.partitions, self.instance_types)
        return [
            *ANSIBLE_NAMES[:2],
            CLUSTER_GROUP,
            *NODE_TYPE_GROUPS,
            *(name for each in made for name in each.values()),
        ]

    def _check(self, cluster: Cluster) -> None:
        """Raise InputError if an instance has the name of a group, because `hosts:` could mean either."""
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
        """Return the groups of `node`, in increasing precedence of their variables."""
        return [
            CLUSTER_GROUP,
            node.node_type.value,
            *(self.instance_types[name] for name in [node.group.instance_type] if name),
            *(self.partitions[partition] for partition in node.group.partitions),
            self.instance_groups[node.group.name],
        ]


#: Debian's names of architectures by those of the kernel.
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


@dataclass(frozen=True)
class Image:
    """Properties of the nodes' image. Each field is an option of the inventory source and is set only there."""

    slurm_prefix: str = "/opt/slurm"
    slurm_config_dir: str = ""  #: default: `etc` below the prefix
    slurm_user: str = "slurm"
    slurm_controller_port: int = 0  #: 0: as configured in Slurm
    slurm_accounting_port: int = 0  #: 0: as configured in Slurm
    architecture: str = ""  #: in Debian's spelling; default: that of this machine

    def variables(self) -> dict[str, Any]:
        """Return the `hyperpod_*` variables for these properties."""
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
    """Return the `hyperpod_*` variables of `node`: plain data without templates."""
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
