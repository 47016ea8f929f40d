# SPDX-License-Identifier: Apache-2.0
"""What no retry heals ends at once, and no remedy guesses."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
import yaml
from ansible_collections.hyperpod.lifecycle.plugins.module_utils import mounts
from ansible_collections.hyperpod.lifecycle.plugins.module_utils.commands import Fault
from ansible_collections.hyperpod.lifecycle.plugins.module_utils.mariadb import MariaDB
from ansible_collections.hyperpod.lifecycle.plugins.modules import shared_folder_verify

FOLDER = {"user": "root", "trusted": True, "wait_seconds": 1000}

ROLES = Path(__file__).parents[2] / "collection/roles"
FILES = sorted(ROLES.glob("*/tasks/*.yml"))


@pytest.mark.parametrize("path", FILES, ids=[str(path.relative_to(ROLES)) for path in FILES])
def test_a_download_that_a_server_refuses_is_not_tried_again(path: Path) -> None:
    tasks = yaml.safe_load(path.read_text())
    for task in tasks + [inner for each in tasks for inner in each.get("block", [])]:
        if "ansible.builtin.get_url" in task and "until" in task:
            assert f"{task['register']}.status_code | default(0) in [401, 403, 404, 410]" in task["until"]
            assert "random" in str(task["delay"]), "all nodes of a cluster would come back at one moment"


@pytest.mark.parametrize(
    ("said", "remedy"),
    [
        ("Connection refused", "Nothing listens there"),
        ("timed out", "security group"),
        ("Name or service not known", "host and port"),
    ],
)
def test_why_a_database_does_not_answer(said: str, remedy: str) -> None:
    server = MariaDB({"host": "db.example", "port": 3306, "socket": "", "user": "slurm", "password_file": ""})
    text = server.silence(5, ConnectionError(said))
    assert remedy in text
    assert ("security group" in text) is (remedy == "security group")


@pytest.mark.parametrize(
    ("number", "attempts"), [(errno.EACCES, 1), (errno.EROFS, 1), (errno.ENOSPC, 1), (errno.ENOLCK, 1), (errno.EIO, 4)]
)
def test_a_shared_folder_is_tried_again_only_where_that_may_help(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, attempts: int
) -> None:
    answers = [OSError(number, os.strerror(number))] * 3 + [OSError(errno.EACCES, "then")]
    asked = []

    def limited(function: object, seconds: float) -> None:
        asked.append(seconds)
        raise answers[len(asked) - 1]

    monkeypatch.setattr(shared_folder_verify, "limited", limited)
    monkeypatch.setattr(shared_folder_verify, "pause", lambda seconds: None)
    with pytest.raises(OSError, match="then" if attempts > 1 else os.strerror(number)):
        shared_folder_verify.usable({**FOLDER, "path": str(tmp_path)}, False)
    assert len(asked) == attempts


def test_a_folder_with_locks_that_do_not_hold_is_no_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mount = mounts.Mount(1, 0, "/", "/", "ext4", "/dev/a", [])
    monkeypatch.setattr(shared_folder_verify, "judge", lambda path, trusted: mount)
    monkeypatch.setattr(shared_folder_verify, "probe", lambda *_: "two processes get one lock there")
    with pytest.raises(Fault, match="two processes"):
        shared_folder_verify.usable({**FOLDER, "path": str(tmp_path)}, False)
