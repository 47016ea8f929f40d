# SPDX-License-Identifier: Apache-2.0
"""Labs to test on. They need root and podman, which `hyperpod_lab` installs."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from hyperpod_lab import machine
from hyperpod_lab.agent.request import from_create_cluster
from hyperpod_lab.image import Release
from hyperpod_lab.lab import Lab
from hyperpod_lab.shape import Platform, Shape
from hyperpod_lifecycle import bundle

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "lab/example"
BARE = Platform()

#: `make thorough`: as often and as long as somebody does who wants to be sure. Else enough to check a change.
THOROUGH = bool(os.environ.get("THOROUGH"))

#: Where a node looks other than before though nothing changed: what runs, its journal, caches, and Python's byte code.
UNSTABLE = (
    *("/proc", "/sys", "/dev", "/run", "/tmp", "/var/log/journal", "/var/cache"),
    *("/opt/hyperpod-lifecycle", "/opt/molecule", "/var/lib/fake_disks"),
)

#: Extra packages for molecule inside a node, and where the collection with its scenarios lies there.
MOLECULE = "molecule>=25"
SCENARIOS = "/opt/molecule/src/collection"


def shape(
    release: Release = Release.TRIXIE, parameters: Path | None = None, platform: Platform = BARE, **counts: int
) -> Shape:
    """The documented example with another number of nodes in some groups; underscores stand for hyphens.

    Nodes are bare unless a test is about the image: single concerns then mean and cost what they did.
    """
    found = replace(from_create_cluster(EXAMPLE / "create_cluster.json", parameters, release), platform=platform)
    return found.resized({group.replace("_", "-"): count for group, count in counts.items()})


def snapshot(lab: Lab, node: str) -> str:
    """Every file of a node with its owner, mode, size, time and target, and the state of every unit."""
    prune = " -o ".join(f"-path {path}" for path in UNSTABLE)
    files = rf"find / \( {prune} \) -prune -o -printf '%p %u %g %m %y %s %T@ %l\n' | sort"
    units = "systemctl list-units --all --plain --no-legend --type=service | awk '{print $1, $2, $3, $4}' | sort"
    return lab.exec(node, ["bash", "-c", f"{files}; {units}"], check=True).stdout


def install_molecule(lab: Lab, node: str, upload: Path) -> None:
    """molecule beside our own package, from an upload folder that holds both, and this checkout's scenarios."""
    lab.put(node, upload, "/opt/molecule/src", mode=0o644)
    lab.put(node, ROOT / "collection", SCENARIOS)
    install = (
        "cd /opt/molecule && python3 -m venv --without-pip venv && "
        "PYTHONPATH=$(echo src/wheels/pip-*.whl) venv/bin/python -m pip install --quiet --no-compile "
        "--no-index --find-links src/wheels hyperpod-lifecycle molecule"
    )
    lab.exec(node, ["bash", "-c", install], check=True)


def run_molecule(lab: Lab, node: str, scenario: str) -> subprocess.CompletedProcess[str]:
    command = f"cd {SCENARIOS} && PATH=/opt/molecule/venv/bin:$PATH molecule test --scenario-name {scenario}"
    environment = {"LC_ALL": "C.UTF-8", "HOME": "/root", "NO_COLOR": "1"}
    return lab.exec(node, ["bash", "-c", command], env=environment, timeout=400)


#: Whether this kernel can mount on first access. In each lab of storage and of the main path one group cannot.
AUTOFS = machine.has_autofs()
NO_AUTOFS = ("login-group",)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Name what this machine could not test."""
    if not AUTOFS:
        terminalreporter.section("not tested here")
        terminalreporter.line("mounting on first access: this kernel has no autofs, so all nodes mounted at boot")


@contextmanager
def lab_called(name: str, no_autofs: Sequence[str] = ()) -> Iterator[Lab]:
    """A lab that is not there before or after."""
    lab = Lab(name, no_autofs=no_autofs)
    lab.down()
    try:
        yield lab
    finally:
        if not os.environ.get("KEEP_LAB"):
            lab.down()


@pytest.fixture(scope="session")
def upload(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """The upload folder for the nodes of a release, made once; further packages are for tests inside a node."""
    made: dict[tuple[Release, tuple[str, ...]], Path] = {}

    def folder(release: Release = Release.TRIXIE, *packages: str) -> Path:
        if (release, packages) not in made:
            dest = tmp_path_factory.mktemp("upload") / "src"
            bundle.build(dest, [release.python], platform.machine(), packages=packages)
            # Only tests of containers pay for them. Tests that change settings write all.yml.
            (dest / "inventory/group_vars").mkdir(exist_ok=True)
            (dest / "inventory/group_vars/hyperpod.yml").write_text("containers_enabled: false\n")
            made[release, packages] = dest
        return made[release, packages]

    return folder


@pytest.fixture(scope="session")
def hyperpod_lifecycle() -> Callable[..., subprocess.CompletedProcess[str]]:
    """The command, as a user of a checkout calls it."""

    def call(*words: str, timeout: float = 600) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "hyperpod_lifecycle.cli", *words]
        return subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=timeout, check=False
        )

    return call
