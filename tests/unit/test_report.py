# SPDX-License-Identifier: Apache-2.0
"""What a run says when it has ended, and what is shown while it lasts."""

from __future__ import annotations

import io
import json
import os
import pty
import stat
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from hyperpod_lifecycle import __version__, progress, report
from hyperpod_lifecycle.errors import ExitCode, InputError
from hyperpod_lifecycle.events import Events, reason, tidy
from hyperpod_lifecycle.progress import Progress
from hyperpod_lifecycle.report import Concern, FailedTask, Report, Task


def sample() -> Report:
    return Report(
        started="2026-11-30T10:00:00+00:00",
        node="compute-nodes-1",
        node_type="compute",
        cluster="demo",
        seconds=12.34,
        concerns=[
            Concern("platform", seconds=0.5),
            Concern("slurm", seconds=11.8, changed=5, notes=["not registered yet"]),
        ],
        changed_tasks=[Task("slurm", "Start slurmd", "main.yml:3")],
    )


# --- the sentence ---


def test_success_in_one_line() -> None:
    made = sample()
    made.end(ExitCode.OK)
    assert made.sentence() == (
        "hyperpod-lifecycle: compute-nodes-1 (compute): ok: 2 concerns, 5 changed, 12.3 s; slurm: not registered yet"
    )


def test_check_says_that_nothing_was_changed() -> None:
    made = sample()
    made.check = True
    made.concerns.pop()
    made.end(ExitCode.OK)
    assert made.sentence().endswith("ok: check only, 1 concern, 0 would change, 12.3 s")


def test_a_failure_before_the_node_is_known_and_text_of_many_lines() -> None:
    made = Report(started="")
    made.end(ExitCode.INPUT, "first\nsecond\t third", "do this")
    assert made.sentence() == "hyperpod-lifecycle: this node: invalid: first second third; next: do this"


def test_degraded_is_not_an_error() -> None:
    made = sample()
    made.concerns[1].status = "degraded"
    made.failed_tasks = [FailedTask("slurm", "Tune", "main.yml:9", "no signal")]
    made.end(ExitCode.OK)
    assert (made.status, made.exit_code) == ("degraded", 0)
    assert "slurm: Tune: no signal" in made.sentence()


def test_every_exit_code_of_a_run_has_a_status() -> None:
    assert set(report.STATUS) == set(ExitCode) - {ExitCode.USAGE}
    assert len(set(report.STATUS.values())) == len(report.STATUS)


def test_the_table_has_a_line_per_concern() -> None:
    made = sample()
    made.concerns.append(Concern("fsx", status="not_run"))
    assert list(made.table()) == [
        "platform  ok        0.5 s",
        "slurm     ok        11.8 s, 5 changed",
        "fsx       not run",
    ]


# --- the file ---


def test_the_file_has_the_documented_keys_and_comes_back_as_it_was(tmp_path: Path) -> None:
    made = sample()
    made.end(ExitCode.FAILED, "reason", "remedy")
    made.failed_tasks = [FailedTask("slurm", "Start", "main.yml:3", "why")]
    path = tmp_path / "new/report.json"
    made.write(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    content = json.loads(path.read_text())
    assert content["version"] == __version__
    assert {"node", "node_type", "cluster", "started", "seconds", "check", "tags", "status", "exit_code"} < set(content)
    assert set(content["concerns"][0]) == {"name", "status", "seconds", "changed", "failed", "notes"}
    assert set(content["failed_tasks"][0]) == {"concern", "task", "path", "reason"}
    assert asdict(report.read(path)) == asdict(made)


def test_a_report_is_replaced_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "report.json"
    sample().write(path)
    before = path.read_bytes()

    def fail(_: int) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="no space"):
        Report(started="later").write(path)
    assert path.read_bytes() == before
    assert [file.name for file in tmp_path.iterdir()] == ["report.json"]


@pytest.mark.parametrize("content", [None, "", "[]", "{}", '{"concerns": 1, "changed_tasks": [], "failed_tasks": []}'])
def test_no_report_is_an_error_that_says_what_to_do(tmp_path: Path, content: str | None) -> None:
    path = tmp_path / "report.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(InputError, match="hyperpod-lifecycle apply"):
        report.read(path)


# --- reasons ---


