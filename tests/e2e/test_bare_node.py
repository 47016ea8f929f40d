# SPDX-License-Identifier: Apache-2.0
"""Nodes as they boot, of the older Debian release: Slurm without sackd, and an older ansible-core."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from conftest import MOLECULE, SCENARIOS, install_molecule, lab_called, run_molecule, shape, snapshot
from nodes import COMPUTE, CONTROLLER, LOGIN, must

from hyperpod_lab.image import Release
from hyperpod_lab.lab import Lab

SCENARIO = {CONTROLLER: "controller", LOGIN: "login", COMPUTE: "compute"}


@pytest.fixture(scope="module")
def lab(upload: Callable[..., Path]) -> Iterator[Lab]:
    """A cluster of three whose scripts have not run, with molecule installed on its nodes."""
    with lab_called("bare") as lab:
        lab.up(shape(Release.BOOKWORM, compute_nodes=1), scripts=False)
        folder = upload(Release.BOOKWORM, MOLECULE)
        for node in SCENARIO:
            install_molecule(lab, node, folder)
        yield lab


@pytest.mark.parametrize("node", SCENARIO)
def test_check_and_diff_on_a_bare_node_change_nothing(lab: Lab, node: str) -> None:
    before = snapshot(lab, node)
    program = "/opt/molecule/venv/bin/hyperpod-lifecycle"
    inventory = f"{SCENARIOS}/extensions/molecule/inventory"
    must(lab.exec(node, [program, "apply", "--check", "--diff", "--inventory", inventory]))
    assert snapshot(lab, node) == before


@pytest.mark.parametrize("node", SCENARIO)
def test_molecule(lab: Lab, node: str) -> None:
    done = run_molecule(lab, node, SCENARIO[node])
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-6000:]
