# SPDX-License-Identifier: Apache-2.0
"""Which processes are a run's, and that they end."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
from polling import wait_for

from hyperpod_lifecycle import processes

Start = Callable[..., subprocess.Popen[bytes]]


@pytest.fixture
def start() -> Iterator[Start]:
    started: list[subprocess.Popen[bytes]] = []

    def run(command: str, mark: Path | None, **options: bool) -> subprocess.Popen[bytes]:
        environment = {"PATH": os.defpath} | ({processes.MARK: str(mark)} if mark else {})
        process = subprocess.Popen(["sh", "-c", command], env=environment, **options)  # type: ignore[call-overload]
        started.append(process)
        return process  # type: ignore[no-any-return]

    yield run
    for process in started:
        if process.poll() is None:
            process.kill()
        process.wait()


def alive(file: Path) -> bool:
    """Whether the process that wrote its id into `file` runs."""
    try:
        return Path(f"/proc/{int(file.read_text())}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def written(file: Path) -> bool:
    return file.exists() and bool(file.read_text())


def test_sweep_ends_the_family_and_spares_all_others(tmp_path: Path, start: Start) -> None:
    run_dir = tmp_path / "run"
    mine = start("sleep 60", run_dir / "run-a", start_new_session=True)
    stubborn = start("trap '' TERM HUP INT; sleep 60 & wait", run_dir / "run-b")
    unmarked_child = start(f"env -i sh -c 'echo $$ > {tmp_path}/child; exec sleep 60' & wait", run_dir / "run-c")
    orphan = start(f"setsid sh -c 'echo $$ > {tmp_path}/orphan; exec sleep 60' & exit 0", run_dir / "run-d")
    other = start("sleep 60", tmp_path / "run-of-another/run-a")
    unrelated = start("sleep 60", None)
    for name in ("child", "orphan"):
        wait_for(partial(written, tmp_path / name))
    orphan.wait()

    assert processes.sweep(run_dir) == []

    for process in (mine, stubborn, unmarked_child):
        process.wait(60)  # with whatever status: a shell may see its child killed before it is killed itself
    assert not alive(tmp_path / "child")
    assert not alive(tmp_path / "orphan")
    assert [process.poll() for process in (other, unrelated)] == [None, None]


def test_a_sweep_from_within_a_marked_process_spares_it_and_its_parents(tmp_path: Path) -> None:
    script = (
        "import os, subprocess, sys; from pathlib import Path; from hyperpod_lifecycle import processes; "
        "child = subprocess.Popen(['sleep', '60']); "
        f"print(processes.sweep(Path({str(tmp_path)!r})), child.wait(20))"
    )
    done = subprocess.run(
        ["sh", "-c", '"$0" -c "$1"; echo parent lives', sys.executable, script],
        env={**os.environ, processes.MARK: str(tmp_path / "run-a")},
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.stdout == "[] -9\nparent lives\n", done.stderr


def test_what_does_not_end_is_named(tmp_path: Path, start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    stuck = start("sleep 60", tmp_path / "run-a")
    wait_for(lambda: stuck.pid in processes._family(tmp_path))
    monkeypatch.setattr(os, "kill", lambda pid, number: None)
    assert stuck.pid in processes.sweep(tmp_path, limit=0.1)
    monkeypatch.undo()
    assert processes.sweep(tmp_path) == []
