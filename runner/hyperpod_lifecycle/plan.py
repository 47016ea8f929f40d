# SPDX-License-Identifier: Apache-2.0
"""What a run would do on a node: Ansible is asked, nothing is changed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from hyperpod_lifecycle.cluster import Node
from hyperpod_lifecycle.errors import ExitCode, InputError, LifecycleError, Problem
from hyperpod_lifecycle.events import tidy

SITE = "hyperpod.lifecycle.site"


@dataclass(frozen=True)
class Concern:
    """One play of the site playbook and whether it runs on the node."""

    name: str
    runs: bool
    reason: str


@dataclass(frozen=True)
class Plan:
    """What a node is and which concerns run on it, in order."""

    cluster: str
    node: str
    node_type: str
    instance_group: str
    instance_type: str
    address: str
    partitions: tuple[str, ...]
    controllers: tuple[str, ...]
    concerns: tuple[Concern, ...]
    notes: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """The plan as JSON data."""
        return asdict(self)


def make(node: Node, source: Path, environment: Mapping[str, str], playbook: str = SITE) -> Plan:
    """Plan `playbook` for `node`, which the inventory source file `source` describes.

    Raises InputError for settings that no role knows, and LifecycleError with Ansible's own words if it cannot answer.
    """
    answer = _ask(source, playbook, environment)
    if answer["problems"]:
        raise InputError([Problem(*problem) for problem in answer["problems"]])
    return Plan(
        cluster=node.cluster.name,
        node=node.instance.name,
        node_type=answer["node_type"],
        instance_group=node.group.name,
        instance_type=node.group.instance_type,
        address=node.instance.address or "",
        partitions=tuple(node.group.partitions),
        controllers=tuple(node.cluster.controller_addresses),
        concerns=tuple(_concern(play, answer["node_type"]) for play in answer["plays"]),
        notes=tuple(node.cluster.notes),
    )


def _ask(source: Path, playbook: str, environment: Mapping[str, str]) -> dict[str, Any]:
    command = [sys.executable, "-m", "hyperpod_lifecycle.ask_ansible", str(source), playbook]
    done = subprocess.run(
        command,
        env={**os.environ, **environment},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode == ExitCode.INPUT:  # Ansible itself refuses what it was given
        said = tidy(done.stderr)
        raise InputError([Problem("the inventory", "", f"Ansible cannot plan this node: {said}", "correct it there")])
    if done.returncode != 0:
        raise LifecycleError(f"Ansible cannot plan this node: {done.stderr.strip()}")
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def _concern(play: Mapping[str, Any], node_type: str) -> Concern:
    hosts = ", ".join(play["hosts"])
    if not play["matches"]:
        return Concern(play["name"], False, f"it is for {hosts}; this node is {node_type}")
    if play["off"]:
        return Concern(play["name"], False, f"{play['off'][0]} is false")
    return Concern(play["name"], True, f"it is for {hosts}")
