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

from hyperpod_lifecycle import __version__, causes, events, report
from hyperpod_lifecycle import log as log_module
from hyperpod_lifecycle.errors import ExitCode, InputError
from hyperpod_lifecycle.events import Events, reason, tidy
from hyperpod_lifecycle.progress import Progress
from hyperpod_lifecycle.report import Concern, FailedTask, Report, Task
from hyperpod_lifecycle.selection import Play


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


def test_every_degraded_concern_is_named() -> None:
    made = sample()
    for concern in made.concerns:
        concern.status = "degraded"
    made.failed_tasks = [
        FailedTask("slurm", "Tune", "main.yml:9", "no signal\njournal of tuner:\nstatic"),
        FailedTask("slurm", "Tune again", "main.yml:12", "still none"),
        FailedTask("platform", "Paint", "main.yml:3", "no paint"),
    ]
    made.end(ExitCode.OK)
    assert "; platform: Paint: no paint; slurm: Tune: no signal journal of tuner: static; " in made.sentence()
    assert made.sentence().endswith("next: all required concerns succeeded; see `hyperpod-lifecycle report`")


def test_a_run_is_as_good_as_its_worst_concern_and_names_every_one_that_is_not_ok() -> None:
    made = sample()
    made.concerns[0].status, made.concerns[0].reason = "pending", "no controller answers yet"
    made.concerns[1].status, made.concerns[1].reason = "blocked", "drained by amy: disk"
    made.concerns += [Concern("containers", "degraded"), Concern("homes", "partial"), Concern("fsx", "not_selected")]
    made.failed_tasks = [FailedTask("containers", "Tune", "main.yml:9", "no signal")]
    made.end(ExitCode.OK)
    assert (made.status, made.exit_code) == ("blocked", 0)
    reasons = "; slurm: drained by amy: disk; containers: Tune: no signal; platform: no controller answers yet; "
    assert reasons in made.sentence()
    assert made.sentence().endswith("next: once the cause is gone: hyperpod-lifecycle apply")
    made.concerns[1].status, made.concerns[2].status = "ok", "ok"
    made.end(ExitCode.OK)
    assert (made.status, made.reason) == ("pending", "platform: no controller answers yet")
    made.end(ExitCode.FAILED, "fsx: Mount: no")
    assert (made.status, made.reason) == ("failed", "fsx: Mount: no")


def test_the_last_line_has_at_most_400_characters_and_what_it_leaves_out_is_known() -> None:
    made = sample()
    why = f"slurm: Start slurmd: it does not start {'x' * 900} the cause"
    made.notes = [f"note {number}: {'y' * 50}" for number in range(9)]
    made.end(ExitCode.FAILED, why, "fix the cause, then run it again: hyperpod-lifecycle apply --tags slurm")
    line = made.sentence()
    assert len(line) <= 400
    assert "slurm: Start slurmd: it does not start xxx" in line
    assert "xxx the cause; " in line
    assert line.endswith("; next: fix the cause, then run it again: hyperpod-lifecycle apply --tags slurm")
    assert made.left_out() == [why, "slurm: not registered yet", *made.notes]

    made.end(ExitCode.FAILED, "slurm: Start slurmd: no")
    line = made.sentence()
    assert len(line) <= 400
    assert "; slurm: not registered yet; note 0: y" in line
    assert line.endswith(" more in `hyperpod-lifecycle report`")
    assert len(made.left_out()) + line.count("note ") == 9


def test_the_last_line_keeps_the_cause_before_a_tasks_name_and_a_second_call_to_run_again() -> None:
    made = sample()
    again = "hyperpod-lifecycle apply --tags fsx"
    where = "/home: fs-87654321e90d01abc.fsx.us-west-2.amazonaws.com:/fsx cannot be used after 20 s"
    why = f"{where}: writing to it: Read-only file system; check the mount options, then run again: {again}"
    task = FailedTask("fsx", "Mount file systems and wait until they can be written", "main.yml:1", why)
    made.failed_tasks = [task]
    log = "/var/log/provision/ansible.log"
    made.end(ExitCode.FAILED, str(task), f"fix the cause (log: {log}), then run it again: {again} --tags homes")
    line = made.sentence()
    assert len(line) <= 400
    assert f"fsx: {where}: writing to it: Read-only file system; check the mount options; " in line
    assert str(task) in made.left_out()


def test_a_command_that_is_too_long_for_the_last_line_stays_whole_above_it() -> None:
    made = sample()
    made.concerns.pop()
    remedy = f"run it again: hyperpod-lifecycle apply {' '.join(f'-e a_setting_{number}=1' for number in range(30))}"
    made.end(ExitCode.FAILED, "slurm: Start slurmd: no", remedy)
    assert made.sentence().endswith("; next: see the line above")
    assert made.left_out() == [f"next: {remedy}"]


