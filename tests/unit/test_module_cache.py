# SPDX-License-Identifier: Apache-2.0
"""Packed modules are there for the next run, and only as long as nothing they are made of has changed."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import ROOT

from hyperpod_lifecycle.in_ansible import module_cache
from hyperpod_lifecycle.question import PROGRAM

PLAY = """
- hosts: muscle-2
  gather_facts: false
  tasks: [{ansible.builtin.command: {argv: [echo, hello]}}]
"""


@pytest.fixture
def packs(
    ansible: Callable[..., Any], source: Callable[..., Path], tmp_path: Path
) -> Callable[[Path], tuple[bool, bool]]:
    """Run a play; whether it packed its module, and whether it took a packed one."""
    playbook = tmp_path / "play.yml"
    playbook.write_text(PLAY)

    def run(folder: Path) -> tuple[bool, bool]:
        program = [*PROGRAM, tmp_path / "answer.json", folder, "-i", source(node="muscle-2"), playbook]
        done = ansible(*program, environment={"ANSIBLE_DEBUG": "1", "PACKED_MODULES": "/dev/null"})
        assert done.returncode == 0, done.stdout + done.stderr
        return "ANSIBALLZ: Creating module" in done.stdout, "ANSIBALLZ: using cached module" in done.stdout

    return run


def test_a_module_is_packed_once(packs: Callable[[Path], tuple[bool, bool]], tmp_path: Path) -> None:
    folder = tmp_path / "run/modules"
    assert packs(folder) == (True, False)
    assert packs(folder) == (False, True)
    (kept,) = folder.iterdir()
    assert kept.stat().st_mode & 0o777 == 0o700
    (folder / "of-modules-before").mkdir()
    packs(folder)
    assert list(folder.iterdir()) == [kept]


def test_a_folder_that_cannot_be_used_costs_time_only(
    packs: Callable[[Path], tuple[bool, bool]], tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    assert packs(tmp_path / "file/modules") == (True, False)


def test_whatever_is_edited_is_packed_again(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    copy = tmp_path / "collection"
    shutil.copytree(ROOT / "collection/plugins", copy)
    monkeypatch.setattr(module_cache, "plugins", lambda: copy)
    seen = [module_cache.fingerprint()]
    assert module_cache.fingerprint() == seen[0]
    module, util = copy / "modules/slurm_conf_wait.py", copy / "module_utils/slurm.py"
    module.write_text(module.read_text() + "#")
    seen.append(module_cache.fingerprint())
    os.utime(util, (1, 1))
    seen.append(module_cache.fingerprint())
    util.rename(util.with_name("slurms.py"))
    seen.append(module_cache.fingerprint())
    assert len(set(seen)) == 4
