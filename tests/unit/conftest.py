# SPDX-License-Identifier: Apache-2.0
"""What several test modules share: the sample files and inventory sources made from them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

CASES = Path(__file__).parent / "cases"
BASELINE = CASES / "01-legacy-baseline"
ROOT = Path(__file__).parents[2]

#: Ansible as a plain user has it: no setting of ours, nothing from the home directory.
PLAIN_ANSIBLE = {
    "PATH": f"{Path(sys.executable).parent}:{os.defpath}",
    "LC_ALL": "C.UTF-8",
    "ANSIBLE_NOCOLOR": "1",
    "ANSIBLE_DEPRECATION_WARNINGS": "1",
}


@pytest.fixture
def ansible(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run one of Ansible's programs with plain settings in an empty folder."""

    def run(*command: str | Path, environment: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(word) for word in command],
            cwd=tmp_path,
            env={
                **PLAIN_ANSIBLE,
                "HOME": str(tmp_path),
                "ANSIBLE_REMOTE_TEMP": str(tmp_path / "remote"),
                **(environment or {}),
            },
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    return run


@pytest.fixture
def source(tmp_path: Path) -> Callable[..., Path]:
    """Write an inventory source for the baseline cluster; keyword arguments are further options."""

    def write(**options: Any) -> Path:
        path = tmp_path / "hyperpod.yml"
        values = {
            "plugin": "hyperpod.lifecycle.hyperpod",
            "resource_config": str(BASELINE / "resource_config.json"),
            "provisioning_parameters": str(BASELINE / "provisioning_parameters.json"),
            "connection": "local",
            "python_interpreter": sys.executable,
        }
        path.write_text(yaml.safe_dump({**values, **options}), encoding="utf-8")
        return path

    return write


@pytest.fixture
def pair(tmp_path: Path) -> Callable[..., tuple[Path, Path]]:
    """Write the two files, from objects."""

    def write(resource_config: Any, provisioning_parameters: Any) -> tuple[Path, Path]:
        paths = tmp_path / "resource_config.json", tmp_path / "provisioning_parameters.json"
        for path, document in zip(paths, (resource_config, provisioning_parameters), strict=True):
            path.write_text(json.dumps(document), encoding="utf-8")
        return paths

    return write


@pytest.fixture
def role_tasks(ansible: Any, tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run some tasks of a role on this machine, with its defaults, variables and templates; settings go first."""

    def run(role: str, tasks: list[dict[str, Any]], **settings: Any) -> subprocess.CompletedProcess[str]:
        folder = tmp_path / "roles" / role
        if not folder.exists():
            folder.mkdir(parents=True)
            for name in ("defaults", "vars", "templates", "files"):
                (folder / name).symlink_to(ROOT / "collection/roles" / role / name)
            (folder / "tasks").mkdir()
        (folder / "tasks/main.yml").write_text(yaml.safe_dump(tasks))
        (tmp_path / "play.yml").write_text(
            yaml.safe_dump([{"hosts": "localhost", "gather_facts": False, "roles": [str(folder)]}])
        )
        (tmp_path / "settings.json").write_text(json.dumps(settings))
        command = ("ansible-playbook", "-c", "local", "-e", f"@{tmp_path}/settings.json", tmp_path / "play.yml")
        done: subprocess.CompletedProcess[str] = ansible(*command)
        return done

    return run


def tasks_of(role: str, name: str) -> list[dict[str, Any]]:
    """The tasks in a file of a role."""
    found: list[dict[str, Any]] = yaml.safe_load((ROOT / f"collection/roles/{role}/tasks/{name}.yml").read_text())
    return found
