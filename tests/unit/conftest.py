# SPDX-License-Identifier: Apache-2.0
"""What several test modules share: the sample files and inventory sources made from them."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
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


@pytest.fixture(scope="session")
def packed_modules(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of packed modules: packing a module costs more than starting Ansible."""
    return tmp_path_factory.mktemp("packed")


@pytest.fixture(scope="session")
def ansible_in(packed_modules: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run one of Ansible's programs with plain settings in a folder."""

    def run(
        folder: Path, *command: str | Path, environment: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(word) for word in command],
            cwd=folder,
            env={
                **PLAIN_ANSIBLE,
                **packed_in(packed_modules),
                "ANSIBLE_PYTHON_INTERPRETER": sys.executable,
                "HOME": str(folder),
                "TMPDIR": str(folder),
                "ANSIBLE_REMOTE_TMP": str(folder / "remote"),
                **(environment or {}),
            },
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    return run


def packed_in(folder: Path, **callbacks: Path) -> dict[str, str]:
    """Environment in which Ansible keeps packed modules in a folder, with further callbacks and their folders."""
    return {
        "ANSIBLE_CALLBACK_PLUGINS": ":".join(map(str, [Path(__file__).with_name("callbacks"), *callbacks.values()])),
        "ANSIBLE_CALLBACKS_ENABLED": ",".join(["packed", *callbacks]),
        "PACKED_MODULES": str(folder),
    }


@pytest.fixture
def ansible(ansible_in: Any, tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run one of Ansible's programs with plain settings in an empty folder."""
    run: Callable[..., subprocess.CompletedProcess[str]] = partial(ansible_in, tmp_path)
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


def role_with(folder: Path, role: str, tasks: list[dict[str, Any]]) -> Path:
    """Make a role in a folder: some tasks with a role's defaults, variables, templates and files."""
    made = folder / "roles" / role
    if not made.exists():
        (made / "tasks").mkdir(parents=True)
        for name in ("defaults", "vars", "templates", "files"):
            (made / name).symlink_to(ROOT / "collection/roles" / role / name)
    (made / "tasks/main.yml").write_text(yaml.safe_dump(tasks))
    return made


@pytest.fixture
def role_tasks(ansible: Any, tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run some tasks of a role on this machine, with its defaults, variables and templates; settings go first."""

    def run(role: str, tasks: list[dict[str, Any]], **settings: Any) -> subprocess.CompletedProcess[str]:
        folder = role_with(tmp_path, role, tasks)
        (tmp_path / "play.yml").write_text(
            yaml.safe_dump([{"hosts": "localhost", "gather_facts": False, "roles": [str(folder)]}])
        )
        (tmp_path / "settings.json").write_text(json.dumps(settings))
        command = ("ansible-playbook", "-c", "local", "-e", f"@{tmp_path}/settings.json", tmp_path / "play.yml")
        done: subprocess.CompletedProcess[str] = ansible(*command)
        return done

    return run


@dataclass
class Hosts:
    """The end of tasks of a role on several hosts."""

    shown: dict[str, Any]  #: the variable `shown` of each host that did not fail
    output: str

    def recap(self, host: str) -> dict[str, int]:
        """Counts of a host's results."""
        (line,) = re.findall(rf"^{host} +: (.*)$", self.output, re.MULTILINE)
        return {name: int(count) for name, count in (word.split("=") for word in line.split())}


@pytest.fixture(scope="module")
def role_on_hosts(ansible_in: Any, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Hosts]:
    """Run some tasks of a role once for many cases. Each is a host of this machine with its own variables.

    Further variables win over those of the role, and may be templates of the hosts' own.
    """

    def run(role: str, tasks: list[dict[str, Any]], hosts: Mapping[str, Mapping[str, Any]], **everywhere: Any) -> Hosts:
        folder = tmp_path_factory.mktemp(role)
        fixed = yaml.safe_load((ROOT / f"collection/roles/{role}/vars/main.yml").read_text())
        assert not {name for given in hosts.values() for name in given} & set(fixed), "the role's variables would win"
        shown = "{{ dict(groups.all | map('extract', hostvars) | selectattr('shown', 'defined')"
        shown += " | map(attribute='inventory_hostname') | zip(groups.all | map('extract', hostvars)"
        shown += " | selectattr('shown', 'defined') | map(attribute='shown'))) | to_json }}"
        write = {"ansible.builtin.copy": {"content": shown, "dest": str(folder / "shown.json"), "mode": "0644"}}
        plays = [
            {"hosts": "all", "gather_facts": False, "roles": [str(role_with(folder, role, tasks))]},
            {"hosts": "localhost", "gather_facts": False, "tasks": [write]},
        ]
        (folder / "play.yml").write_text(yaml.safe_dump(plays))
        (folder / "hosts.json").write_text(json.dumps({"all": {"hosts": hosts}}))
        (folder / "everywhere.json").write_text(json.dumps(everywhere))
        command = ("ansible-playbook", "-c", "local", "-i", "hosts.json", "-e", "@everywhere.json", "play.yml")
        done = ansible_in(folder, *command)
        output = done.stdout + done.stderr
        assert (folder / "shown.json").exists(), output
        return Hosts(json.loads((folder / "shown.json").read_text()), output)

    return run


def tasks_of(role: str, name: str) -> list[dict[str, Any]]:
    """The tasks in a file of a role."""
    found: list[dict[str, Any]] = yaml.safe_load((ROOT / f"collection/roles/{role}/tasks/{name}.yml").read_text())
    return found
