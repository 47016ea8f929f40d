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


def test_the_family_ends_and_all_others_are_spared(tmp_path: Path, start: Start) -> None:
    run_dir = tmp_path / "run"
    for name in "abcd":
        (run_dir / f"run-{name}").mkdir(parents=True)
    mine = start("sleep 60", run_dir / "run-a", start_new_session=True)
    stubborn = start("trap '' TERM HUP INT; sleep 60 & wait", run_dir / "run-b")
    unmarked_child = start(f"env -i sh -c 'echo $$ > {tmp_path}/child; exec sleep 60' & wait", run_dir / "run-c")
    orphan = start(f"setsid sh -c 'echo $$ > {tmp_path}/orphan; exec sleep 60' & exit 0", run_dir / "run-d")
    other = start("sleep 60", tmp_path / "run-of-another/run-a")
    ended = start("sleep 60", run_dir / "run-e")  # its run has ended and left it running
    unrelated = start("sleep 60", None)
    for name in ("child", "orphan"):
        wait_for(partial(written, tmp_path / name))
    orphan.wait()

    assert processes.end(run_dir, grace=0.5) == []

    for process in (mine, stubborn, unmarked_child):
        process.wait(60)  # with whatever status: a shell may see its child killed before it is killed itself
    assert not alive(tmp_path / "child")
    assert not alive(tmp_path / "orphan")
    assert [process.poll() for process in (other, ended, unrelated)] == [None] * 3


def test_from_within_a_marked_process_it_is_spared_and_its_parents(tmp_path: Path) -> None:
    (tmp_path / "run-a").mkdir()
    script = (
        "import os, subprocess, sys; from pathlib import Path; from hyperpod_lifecycle import processes; "
        "child = subprocess.Popen(['sleep', '60']); "
        f"print(processes.end(Path({str(tmp_path)!r})), child.wait(20))"
    )
    done = subprocess.run(
        ["sh", "-c", '"$0" -c "$1"; echo parent lives', sys.executable, script],
        env={**os.environ, processes.MARK: str(tmp_path / "run-a")},
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.stdout == "[] -15\nparent lives\n", done.stderr


def test_what_does_not_end_is_named(tmp_path: Path, start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "run-a").mkdir()
    stuck = start("sleep 60", tmp_path / "run-a")
    wait_for(lambda: stuck.pid in processes.family(tmp_path))
    monkeypatch.setattr(os, "kill", lambda pid, number: None)
    assert stuck.pid in processes.end(tmp_path, grace=0, limit=0.1)
    monkeypatch.undo()
    assert processes.end(tmp_path) == []


@pytest.mark.parametrize("ends", [True, False])
def test_sigterm_comes_first_and_sigkill_after_the_grace(tmp_path: Path, start: Start, ends: bool) -> None:
    (tmp_path / "run-a").mkdir()
    end = f"echo cleaned >{tmp_path}/cleaned; exit 0" if ends else ""
    # The signal may end sleep before the shell, which must not end for that.
    process = start(f"trap '{end}' TERM; echo yes >{tmp_path}/ready; while :; do sleep 0.05; done", tmp_path / "run-a")
    wait_for(partial(written, tmp_path / "ready"))
    assert processes.end(tmp_path, grace=30 if ends else 0.5) == []
    assert process.wait(5) == (0 if ends else -9)
    assert (tmp_path / "cleaned").exists() == ends


def test_a_stopped_process_takes_the_grace_too(tmp_path: Path, start: Start) -> None:
    (tmp_path / "run-a").mkdir()
    process = start("kill -STOP $$; sleep 60", tmp_path / "run-a")
    stat = Path(f"/proc/{process.pid}/stat")
    wait_for(lambda: stat.read_text().rpartition(")")[2].split()[0] == "T")
    assert processes.end(tmp_path, grace=30) == []
    assert process.wait(5) == -15


def test_what_left_the_mark_and_the_family_is_found_by_the_scope(
    tmp_path: Path, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`/proc/PID/cgroup` is made here as systemd makes it; that Ansible really runs in a scope is seen in the lab."""
    (tmp_path / "run/run-a").mkdir(parents=True)
    daemon = start("sleep 60", None)
    proc = tmp_path / "proc"
    for pid in (daemon.pid, os.getpid()):
        (proc / str(pid)).mkdir(parents=True)
        (proc / str(pid) / "stat").write_text(f"{pid} (x) S 1 0")
        (proc / str(pid) / "environ").write_bytes(b"PATH=/bin\0")
        (proc / str(pid) / "cgroup").write_text("0::/system.slice/agent.service\n")
        (proc / str(pid) / "ns").symlink_to("/proc/self/ns")
    (proc / "self").symlink_to(str(os.getpid()))
    monkeypatch.setattr(processes, "PROC", proc)
    assert processes.family(tmp_path / "run") == {}
    (proc / str(daemon.pid) / "cgroup").write_text("0::/system.slice/hyperpod-lifecycle-run-a.scope\n")
    assert set(processes.family(tmp_path / "run")) == {daemon.pid}


def test_a_scope_only_where_systemd_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "systemd-run"
    program.touch(mode=0o755)
    monkeypatch.setattr(processes, "SYSTEMD", tmp_path / "no")
    assert processes.in_scope(Path("/run/x/run-a"), str(tmp_path)) == []
    monkeypatch.setattr(processes, "SYSTEMD", tmp_path)
    assert processes.in_scope(Path("/run/x/run-a"), str(tmp_path)) == [
        *(str(program), "--scope", "--quiet", "--collect", "--unit=hyperpod-lifecycle-run-a.scope", "--")
    ]
