# SPDX-License-Identifier: Apache-2.0
"""What no retry heals ends at once, and no remedy guesses."""

from __future__ import annotations

from email.message import Message
from pathlib import Path
from urllib.error import HTTPError

import pytest
import yaml
from ansible_collections.hyperpod.lifecycle.plugins.module_utils.commands import Fault
from ansible_collections.hyperpod.lifecycle.plugins.module_utils.mariadb import MariaDB
from ansible_collections.hyperpod.lifecycle.plugins.modules import apt_source

ROLES = Path(__file__).parents[2] / "collection/roles"
FILES = sorted(ROLES.glob("*/tasks/*.yml"))


@pytest.mark.parametrize("path", FILES, ids=[str(path.relative_to(ROLES)) for path in FILES])
def test_a_download_that_a_server_refuses_is_not_tried_again(path: Path) -> None:
    for task in yaml.safe_load(path.read_text()):
        if "ansible.builtin.get_url" in task and "until" in task:
            assert f"{task['register']}.status_code | default(0) in [401, 403, 404, 410]" in task["until"]


@pytest.mark.parametrize(("code", "requests"), [(404, 1), (403, 1), (503, 4)])
def test_a_key_that_a_server_refuses_is_not_asked_for_again(
    monkeypatch: pytest.MonkeyPatch, code: int, requests: int
) -> None:
    asked = []

    def refuse(url: str, timeout: float) -> None:
        asked.append(url)
        raise HTTPError(url, code, "no", Message(), None)

    monkeypatch.setattr(apt_source, "open_url", refuse)
    monkeypatch.setattr(apt_source.time, "sleep", lambda seconds: None)
    with pytest.raises(Fault, match=f"https://example.com/key: HTTP Error {code}"):
        apt_source.download("https://example.com/key", 4)
    assert len(asked) == requests


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
