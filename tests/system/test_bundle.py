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
    assert {path.name for path in folder.iterdir()} == {"on_create.sh", "inventory", "wheels", bundle.SUMS}
    subprocess.run(["sha256sum", "--check", "--strict", "--quiet", bundle.SUMS], cwd=folder, check=True)
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


def test_what_the_user_put_into_it_stays(checkout: Path, tmp_path: Path) -> None:
    site = tmp_path / "mine"
    (site / "inventory/group_vars").mkdir(parents=True)
    for name in ("gone", "login"):
        (site / f"inventory/group_vars/{name}.yml").write_text("slurm_log_size: 1M\n")
    (site / "provisioning_parameters.json").write_text("{}")
    made = bundle.build(tmp_path / "upload", [THIS_PYTHON], checkout=checkout, site=site)
    own = {
        "shared_users.txt": "ada,2001\n",
        "provisioning_parameters.json": '{"version": "1.0.0"}',
        "inventory/group_vars/login.yml": "slurm_log_size: 2M\n",
        "inventory/files/rds.pem": "a certificate",
        "notes/later": "",
    }
    for name, text in own.items():
        (made / name).parent.mkdir(exist_ok=True)
        (made / name).write_text(text)
    (made / "empty").mkdir()
    (site / "inventory/group_vars/gone.yml").unlink()
    (site / "inventory/group_vars/controller.yml").write_text("slurm_log_size: 3M\n")
    said: list[str] = []
    for _ in range(2):
        said.clear()
        bundle.build(made, [THIS_PYTHON], checkout=checkout, site=site, say=said.append)
        assert {name: (made / name).read_text() for name in own} == own
        assert (made / "empty").is_dir()
        assert not (made / "inventory/group_vars/gone.yml").exists()
        assert (made / "inventory/group_vars/controller.yml").exists()
        assert [line.partition(",")[0] for line in said] == [
            f"kept {made}/inventory/group_vars/login.yml",
            f"kept {made}/provisioning_parameters.json",
        ]


def test_a_bundle_that_was_killed_goes_on(checkout: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = bundle.build(tmp_path / "upload", [THIS_PYTHON], checkout=checkout)
    expected = contents(made)
    site = tmp_path / "before"
    (site / "inventory").mkdir(parents=True)
    (site / "inventory/old.yml").write_text("a: 1\n")
    bundle.build(made, [THIS_PYTHON], checkout=checkout, site=site)

    def killed(self: Path, target: Path) -> Path:
        if target.name == "on_create.sh":
            raise KeyboardInterrupt
        return replace(self, target)

    replace = Path.replace
    monkeypatch.setattr(Path, "replace", killed)
    with pytest.raises(KeyboardInterrupt):
        bundle.build(made, [THIS_PYTHON], checkout=checkout)
    monkeypatch.setattr(Path, "replace", replace)
    assert contents(bundle.build(made, [THIS_PYTHON], checkout=checkout)) == expected


def test_replaces_a_bundle_and_nothing_else(checkout: Path, tmp_path: Path) -> None:
    (tmp_path / "upload").mkdir()
    made = bundle.build(tmp_path / "upload", [THIS_PYTHON], checkout=checkout)
    shutil.copytree(checkout / "inventory", tmp_path / "inventory")
    (tmp_path / "shared_users.txt").write_text("ada,2001\n")
    (tmp_path / "provisioning_parameters.json").write_text("{}")
    bundle.build(made, [THIS_PYTHON], checkout=checkout, site=tmp_path)
    assert (made / "provisioning_parameters.json").read_text() == "{}"
    assert (made / "shared_users.txt").read_text() == "ada,2001\n"
    (made / bundle.SUMS).unlink()
    with pytest.raises(LifecycleError, match="no SHA256SUMS of a bundle"):
        bundle.build(made, [THIS_PYTHON], checkout=checkout)
    assert {path.name for path in tmp_path.iterdir()} == {
        *("provisioning_parameters.json", "upload", "inventory", "shared_users.txt")
    }


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
