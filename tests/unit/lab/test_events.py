# SPDX-License-Identifier: Apache-2.0
"""What the service does with nodes, without the nodes: which are made, with what identity, and what is told to whom."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from ipaddress import IPv4Network
from pathlib import Path
from typing import Any

import pytest
from test_agent import nodes_of

from hyperpod_lab import addresses, machine
from hyperpod_lab import lab as lab_module
from hyperpod_lab.agent import Node
from hyperpod_lab.agent.request import from_create_cluster
from hyperpod_lab.errors import LabUsageError
from hyperpod_lab.image import Release
from hyperpod_lab.lab import UPDATE_TRIES, Lab, ScriptResult
from hyperpod_lab.shape import EXAMPLE, GroupShape, Platform, Shape

COMPUTE = "compute-nodes-1"


class FakeMachines:
    """The containers, the agent and the scripts of a lab, as lists of what was asked of them."""

    def __init__(self) -> None:
        self.present: dict[str, Node] = {}
        self.broken: Callable[[Node], bool] = lambda node: False
        self.ran: list[list[str]] = []
        self.told: list[list[str]] = []
        self.configured: list[list[str]] = []

    # Nodes
    def all(self) -> list[Node]:
        return [*self.present.values()]

    def get(self, name: str) -> Node:
        return self.present[name]

    def container_of(self, name: str) -> str:
        return f"lab-{name}"

    def create(self, node: Node, image: str, options: Sequence[str], init: Sequence[str]) -> None:
        self.present[node.name] = node

    def remove(self, nodes: Sequence[Node]) -> None:
        for node in nodes:
            del self.present[node.name]

    def wait_for_boot(self, nodes: Sequence[Node]) -> None: ...

    # Agent
    def configure(self, shape: Shape, nodes: Sequence[Node], on: Sequence[Node]) -> None:
        self.configured.append([node.name for node in on])

    def tell_controllers(self, shape: Shape, nodes: Sequence[Node]) -> None:
        self.told.append([node.name for node in nodes])

    def wait_until_registered(self, shape: Shape, nodes: Sequence[Node]) -> None: ...

    # Scripts
    def run(self, nodes: Sequence[Node], folder: Path, staging: str, parallel: int = 0) -> list[ScriptResult]:
        self.ran.append([node.name for node in nodes])
        return [ScriptResult(node, int(self.broken(node)), 0, "", folder) for node in nodes]


@pytest.fixture
def machines() -> FakeMachines:
    return FakeMachines()


@pytest.fixture
def lab(machines: FakeMachines, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Lab:
    """The documented example with two compute nodes, up."""
    made = Lab("events", state_root=tmp_path)
    shape = from_create_cluster(EXAMPLE / "create_cluster.json", None, Release.TRIXIE).resized({"compute-nodes": 2})
    subnet = IPv4Network("10.70.0.0/16")

    class Network:
        gateway = addresses.gateway(subnet)
        name = "network"

        def ensure(self) -> Any:
            return subnet

    monkeypatch.setattr(lab_module.image, "ensure", lambda *words: "image")
    monkeypatch.setattr(machine, "cgroup_v2", lambda: True)
    monkeypatch.setattr(Lab, "_podman_is_set_up", lambda self: True)
    for part in ("_nodes", "_agent", "_scripts"):
        monkeypatch.setattr(made, part, machines)
    monkeypatch.setattr(made._maker, "_nodes", machines)
    monkeypatch.setattr(made._maker, "_network", Network())
    monkeypatch.setattr(made, "_build", lambda shape: tmp_path)
    made._save(shape)
    machines.present = {node.name: node for node in nodes_of(shape)}
    return made


def others(machines: FakeMachines) -> Mapping[str, Node]:
    return {name: node for name, node in machines.present.items() if name != COMPUTE}


def test_a_replaced_node_keeps_name_and_address(lab: Lab, machines: FakeMachines) -> None:
    before, kept = machines.present[COMPUTE], others(machines)
    lab.replace(COMPUTE)
    after = machines.present[COMPUTE]
    assert (after.name, after.address) == (before.name, before.address)
    assert after.instance_id != before.instance_id
    assert others(machines) == kept
    assert COMPUTE in machines.told[0], "its line was never away"


def test_a_replaced_node_may_get_another_address(lab: Lab, machines: FakeMachines) -> None:
    before = machines.present[COMPUTE]
    lab.replace(COMPUTE, new_address=True)
    assert machines.present[COMPUTE].address != before.address
    assert [COMPUTE in told for told in machines.told] == [False, True], "its line comes after its scripts"


def test_only_new_nodes_and_controllers_get_a_new_snapshot(lab: Lab, machines: FakeMachines) -> None:
    lab.scale("compute-nodes", 3)
    assert machines.configured == [["controller-machine-1", "compute-nodes-3"]]
    assert machines.ran == [["compute-nodes-3"]]
    lab.scale("compute-nodes", 1)
    assert set(machines.present) == {"controller-machine-1", "login-group-1", COMPUTE}
    assert machines.configured[1] == ["controller-machine-1"], "the others still list the dead"


def test_an_added_group_is_in_the_second_file_and_its_lines_come_late(
    lab: Lab, machines: FakeMachines, monkeypatch: pytest.MonkeyPatch
) -> None:
    slept: list[float] = []
    monkeypatch.setattr(lab_module, "sleep", slept.append)
    lab._save(replace(lab.shape, platform=Platform(late_lines=300)))
    lab.add_group(GroupShape("more", "ml.g5.xlarge", ("more-1",)), "gpus")
    assert '"instance_group_name": "more"' in (lab.shape.provisioning_parameters or "")
    assert slept == [300]
    assert ["more-1" in told for told in machines.told] == [False, True]


def test_an_update_renews_roots_and_keeps_identities(lab: Lab, machines: FakeMachines) -> None:
    before, prepared = dict(machines.present), []
    results = lab.update(["compute-nodes"], prepare=lambda node: prepared.append(node.name))
    assert [each.exit_code for each in results] == [0, 0]
    assert prepared == [COMPUTE, "compute-nodes-2"]
    assert machines.present == before
    assert lab.update_status == "Succeeded"


def test_an_update_that_fails_rolls_back(lab: Lab, machines: FakeMachines) -> None:
    spoilt: list[str] = []
    machines.broken = lambda node: len(spoilt) <= UPDATE_TRIES and len(machines.ran) <= UPDATE_TRIES
    results = lab.update(["login-group"], prepare=lambda node: spoilt.append(node.instance_id))
    assert [each.exit_code for each in results] == [1] * UPDATE_TRIES + [0]
    assert len(spoilt) == UPDATE_TRIES, "the old image needs no preparation"
    assert lab.update_status == "Failed"
    with pytest.raises(LabUsageError, match="no group is named"):
        lab.update(["no-such-group"])
