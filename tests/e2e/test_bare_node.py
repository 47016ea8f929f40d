# SPDX-License-Identifier: Apache-2.0
"""Nodes as they boot: nothing has run on them yet. Both Debian releases, so both ways of a login node."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from conftest import lab_called, shape, snapshot

from hyperpod_lab.image import Release
from hyperpod_lab.lab import Lab

NODES = ("controller-machine-1", "login-group-1", "compute-nodes-1")

#: Extra packages for molecule inside a node.
MOLECULE = "molecule>=25"
SCENARIOS = "/opt/molecule/src/collection"


@pytest.fixture(scope="module", params=list(Release), ids=lambda release: release.value)
def lab(request: pytest.FixtureRequest, upload: Callable[..., Path]) -> Iterator[Lab]:
    """A cluster of three whose scripts have not run, with molecule installed on its nodes."""
    release = request.param
    with lab_called(f"bare-{release.value}") as lab:
        lab.up(shape(release, compute_nodes=1), scripts=False)
        folder = upload(release, MOLECULE)
        for node in NODES:
            lab.put(node, folder, "/opt/molecule/src", mode=0o644)
            lab.put(node, Path(__file__).parents[2] / "collection", SCENARIOS)
            install = (
                "cd /opt/molecule && python3 -m venv --without-pip venv && "
                "PYTHONPATH=$(echo src/wheels/pip-*.whl) venv/bin/python -m pip install --quiet --no-compile "
                "--no-index --find-links src/wheels hyperpod-lifecycle molecule"
            )
            lab.exec(node, ["bash", "-c", install], check=True)
        yield lab


@pytest.mark.parametrize("node", NODES)
def test_check_and_diff_on_a_bare_node_change_nothing(lab: Lab, node: str) -> None:
    before = snapshot(lab, node)
    done = lab.exec(
        node,
        [
            "/opt/molecule/venv/bin/hyperpod-lifecycle",
            "apply",
            "--check",
            "--diff",
            "--inventory",
            f"{SCENARIOS}/extensions/molecule/inventory",
        ],
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert snapshot(lab, node) == before


@pytest.mark.parametrize("node", NODES)
def test_molecule(lab: Lab, node: str) -> None:
    scenario = {"controller-machine-1": "controller", "login-group-1": "login", "compute-nodes-1": "compute"}[node]
    molecule = f"cd {SCENARIOS} && PATH=/opt/molecule/venv/bin:$PATH molecule test --scenario-name {scenario}"
    done = lab.exec(
        node, ["bash", "-c", molecule], env={"LC_ALL": "C.UTF-8", "HOME": "/root", "NO_COLOR": "1"}, timeout=400
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-6000:]
