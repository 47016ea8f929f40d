# SPDX-License-Identifier: Apache-2.0
"""What a lab is asked to be: groups, instance names, the files the user gave, and which platform it shows. Pure."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Literal

from hyperpod_lab.errors import LabUsageError
from hyperpod_lab.image import Kind, Release

EXAMPLE = Path(__file__).resolve().parents[1] / "example"
#: The documented example has four compute nodes; two show everything.
EXAMPLE_COUNTS = {"compute-nodes": 2}
#: Maximum size of a group.
MOST_NODES = 10_000
PARAMETERS = "provisioning_parameters.json"

NodeType = Literal["controller", "login", "compute"]
Registration = Literal["registered", "unregistered"]
Topology = Literal["none", "tree", "missing"]
Staging = Literal["lifecycle", "bucket"]
Nesting = Literal["nested", "top"]


@dataclass(frozen=True)
class FileSystem:
    """An FSx file system of the request."""

    kind: Literal["lustre", "openzfs"]
    dns_name: str
    mount_name: str | None  #: Lustre's; None for OpenZFS
    mount_path: str


@dataclass(frozen=True)
class GroupShape:
    name: str
    instance_type: str
    instances: tuple[str, ...]  #: instance names; a replaced node keeps its name
    node_type: NodeType | None = None  #: None in the file form, where provisioning_parameters.json has it
    partitions: tuple[str, ...] = ()
    file_systems: tuple[FileSystem, ...] = ()  #: the group's own

    def resized(self, count: int) -> GroupShape:
        """With ``count`` instances: the first names stay, new ones take the lowest free numbers."""
        if not 0 <= count <= MOST_NODES:
            raise LabUsageError(f"group {self.name}: {count} is not a number of nodes from 0 to {MOST_NODES}")
        kept = self.instances[:count]
        numbered = (f"{self.name}-{number}" for number in range(1, count + len(kept) + 1))
        new = [name for name in numbered if name not in kept][: count - len(kept)]
        return replace(self, instances=(*kept, *new))


@dataclass(frozen=True)
class Platform:
    """Which of the cases that live nodes show, where these differ among themselves."""

    image: Kind = "bare"
    login_nodes: Registration = "unregistered"  #: whether login nodes have a NodeName
    topology: Topology = "none"  #: ``missing``: the plugin is set, but its file is not there
    last_newline: bool = True  #: whether slurm.conf ends in one
    staging: Staging = "lifecycle"  #: where scripts lie: /tmp/sagemaker-lifecycle-*, /tmp/<bucket>
    slurm_config: Nesting = "nested"  #: whether ClusterType and SlurmConfig are in ClusterConfig, or beside it
    late_lines: float = 0  #: seconds from the end of a new node's scripts to its lines; 300 on a live cluster
    rewrite_every: float = 0  #: seconds between two rewrites of the agent's lines while scripts run; 0: only at events


#: What `lab up` shows with each image, where nothing else is asked for.
PLATFORMS: Mapping[Kind, Platform] = {"bare": Platform(), "ami": Platform(image="ami", login_nodes="registered")}


@dataclass(frozen=True)
class Shape:
    cluster_name: str
    cluster_arn: str
    release: Release
    groups: tuple[GroupShape, ...]
    provisioning_parameters: str | None  #: the file's text as it is, broken or not; None in the API-driven form
    platform: Platform = field(default_factory=Platform)

    def resized(self, counts: Mapping[str, int]) -> Shape:
        known = [group.name for group in self.groups]
        unknown = [name for name in counts if name not in known]
        if unknown:
            raise LabUsageError(f"no group is named {', '.join(unknown)}. Known groups: {', '.join(known)}")
        return replace(self, groups=tuple(g.resized(counts[g.name]) if g.name in counts else g for g in self.groups))

    def with_group(self, group: GroupShape) -> Shape:
        """With one more group. Raises LabUsageError for a name that the service would not take."""
        if group.name in [each.name for each in self.groups]:
            raise LabUsageError(f"there is a group {group.name}; `scale` changes the number of its nodes")
        if not re.fullmatch(r"[A-Za-z0-9](-*[A-Za-z0-9]){0,62}", group.name):
            raise LabUsageError(f"{group.name!r} cannot name a group: letters, digits and '-' between them, at most 63")
        return replace(self, groups=(*self.groups, group))

    def group_of(self, instance: str) -> GroupShape:
        for group in self.groups:
            if instance in group.instances:
                return group
        names = ", ".join(name for group in self.groups for name in group.instances)
        raise LabUsageError(f"no instance is named {instance}. Known instances: {names}")

    def differences(self, other: Shape) -> list[str]:
        """In words, what ``other`` asks for that this shape is not."""
        found = []
        if self.release is not other.release:
            found.append(f"release: {self.release.value} is up, {other.release.value} is asked for")
        mine, theirs = ({group.name: group for group in shape.groups} for shape in (self, other))
        for name in dict.fromkeys((*mine, *theirs)):
            here, there = mine.get(name), theirs.get(name)
            if here is None or there is None:
                found.append(f"group {name}: {'is not up' if here is None else 'is up and not asked for'}")
            elif len(here.instances) != len(there.instances):
                found.append(f"group {name}: {len(here.instances)} nodes are up, {len(there.instances)} asked for")
            elif here != there:
                found.append(f"group {name}: differs in its instance type, instance names or SlurmConfig")
        if self.cluster_name != other.cluster_name:
            found.append(f"cluster name: {self.cluster_name} is up, {other.cluster_name} is asked for")
        if self.provisioning_parameters != other.provisioning_parameters:
            found.append("provisioning_parameters.json: another text is up")
        ours, wanted = asdict(self.platform), asdict(other.platform)
        found += [f"{key}: {ours[key]} is up, {wanted[key]} is asked for" for key in ours if ours[key] != wanted[key]]
        return found

    def dump(self) -> str:
        return json.dumps(asdict(self), indent=2) + "\n"

    @staticmethod
    def parse(text: str) -> Shape:
        """The inverse of :meth:`dump`; not for users' files."""
        raw = json.loads(text)
        groups = tuple(
            GroupShape(
                name=group["name"],
                instance_type=group["instance_type"],
                instances=tuple(group["instances"]),
                node_type=group["node_type"],
                partitions=tuple(group["partitions"]),
                file_systems=tuple(FileSystem(**each) for each in group["file_systems"]),
            )
            for group in raw["groups"]
        )
        known = {"release": Release(raw["release"]), "groups": groups, "platform": Platform(**raw.get("platform", {}))}
        return Shape(**{**raw, **known})


def parse_counts(words: Sequence[str]) -> dict[str, int]:
    """``GROUP=N`` options as a mapping."""
    counts: dict[str, int] = {}
    for word in words:
        name, equals, number = word.rpartition("=")
        if not (equals and name and number.isascii() and number.isdigit() and len(number) < 10):
            raise LabUsageError(f"--count {word}: expected GROUP=N with N a whole number, such as compute-nodes=2")
        if name in counts:
            raise LabUsageError(f"--count {word}: {name} is given twice")
        counts[name] = int(number)
    return counts


def cluster_arn(name: str) -> str:
    """A made-up ARN in the documentation's account, the same for the same name."""
    return f"arn:aws:sagemaker:us-west-2:111122223333:cluster/{hashlib.sha256(name.encode()).hexdigest()[:12]}"
