# SPDX-License-Identifier: Apache-2.0
"""What a lab is asked to be: groups, instance names and the files the user gave. Pure but for reading those files."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from hyperpod_lab.errors import LabUsageError
from hyperpod_lab.image import Release
from hyperpod_lifecycle import cluster
from hyperpod_lifecycle.cluster import FileSystem, NodeType
from hyperpod_lifecycle.create_cluster import read_create_cluster

EXAMPLE = Path(__file__).resolve().parents[1] / "example"
#: The documented example has four compute nodes; two show everything.
EXAMPLE_COUNTS = {"compute-nodes": 2}
PARAMETERS = "provisioning_parameters.json"


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
        if count < 0:
            raise LabUsageError(f"group {self.name}: {count} is not a number of nodes")
        kept = self.instances[:count]
        numbered = (f"{self.name}-{number}" for number in range(1, count + len(kept) + 1))
        new = [name for name in numbered if name not in kept][: count - len(kept)]
        return replace(self, instances=(*kept, *new))


@dataclass(frozen=True)
class Shape:
    cluster_name: str
    cluster_arn: str
    release: Release
    groups: tuple[GroupShape, ...]
    provisioning_parameters: str | None  #: the file's text as it is, broken or not; None in the API-driven form

    def resized(self, counts: Mapping[str, int]) -> Shape:
        known = [group.name for group in self.groups]
        unknown = [name for name in counts if name not in known]
        if unknown:
            raise LabUsageError(f"no group is named {', '.join(unknown)}. Known groups: {', '.join(known)}")
        return replace(self, groups=tuple(g.resized(counts[g.name]) if g.name in counts else g for g in self.groups))

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
                node_type=NodeType(group["node_type"]) if group["node_type"] else None,
                partitions=tuple(group["partitions"]),
                file_systems=tuple(FileSystem(**each) for each in group["file_systems"]),
            )
            for group in raw["groups"]
        )
        return Shape(**{**raw, "release": Release(raw["release"]), "groups": groups})


def parse_counts(words: Sequence[str]) -> dict[str, int]:
    """``GROUP=N`` options as a mapping."""
    counts: dict[str, int] = {}
    for word in words:
        name, equals, number = word.rpartition("=")
        if not (equals and name and number.isascii() and number.isdigit()):
            raise LabUsageError(f"--count {word}: expected GROUP=N with N a whole number, such as compute-nodes=2")
        if name in counts:
            raise LabUsageError(f"--count {word}: {name} is given twice")
        counts[name] = int(number)
    return counts


def cluster_arn(name: str) -> str:
    """A made-up ARN in the documentation's account, the same for the same name."""
    return f"arn:aws:sagemaker:us-west-2:111122223333:cluster/{hashlib.sha256(name.encode()).hexdigest()[:12]}"


def from_create_cluster(path: Path, parameters: Path | None, release: Release) -> Shape:
    """The groups and counts of a request; in the file form the second file lies beside it if it is not named."""
    requests = read_create_cluster(path)
    if parameters is None and any(request.node_type is None for request in requests):
        parameters = path.with_name(PARAMETERS)
        if not parameters.is_file():
            raise LabUsageError(
                f"{path} has no SlurmConfig and no {PARAMETERS} beside it; name it: --provisioning-parameters"
            )
    groups = tuple(
        GroupShape(each.name, each.instance_type, (), each.node_type, each.partitions, each.file_systems).resized(
            each.count
        )
        for each in requests
    )
    name = requests[0].cluster_name
    return Shape(name, cluster_arn(name), release, groups, _text(parameters))


def from_resource_config(path: Path, parameters: Path | None, release: Release) -> Shape:
    """The same groups and instance names; addresses are the lab's own, so the file's may be placeholders."""
    if parameters is None and path.with_name(PARAMETERS).is_file():
        parameters = path.with_name(PARAMETERS)
    model = cluster.load(path, parameters, planning=True)
    in_groups = model.source == "slurm_config"
    groups = tuple(
        GroupShape(
            name=group.name,
            instance_type=group.instance_type,
            instances=tuple(instance.name for instance in group.instances),
            node_type=group.node_type if in_groups else None,
            partitions=group.partitions if in_groups else (),
            file_systems=group.file_systems if in_groups else (),
        )
        for group in model.groups
    )
    groups += tuple(
        GroupShape(group.name, group.instance_type, tuple(instance.name for instance in group.instances))
        for group in model.untyped_groups
    )
    return Shape(model.name, model.arn or cluster_arn(model.name), release, groups, _text(parameters))


def _text(path: Path | None) -> str | None:
    if path is None:
        return None
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise LabUsageError(f"cannot read {path}: {error}") from error
