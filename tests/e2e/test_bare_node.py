# SPDX-License-Identifier: Apache-2.0
"""Nodes as they boot: nothing has run on them yet. Both Debian releases, so both ways of a login node."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from conftest import MOLECULE, SCENARIOS, install_molecule, lab_called, run_molecule, shape, snapshot

from hyperpod_lab.image import Release
from hyperpod_lab.lab import Lab

NODES = ("controller-machine-1", "login-group-1", "compute-nodes-1")


@pytest.fixture(scope="module", params=list(Release), ids=lambda release: release.value)
def lab(request: pytest.FixtureRequest, upload: Callable[..., Path]) -> Iterator[Lab]:
    """A cluster of three whose scripts have not run, with molecule installed on its nodes."""
    release = request.param
    with lab_called(f"bare-{release.value}") as lab:
        lab.up(shape(release, compute_nodes=1), scripts=False)
        folder = upload(release, MOLECULE)
        for node in NODES:
            install_molecule(lab, node, folder)
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
    done = run_molecule(lab, node, scenario)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-6000:]
