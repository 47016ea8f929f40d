# SPDX-License-Identifier: Apache-2.0
"""The upload folder: complete for the Python that runs this test, the same bytes each time, in nobody's way."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import venv
from collections.abc import Iterator
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from hyperpod_lifecycle import bundle
from hyperpod_lifecycle.errors import LifecycleError

ROOT = Path(__file__).resolve().parents[2]
THIS_PYTHON = "{}.{}".format(*sys.version_info)
NEWEST_CORE = {"3.10": "2.17.", "3.11": "2.19.", "3.12": "2.21.", "3.13": "2.21."}


def contents(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.rglob("*")
        if path.is_file()
    }


@pytest.fixture(scope="module", autouse=True)
def _empty_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy that nobody edits meanwhile."""
    copy = tmp_path_factory.mktemp("checkout") / "main"
    shutil.copytree(ROOT, copy, ignore=shutil.ignore_patterns(".*", "__pycache__", "dist", "build"))
    return copy


@pytest.fixture(scope="module")
def folder(checkout: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return bundle.build(tmp_path_factory.mktemp("bundle") / "upload", [THIS_PYTHON], checkout=checkout)


def test_holds_what_a_node_needs(folder: Path) -> None:
    assert {path.name for path in folder.iterdir()} == {"on_create.sh", "inventory", "wheels"}
    assert (folder / "on_create.sh").stat().st_mode & 0o111
    assert len(list((folder / "wheels").glob("hyperpod_lifecycle-*.whl"))) == 1
    assert len(list((folder / "wheels").glob("pip-*.whl"))) == 1


def test_installs_complete_without_an_index(folder: Path, tmp_path: Path) -> None:
    venv.create(tmp_path / "env")
    python = tmp_path / "env/bin/python"
    (pip,) = (folder / "wheels").glob("pip-*.whl")
    install = ["install", "--no-index", "--find-links", folder / "wheels", "--no-compile", "hyperpod-lifecycle"]
    for arguments in (install, ["check"]):
        subprocess.run([python, pip / "pip", "--isolated", "--quiet", *arguments], check=True)
    playbook = subprocess.run(
        [tmp_path / "env/bin/ansible-playbook", "--version"], capture_output=True, text=True, check=True
    )
    assert f"[core {NEWEST_CORE[THIS_PYTHON]}" in playbook.stdout


def test_the_same_checkout_gives_the_same_bytes(folder: Path, checkout: Path, tmp_path: Path) -> None:
    again = tmp_path / "again"
    for path in (checkout / "runner").rglob("*.py"):
        path.touch()
    assert contents(bundle.build(again, [THIS_PYTHON], checkout=checkout)) == contents(folder)


def test_replaces_a_bundle_and_nothing_else(checkout: Path, tmp_path: Path) -> None:
    parameters = tmp_path / "mine.json"
    parameters.write_text("{}")
    (tmp_path / "upload").mkdir()
    made = bundle.build(tmp_path / "upload", [THIS_PYTHON], checkout=checkout)
    shutil.copytree(checkout / "inventory", tmp_path / "inventory")
    (tmp_path / "shared_users.txt").write_text("ada,2001\n")
    own = {"inventory": tmp_path / "inventory", "provisioning_parameters": parameters}
    bundle.build(made, [THIS_PYTHON], checkout=checkout, **own)
    assert (made / "provisioning_parameters.json").read_text() == "{}"
    assert (made / "shared_users.txt").read_text() == "ada,2001\n"
    (made / "on_create.sh").unlink()
    with pytest.raises(LifecycleError, match="not a bundle"):
        bundle.build(made, [THIS_PYTHON], checkout=checkout)
    assert {path.name for path in tmp_path.iterdir()} == {"mine.json", "upload", "inventory", "shared_users.txt"}


def test_names_the_machines_it_knows(checkout: Path, tmp_path: Path) -> None:
    with pytest.raises(LifecycleError, match="x86_64, aarch64"):
        bundle.build(tmp_path / "upload", [THIS_PYTHON], "riscv64", checkout)


@pytest.mark.parametrize(("python", "needed"), [("3.10", {"exceptiongroup>=1.0", "plain"}), ("3.13", {"plain"})])
def test_markers_are_read_for_the_node_not_for_this_python(tmp_path: Path, python: str, needed: set[str]) -> None:
    requirements = [
        Requirement('exceptiongroup>=1.0; python_version < "3.11"'),
        Requirement('pywin32; sys_platform == "win32"'),
        Requirement('speedups; extra == "fast"'),
        Requirement("plain"),
    ]
    assert bundle.unmet(requirements, tmp_path, bundle.marker_environment(python, "x86_64")) == needed
