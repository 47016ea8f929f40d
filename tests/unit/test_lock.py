# SPDX-License-Identifier: Apache-2.0
"""One run at a time, and the kernel frees the lock of a killed one."""

from __future__ import annotations

import fcntl
import json
import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from hyperpod_lifecycle import lock

#: Holds the lock until its standard input ends.
HOLDER = """
import sys
from pathlib import Path
from hyperpod_lifecycle import lock
with lock.hold(Path(sys.argv[1]), "the other command", 0, print):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "run/lock"


@pytest.fixture
def holder(path: Path) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-c", HOLDER, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        assert process.stdout.readline() == "held\n"
        yield process
        process.kill()


def test_it_says_who_holds_it_and_only_root_may_look(path: Path) -> None:
    with lock.hold(path, "a command", 0, pytest.fail):
        content = json.loads(path.read_text())
        assert (content["pid"], content["command"]) == (os.getpid(), "a command")
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert path.read_text() == ""


def test_a_second_one_waits_no_longer_than_told(path: Path, holder: subprocess.Popen[str]) -> None:
    said: list[str] = []
    with pytest.raises(lock.LockedError, match=rf"pid {holder.pid} since 20.*, the other command"):  # noqa: SIM117
        with lock.hold(path, "mine", 0.5, said.append):
            pytest.fail("it is not ours")
    assert len(said) == 1
    assert said[0].startswith("waiting up to 0.5 s for another run: pid ")


def test_a_second_one_goes_on_when_the_first_has_ended(path: Path, holder: subprocess.Popen[str]) -> None:
    def say(_waits: str) -> None:
        holder.communicate()

    with lock.hold(path, "mine", 60, say):
        assert json.loads(path.read_text())["command"] == "mine"


def test_a_killed_holder_holds_nothing(path: Path, holder: subprocess.Popen[str]) -> None:
    holder.kill()
    holder.wait()
    with lock.hold(path, "mine", 0, pytest.fail):
        assert json.loads(path.read_text())["pid"] == os.getpid()


def test_a_child_does_not_inherit_it(path: Path) -> None:
    with lock.hold(path, "mine", 0, pytest.fail):
        child = subprocess.Popen(["sleep", "60"])
    try:
        with lock.hold(path, "mine", 0, pytest.fail):
            assert child.poll() is None
    finally:
        child.kill()
        child.wait()


def test_on_create_hands_its_lock_over(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path.parent.mkdir()
    with path.open("w+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        os.set_inheritable(file.fileno(), True)
        monkeypatch.setenv(lock.HANDED_OVER, str(file.fileno()))
        handed_over = os.dup(file.fileno())  # the run closes its own
        with lock.hold(path, "mine", 0, pytest.fail):
            assert json.loads(path.read_text())["command"] == "mine"
            assert not os.get_inheritable(file.fileno())
            assert lock.HANDED_OVER not in os.environ
            with pytest.raises(lock.LockedError), lock.hold(path, "another", 0, pytest.fail):
                pytest.fail("it is not theirs")
        os.dup2(handed_over, file.fileno())
        os.close(handed_over)


@pytest.mark.parametrize("content", ["", "{", "[]", '{"pid": 1}'])
def test_a_holder_that_has_not_written_its_name_yet(path: Path, content: str) -> None:
    path.parent.mkdir()
    path.write_text(content)
    assert lock.holder(path) == "a run that is just starting"
