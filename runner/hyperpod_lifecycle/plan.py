# SPDX-License-Identifier: Apache-2.0
"""The plan of a node: what a run would do, without changing anything."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from hyperpod_lifecycle.cluster import Node, NodeType
from hyperpod_lifecycle.question import Answer
from hyperpod_lifecycle.selection import Play


@dataclass(frozen=True)
class PlannedConcern:
    """One play of the site playbook and whether it runs on the node."""

    name: str
    runs: bool
    reason: str


@dataclass(frozen=True)
class Plan:
    """A node's type and place in the cluster, and its concerns in order."""

    cluster: str
    node: str
    node_type: str
    instance_group: str
    instance_type: str
    address: str
    partitions: tuple[str, ...]
    controllers: tuple[str, ...]
    concerns: tuple[PlannedConcern, ...]
    shows: dict[str, Any]  #: values shown by roles: file systems, homes, users, the accounting database
    notes: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return the plan as JSON data."""
        return asdict(self)


def make(node: Node, answer: Answer) -> Plan:
    """Return the plan of `node`, from Ansible's answer."""
    return Plan(
        cluster=node.cluster.name,
        node=node.instance.name,
        node_type=answer.node_type,
        instance_group=node.group.name,
        instance_type=node.group.instance_type,
        address=node.instance.address or "",
        partitions=tuple(node.group.partitions),
        controllers=tuple(node.cluster.controller_addresses),
        concerns=tuple(_concern(play) for play in answer.plays),
        shows=dict(answer.shows),
        notes=tuple(node.cluster.notes),
    )


def _concern(play: Play) -> PlannedConcern:
    everywhere = {node_type.value for node_type in NodeType} <= set(play.hosts)
    hosts = "all node types" if everywhere else f"{', '.join(play.hosts)} only"
    if play.matches and play.off:
        return PlannedConcern(play.name, False, f"{play.off[0]} is false")
    return PlannedConcern(play.name, play.matches, hosts)