@pytest.mark.parametrize(
    ("result", "said"),
    [
        ({"msg": "no such file"}, "no such file"),
        (
            {"msg": "non-zero return code", "rc": 3, "stderr": "one\ntwo\n\nthree\nfour\n"},
            "return code 3 | two | three | four",
        ),
        ({"msg": "non-zero return code", "rc": 3, "stdout": "only here"}, "return code 3 | only here"),
        (
            {"msg": "MODULE FAILURE", "module_stderr": "Trace\nImportError: x"},
            "MODULE FAILURE | Trace | ImportError: x",
        ),
        ({"results": [{"msg": "fine"}, {"failed": True, "msg": "bad"}], "msg": "One or more items failed"}, "bad"),
        ({"results": [{"censored": "hidden"}], "msg": "All items failed"}, "its result is hidden (no_log)"),
        ({"censored": "hidden", "msg": "secret"}, "its result is hidden (no_log)"),
        ({"_ansible_no_log": True, "msg": "secret"}, "its result is hidden (no_log)"),
        ({}, "the module gave no reason"),
        (
            {"msg": "Request failed: <urlopen error timed out>", "url": "http://x/a"},
            "Request failed: <urlopen error timed out>: http://x/a",
        ),
        (
            {"msg": "the checksum of http://x/a did not match", "url": "http://x/a"},
            "the checksum of http://x/a did not match",
        ),
        (
            {"msg": "Request failed", "url": "http://x/a", "response": "HTTP Error 404: Not Found"},
            "Request failed: http://x/a: HTTP Error 404: Not Found",
        ),
    ],
)
def test_the_reason_of_a_failure(result: dict[str, Any], said: str) -> None:
    assert reason(result) == said


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("ERROR! no x\n\nThe error appears to be in '/a/b.yml': line 3, column 1, but may", "no x (/a/b.yml:3)"),
        ("[ERROR]: no module\nOrigin: /a/b.yml:3:1\n\n1 - name", "no module (/a/b.yml:3:1)"),
        (
            "[WARNING]:  * Failed to parse a with b plugin: what\nERROR! Completely failed to parse inventory source a",
            "what",
        ),
        ("[WARNING]: Failed to parse inventory\n\n<<< caused by >>>\n\nwhat\nOrigin: <inventory>", "what"),
        ("see /run/hyperpod-\nlifecycle/x -\nnow", "see /run/hyperpod-lifecycle/x - now"),
        ("plain", "plain"),
    ],
)
def test_ansibles_words_become_part_of_a_sentence(text: str, said: str) -> None:
    assert tidy(text) == said


def test_an_event_that_nobody_expects_breaks_nothing_and_is_kept() -> None:
    events = Events(Progress(io.StringIO(), None), selective=False, verbosity=0, diff=False)
    assert events({"event": "playbook_on_play_start", "event_data": {}}) is False
    assert "KeyError: 'name'" in events.defect
    assert events({"event": "something_new"}) is False
    assert events({}) is False
    assert "KeyError: 'name'" in events.defect, "the first defect is the one to see"


# --- progress ---


def test_a_line_goes_to_screen_and_log_and_text_of_ansible_to_the_screen_only(tmp_path: Path) -> None:
    screen, log = io.StringIO(), tmp_path / "new/log"
    shown = Progress(screen, log)
    shown.say("slurm: ok")
    shown.show("[bold]diff[/bold]")
    shown.live("never on a plain stream")
    shown.close()
    assert screen.getvalue() == "slurm: ok\n[bold]diff[/bold]\n"
    line = log.read_text()
    assert line.endswith(f"[{os.getpid()}] slurm: ok\n")
    assert line.count("\n") == 1
    assert stat.S_IMODE(log.stat().st_mode) == 0o600


def test_a_long_log_makes_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "LOG_LIMIT", 10)
    log = tmp_path / "hyperpod-lifecycle.log"
    for text in ("first and long enough", "second"):
        shown = Progress(io.StringIO(), log)
        shown.say(text)
        shown.close()
    assert "second" in log.read_text()
    assert "first" in (tmp_path / "hyperpod-lifecycle.log.1").read_text()


def test_a_log_that_cannot_be_written_is_reported_and_ends_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    screen = io.StringIO()
    shown = Progress(screen, tmp_path / "file/log")
    shown.say("one")
    shown.say("two")
    assert screen.getvalue() == "one\ntwo\n"
    assert len(shown.faults) == 1


def test_a_reader_that_went_away_ends_nothing() -> None:
    script = (
        "import sys; from hyperpod_lifecycle.progress import Progress; shown = Progress(sys.stdout, None)\n"
        "for number in range(3): shown.say(str(number))\n"
        "print('done', file=sys.stderr)"
    )
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(
        [sys.executable, "-c", script], stdout=writing, stderr=subprocess.PIPE, text=True, check=False, timeout=30
    )
    os.close(writing)
    assert (done.returncode, done.stderr) == (0, "done\n")


def test_a_terminal_has_a_live_line_with_plain_lines_above_it() -> None:
    script = (
        "import sys, time; from hyperpod_lifecycle.progress import Progress; shown = Progress(sys.stdout, None)\n"
        "shown.live('slurm: Start [x]'); time.sleep(0.3); shown.say('platform: ok [y]'); shown.live('slurm: Wait')\n"
        "time.sleep(0.3); shown.close(); print('end')"
    )
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", script], stdout=theirs, stderr=theirs, env={**os.environ, "TERM": "xterm"}
    )
    os.close(theirs)
    output = b""
    try:
        while chunk := os.read(ours, 65536):
            output += chunk
    except OSError:
        pass  # the other end was closed
    assert process.wait(30) == 0
    for text in (b"slurm: Start [x]", b"platform: ok [y]\r\n", b"slurm: Wait", b"end\r\n"):
        assert text in output