def test_a_concern_that_is_off_does_not_count_as_one_that_ran() -> None:
    made = sample()
    made.concerns.append(Concern("observability", "off", 0.2))
    made.end(ExitCode.OK)
    assert "ok: 2 concerns, 5 changed" in made.sentence()
    assert list(made.table())[-1] == "observability  off"


def test_a_run_that_has_not_ended_is_neither_good_nor_bad() -> None:
    made = Report(started="2026-11-30T10:00:00+00:00", node="n-1", node_type="compute")
    assert (made.status, made.exit_code) == ("unfinished", None)
    assert made.sentence() == "hyperpod-lifecycle: n-1 (compute): unfinished: started 2026-11-30T10:00:00+00:00"


def test_every_exit_code_of_a_run_has_a_status() -> None:
    assert set(report.STATUS) == set(ExitCode) - {ExitCode.USAGE}
    assert len(set(report.STATUS.values())) == len(report.STATUS)


def test_the_table_has_a_line_per_concern() -> None:
    made = sample()
    made.concerns.append(Concern("fsx", status="not_run"))
    assert list(made.table()) == [
        "platform  ok       0.5 s",
        "slurm     ok       11.8 s, 5 changed",
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
    assert set(content["concerns"][0]) == {"name", "status", "seconds", "changed", "failed", "reason", "notes"}
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
        (
            {"msg": "Request failed: <urlopen error timed out>", "url": "https://me:secret@x/a?X-Amz-Signature=secret"},
            "Request failed: <urlopen error timed out>: https://x/a",
        ),
        (
            {"msg": "The checksum for /tmp/a did not match 1; it was 2.", "url": "http://x/a"},
            "The checksum for /tmp/a did not match 1; it was 2.: http://x/a",
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


def folded(*results: tuple[str, dict[str, Any]], **options: Any) -> tuple[Events, str]:
    """Events of one play, with a task for each of `results`, and what was shown."""
    screen = io.StringIO()
    made = Events(Progress(screen, None), **options)
    made({"event": "playbook_on_play_start", "event_data": {"name": "slurm"}})
    for kind, result in results:
        action = result.pop("action", "command")
        made({"event": "playbook_on_task_start", "event_data": {"task": "Start", "task_action": action}})
        data = {"res": result, "task_action": action}
        made({"event": f"runner_on_{kind}", "event_data": data, "stdout": result.get("shown", "")})
    made({"event": "playbook_on_stats", "event_data": {"processed": {"n": 1}}})
    assert made.defect == ""
    return made, screen.getvalue()


def test_a_journal_is_quoted_as_lines() -> None:
    message = "systemctl start slurmd: Job failed\nbadly; journal of slurmd:\nfirst\n  error: no gres\n"
    made, shown = folded(("failed", {"msg": message}))
    reason = "systemctl start slurmd: Job failed badly\njournal of slurmd:\nfirst\n  error: no gres"
    assert [task.reason for task in made.failed_tasks] == [reason]
    assert shown.splitlines()[1:5] == [
        "slurm: failed: Start: systemctl start slurmd: Job failed badly",
        "    journal of slurmd:",
        "    first",
        "      error: no gres",
    ]


def test_a_failure_that_the_verdict_repeats_is_one_failure() -> None:
    first = {"msg": "Request failed", "url": "http://x/a", "response": "HTTP Error 404: Not Found"}
    verdict = {"action": "hyperpod.lifecycle.verdict", "msg": "Start: Request failed: http://x/a"}
    made, shown = folded(("failed", first), ("failed", verdict))
    assert [task.reason for task in made.failed_tasks] == ["Request failed: http://x/a: HTTP Error 404: Not Found"]
    assert shown.count("Request failed") == 1


def test_a_task_declares_a_verdict_which_none_better_replaces() -> None:
    def declares(status: str, reason: str = "") -> tuple[str, dict[str, Any]]:
        verdict = {"status": status, "reason": reason}
        return "ok", {"action": "hyperpod.lifecycle.verdict", "verdict": verdict}

    made, shown = folded(declares("blocked", "drained"), declares("pending", "later"), declares("ok"))
    assert [(concern.status, concern.reason) for concern in made.concerns] == [("blocked", "drained")]
    assert "slurm: blocked: drained" in shown
    made, _shown = folded(declares("blocked", "drained"), ("failed", {"msg": "no"}))
    assert made.concerns[0].status == "degraded"  # the statistics are missing here; else failed
    made, _shown = folded(declares("ok"))
    assert made.concerns[0].status == "ok"


def play(name: str, **options: Any) -> Play:
    facts: dict[str, Any] = {
        "hosts": (),
        "matches": True,
        "off": (),
        "tags": frozenset({name}),
        "task_tags": frozenset(),
    }
    return Play(name, **(facts | options))


def test_a_concern_whose_switch_is_off_is_off_and_does_not_start() -> None:
    off = play("slurm", off=("slurm_enabled",))
    made, shown = folded(("skipped", {}), plays=lambda: [play("fsx"), off])
    assert [concern.status for concern in made.concerns] == ["off"]
    assert shown.startswith("slurm: off: ")
    made, shown = folded(("failed", {"msg": "it cannot be removed"}), plays=lambda: [off])
    assert [concern.status for concern in made.concerns] == ["degraded"]
    made, shown = folded(("skipped", {}), ("ok", {}), plays=lambda: [play("slurm")])
    assert [concern.status for concern in made.concerns] == ["ok"]
    assert shown.startswith("slurm: started\nslurm: ok: ")


def test_a_long_task_tells_that_its_concern_has_started_and_then_that_it_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = [1000.0]
    monkeypatch.setattr(events.time, "monotonic", lambda: now[0])
    screen = io.StringIO()
    made = Events(Progress(screen, None))
    made({"event": "playbook_on_play_start", "event_data": {"name": "slurm"}})
    made({"event": "playbook_on_task_start", "event_data": {"task": "Wait", "task_action": "command"}})
    for _ in range(700):
        made.alive()
        now[0] += 0.1
    assert screen.getvalue().splitlines() == [
        "slurm: started",
        "slurm: Wait: running for 31 s",
        "slurm: Wait: running for 61 s",
    ]


def test_all_that_ansible_prints_is_kept(tmp_path: Path) -> None:
    transcript = log_module.Log(tmp_path / "log/ansible.log")
    shown = "fatal: [n]: FAILED! => {\n  the whole result\n}"
    folded(("failed", {"msg": "no", "shown": shown}), transcript=transcript)
    transcript.close()
    assert shown in transcript.path.read_text()
    assert stat.S_IMODE(transcript.path.stat().st_mode) == 0o600


# --- causes ---

SILENT = "Module result deserialization failed: No start of json char found"


def test_a_full_disk_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(causes, "full_disks", lambda: ["/var"])
    result = {"msg": SILENT, "module_stderr": "Traceback\nOSError: [Errno 28] No space left on device: '/var/x'\n"}
    made, _ = folded(("failed", result))
    assert made.failed_tasks[0].reason.startswith(f"no space left on /var: {SILENT} | ")


def test_no_memory_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(causes, "VMSTAT", tmp_path / "vmstat")
    causes.VMSTAT.write_text("pgfault 1\noom_kill 4\n")
    assert causes.explain("MemoryError") == "out of memory"
    made = Events(Progress(io.StringIO(), None))
    made({"event": "playbook_on_play_start", "event_data": {"name": "slurm"}})
    made({"event": "playbook_on_task_start", "event_data": {"task": "Build", "task_action": "command"}})
    killed = {"event": "runner_on_failed", "event_data": {"res": {"msg": SILENT, "rc": 137}}}
    made(killed)
    causes.VMSTAT.write_text("pgfault 1\noom_kill 5\n")
    made(killed)
    made({"event": "runner_on_failed", "event_data": {"res": {"msg": "no such file", "rc": 1}}})
    reasons = [task.reason for task in made.failed_tasks]
    assert reasons[0] == SILENT
    assert reasons[1].startswith("out of memory: the kernel has killed a process during this run (journalctl -k): ")
    assert reasons[2] == "no such file"


def test_an_immutable_file_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "slurm.conf"
    file.touch()
    text = f"[Errno 1] Operation not permitted: '{file}'"
    assert causes.explain(text) == ""
    monkeypatch.setattr(causes, "file_flags", lambda path: 0x10 if path == file else 0)
    assert causes.explain(text) == f"{file} is immutable (chattr -ia {file})"


def test_the_flags_of_a_file_are_read(tmp_path: Path) -> None:
    file = tmp_path / "slurm.conf"
    assert causes.file_flags(file) == 0
    file.touch()
    before = causes.file_flags(file)
    subprocess.run(["chattr", "+d", file], check=True)  # as +i, and it needs no root
    assert causes.file_flags(file) == before | 0x40


def test_a_disk_with_room_is_not_full(tmp_path: Path) -> None:
    assert not causes.is_full(tmp_path)
    assert "/proc" not in causes.full_disks()


def test_an_event_that_nobody_expects_breaks_nothing_and_is_kept() -> None:
    events = Events(Progress(io.StringIO(), None))
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


def test_a_log_is_bounded_within_a_run_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_module, "LIMIT", 1000)
    log = log_module.Log(tmp_path / "ansible.log")
    for number in range(100):
        log.write(f"line {number} {'x' * 5000} end {number}")
    log.close()
    assert {path.name for path in tmp_path.iterdir()} == {"ansible.log", "ansible.log.1"}
    assert all(path.stat().st_size < 2000 for path in tmp_path.iterdir())
    text = log.path.read_text()
    assert "line 99 x" in text
    assert "x end 99" in text
    assert " characters left out " in text


def test_a_long_log_makes_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_module, "LIMIT", 100)
    log = tmp_path / "hyperpod-lifecycle.log"
    for text in ("first", "more", "more", "second"):
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
    assert "file/log cannot be written: " in shown.fault


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
