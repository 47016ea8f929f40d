# SPDX-License-Identifier: Apache-2.0
"""Entering a container, with this process in the place of a container's first."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from polling import wait_for

from hyperpod_lab.errors import LabError
from hyperpod_lab.podman import Podman, _began


@pytest.fixture
def podman(tmp_path: Path) -> Podman:
    made = Podman(tmp_path / "containers.conf")
    made._first["here"] = os.getpid(), _began(os.getpid())
    return made


def test_a_command_has_its_own_environment_and_input_and_says_how_it_ended(podman: Podman) -> None:
    done = podman.enter("here", ["sh", "-c", "cat; echo $HOME $MORE; exit 3"], env={"MORE": "yes"}, data=b"given ")
    assert (done.returncode, done.stdout) == (3, b"given /root yes\n")
    assert podman.enter("here", ["cat"]).stdout == b"", "nothing to read"
    assert podman.enter("here", ["sh", "-c", "kill -9 $$"]).returncode == 137
    assert podman.enter("here", ["/no/such/program"]).returncode == 127


def test_a_command_that_takes_too_long_is_ended_with_all_it_started(podman: Podman, tmp_path: Path) -> None:
    started = tmp_path / "started"
    with pytest.raises(LabError, match="took longer than 1 s"):
        podman.enter("here", ["sh", "-c", f"sleep 300 & echo $! >{started}; wait"], timeout=1)
    status = Path("/proc", started.read_text().strip(), "status")
    wait_for(lambda: not status.exists() or "(zombie)" in status.read_text(), "the end of what it started")


def test_another_process_with_the_number_of_a_first_one_is_not_entered(
    podman: Podman, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert podman.is_entered("here")
    asked = []
    monkeypatch.setattr(Podman, "text", lambda self, *words: asked.append(words) or "0")
    podman._first["here"] = os.getpid(), "0"
    with pytest.raises(LabError, match="here does not run"):
        podman.enter("here", ["true"])
    assert asked
