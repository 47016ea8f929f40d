# SPDX-License-Identifier: Apache-2.0
"""The plan of a node: what a run would do, without changing anything."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from hyperpod_lifecycle.cluster import Node, NodeType
from hyperpod_lifecycle.problems import known
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

    def lines(self) -> Iterator[str]:
        """Yield the plan as text."""
        facts = ", ".join(filter(None, (f"group {self.instance_group}", self.instance_type, self.address)))
        yield f"{self.node}: {self.node_type} node of {self.cluster} ({facts})"
        if self.partitions:
            yield f"partitions: {', '.join(self.partitions)}"
        yield f"controllers: {', '.join(self.controllers) or 'none has an address yet'}"
        for name, value in self.shows.items():
            items = [value] if isinstance(value, str) else [" ".join(map(str, filter(None, x.values()))) for x in value]
            yield f"{name.replace('_', ' ')}: {known(items)}"
        width = max((len(concern.name) for concern in self.concerns), default=0)
        for number, concern in enumerate((concern for concern in self.concerns if concern.runs), 1):
            yield f"{number:3}  {concern.name:{width}}  {concern.reason}"
        for concern in self.concerns:
            if not concern.runs:
                yield f"  -  {concern.name:{width}}  {concern.reason}"
        for note in self.notes:
            yield f"note: {note}"


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
