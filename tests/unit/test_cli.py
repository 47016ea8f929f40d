# SPDX-License-Identifier: Apache-2.0
"""The command line: options reach their module, output and exit codes are those documented."""

from __future__ import annotations

import hashlib
import json
import os
import pwd
import shlex
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from conftest import BASELINE, ROOT
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hyperpod_lifecycle import __version__, cli, environment, lock, run
from hyperpod_lifecycle.errors import ExitCode, InputError, Problem
from hyperpod_lifecycle.options import Options, Site
from hyperpod_lifecycle.paths import Paths
from hyperpod_lifecycle.question import Answer
from hyperpod_lifecycle.report import Concern, Report
from hyperpod_lifecycle.selection import Play

FILES = (
    "--resource-config",
    str(BASELINE / "resource_config.json"),
    "--provisioning-parameters",
    str(BASELINE / "provisioning_parameters.json"),
)


@dataclass
class Result:
    code: int
    out: str
    err: str


Command = Callable[..., Result]


@pytest.fixture
def paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Paths:
    made = Paths(*(tmp_path / name for name in ("log", "run", "etc", "platform")))
    monkeypatch.setattr(cli, "Paths", lambda: made)
    return made


@pytest.fixture
def command(paths: Paths, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    def call(*arguments: str) -> Result:
        monkeypatch.setattr(sys, "argv", ["hyperpod-lifecycle", *arguments])
        monkeypatch.setattr(cli.app, "registered_commands", list(cli.app.registered_commands))
        monkeypatch.setattr(cli.app, "registered_groups", list(cli.app.registered_groups))
        with pytest.raises(SystemExit) as ended:
            cli.main()
        captured = capsys.readouterr()
        return Result(int(ended.value.code or 0), captured.out, captured.err)

    return call


@pytest.fixture
def applied(monkeypatch: pytest.MonkeyPatch) -> list[Options]:
    """The options of each `apply`; the run itself is left out, since it would configure this machine."""
    asked: list[Options] = []

    def fake(options: Options, progress: Any, paths: Paths, site: Site) -> Report:
        asked.append(options)
        progress.say("slurm: ok")
        made = Report(started="2026-11-30T10:00:00+00:00", node="n-1", node_type="compute")
        made.end(*((ExitCode.TIMEOUT, "slurm: Wait", "try again") if options.timeout == 1 else (ExitCode.OK,)))
        made.summary = made.sentence()
        return made

    monkeypatch.setattr(run, "apply", fake)
    return asked


def test_apply_hands_on_every_option(command: Command, applied: list[Options]) -> None:
    words = "--tags slurm,verify --tags install --skip-tags fsx --check --diff -vv --connection local"
    words += " -e a_enabled=false --extra-vars a_count=3"
    result = command("apply", *words.split(), "--timeout", "9", "--lock-wait", "2", *FILES, "--inventory", "there")
    assert result.code == 0
    assert applied == [
        Options(
            tags=("slurm", "verify", "install"),
            skip_tags=("fsx",),
            extra_vars={"a_enabled": False, "a_count": 3},
            extra_words=("-e", "a_enabled=…", "-e", "a_count=…"),
            check=True,
            diff=True,
            verbosity=2,
            connection="local",
            timeout=9,
            lock_wait=2,
            resource_config=BASELINE / "resource_config.json",
            provisioning_parameters=BASELINE / "provisioning_parameters.json",
            inventory=Path("there"),
        )
    ]


def test_the_defaults_of_the_command_are_those_of_the_run(command: Command, applied: list[Options]) -> None:
    command("apply")
    assert applied == [Options()]


def test_the_last_line_is_the_sentence_and_the_exit_code_that_of_the_report(
    command: Command, applied: list[Options]
) -> None:
    good = command("apply")
    assert good.out.splitlines()[-1].startswith("hyperpod-lifecycle: n-1 (compute): ok: ")
    bad = command("apply", "--timeout", "1")
    assert bad.code == ExitCode.TIMEOUT
    assert bad.err == "hyperpod-lifecycle: n-1 (compute): timeout: slurm: Wait; next: try again\n"


def test_json_is_alone_on_standard_output(command: Command, applied: list[Options]) -> None:
    result = command("apply", "--json")
    assert json.loads(result.out)["node"] == "n-1"
    assert result.err.splitlines()[0] == "slurm: ok"
    assert result.err.splitlines()[-1].startswith("hyperpod-lifecycle: n-1")


@pytest.mark.parametrize(
    "arguments",
    [
        ["nope"],
        ["apply", "--nope"],
        ["apply", "--timeout", "0"],
        ["apply", "--connection", "ssh"],
        ["bundle"],
        *(["apply", option, value] for option in ("--timeout", "--lock-wait") for value in ("nan", "inf", "-inf")),
        *(["apply", option, value] for option in ("--tags", "--skip-tags") for value in ("", ",", " ,")),
        ["apply", "--tags", "slurm", "--tags="],
        *(
            [name, option, ""]
            for name in ("apply", "plan", "report")
            for option in ("--inventory", "--resource-config")
        ),
        ["plan", "--node", ""],
        ["backup", ""],
        ["restore", ""],
        ["bundle", ""],
        ["bundle", "there", "--python", "abc"],
        ["bundle", "there", "--python", "3.12.1"],
        ["bundle", "there", "--machine", "vax"],
        ["bundle", "there", "--site", "/no/such/place"],
    ],
)
def test_a_wrong_command_line_is_a_usage_error(command: Command, applied: list[Options], arguments: list[str]) -> None:
    result = command(*arguments)
    assert (result.code, result.out) == (ExitCode.USAGE, "")
    assert "Traceback" not in result.err
    assert applied == []


def test_plan_in_words_and_in_json(command: Command) -> None:
    document = json.loads((BASELINE / "resource_config.json").read_text())
    name = next(i["InstanceName"] for g in document["InstanceGroups"] for i in g["Instances"] or ())
    words = command("plan", "--node", name, *FILES)
    assert words.code == 0, words.err
    assert words.out.startswith(f"{name}: ")
    assert "platform" in words.out
    made = json.loads(command("plan", "--node", name, "--json", *FILES).out)
    assert made["node"] == name
    assert {"node_type", "cluster", "concerns"} < set(made)
    assert [concern["runs"] for concern in made["concerns"] if concern["name"] == "platform"] == [True]


def test_plan_of_an_unknown_node_names_the_known_ones(command: Command) -> None:
    result = command("plan", "--node", "nobody", *FILES)
    assert (result.code, result.out) == (ExitCode.INPUT, "")
    assert "Known instances" in result.err


@pytest.mark.parametrize("option", ["--resource-config", "--provisioning-parameters", "--inventory"])
@pytest.mark.parametrize("name", ["plan", "apply"])
def test_a_file_that_is_not_there(
    paths: Paths, command: Command, monkeypatch: pytest.MonkeyPatch, name: str, option: str
) -> None:
    result = command(name, *FILES, option, "/no/such/place")
    assert result.code == ExitCode.INPUT
    assert "/no/such/place" in result.err.splitlines()[-1]


def test_report_shows_the_last_run_and_what_changed_since(paths: Paths, command: Command) -> None:
    assert command("report").code == ExitCode.INPUT
    last = Report(started="2026-11-30T10:00:00+00:00", concerns=[Concern("slurm", seconds=1.5)])
    paths.platform_dir.mkdir()
    config = paths.platform_dir / "resource_config.json"
    config.write_text("{}")
    last.inputs = {str(config): "another digest"}
    last.summary = "the sentence"
    last.write(paths.report_file)
    shown = command("report", "--inventory", str(ROOT / "inventory"))
    assert shown.code == 0
    assert shown.out.splitlines()[0] == "slurm  ok  1.5 s"
    assert f"note: {config} has changed since that run" in shown.out
    assert shown.out.splitlines()[-1] == "2026-11-30T10:00:00+00:00: the sentence"
    assert command("report", "--json").out == paths.report_file.read_text()


def test_report_says_what_a_partial_run_left_out(paths: Paths, command: Command) -> None:
    concerns = [Concern("slurm", "partial", 1.5), Concern("fsx", "not_selected"), Concern("homes", "not_run")]
    last = Report(started="2026-11-30T10:00:00+00:00", tags=["install"], concerns=concerns)
    last.end(ExitCode.OK)
    last.summary = last.sentence()
    last.write(paths.report_file)
    shown = command("report").out.splitlines()
    assert shown[:4] == [
        "slurm  partial       1.5 s",
        "fsx    not selected",
        "homes  not run",
        "only a part was asked for: --tags install",
    ]
    assert shown[-1].endswith(": ok: 1 concern, 0 changed, 0.0 s, only --tags install")


def test_report_of_a_run_that_has_not_ended_says_whether_it_still_goes_on(paths: Paths, command: Command) -> None:
    Report(started="2026-11-30T10:00:00+00:00", summary="x").write(paths.report_file)
    assert "the run that began at 2026-11-30T10:00:00+00:00 was killed: run it again" in command("report").out
    with lock.hold(paths.lock_file, "another", 0, pytest.fail):
        assert "the run that began at 2026-11-30T10:00:00+00:00 is still running" in command("report").out


def test_report_of_a_run_whose_files_were_copied_says_nothing_of_them(paths: Paths, command: Command) -> None:
    upload = paths.etc_dir.parent / "upload.json"
    copy = paths.etc_dir / "provisioning_parameters.json"
    paths.etc_dir.mkdir()
    copy.write_text("{}")
    digest = hashlib.sha256(b"{}").hexdigest()
    Report(started="", inputs={str(upload): digest}, summary="x").write(paths.report_file)
    settings = paths.etc_dir.parent / "settings"
    settings.mkdir()
    assert "note" not in command("report", "--inventory", str(settings)).out
    copy.write_text("{ }")
    out = command("report", "--inventory", str(settings)).out
    assert f"note: {copy} is new since that run" in out
    assert f"note: {upload}, which that run read, would not be read now" in out


def test_report_is_shown_also_where_the_inventory_is_broken(paths: Paths, command: Command) -> None:
    Report(started="", summary="the sentence").write(paths.report_file)
    settings = paths.report_file.parent / "settings"
    settings.mkdir()
    (settings / "hyperpod.yml").write_text("a: [")
    shown = command("report", "--inventory", str(settings))
    assert shown.code == 0
    assert "note: a run would fail now: " in shown.out
    assert shown.out.endswith(": the sentence\n")


@pytest.mark.parametrize(
    "words", [["plan", *FILES, "--node", "brain-1"], ["plan", "--json", *FILES, "--node", "brain-1"], ["--help"]]
)
def test_a_reader_that_went_away_is_no_fault(words: list[str]) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(
        [sys.executable, "-m", "hyperpod_lifecycle.cli", *words],
        stdout=writing,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    os.close(writing)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("redirection", [">&-", "<&- 2>&-", ">&- 2>&-"])
def test_closed_streams_are_no_internal_error(redirection: str) -> None:
    words = shlex.join([sys.executable, "-m", "hyperpod_lifecycle.cli", "plan", *FILES, "--node", "brain-1"])
    done = subprocess.run(["sh", "-c", f"{words} {redirection}"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_user_without_a_name_can_plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(KeyError):
        pwd.getpwuid(54321)
    monkeypatch.setattr(os, "geteuid", lambda: 54321)
    assert environment.clean_environment(tmp_path, None, "local")["HOME"] == "/"


def test_an_expected_error_is_one_message_and_an_internal_error_one_sentence(
    paths: Paths, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    def expected(*_: Any, **__: Any) -> None:
        raise InputError([Problem("a.json", "key", "found x", "write y")])

    monkeypatch.setattr("hyperpod_lifecycle.cluster.load", expected)
    result = command("plan", *FILES)
    assert (result.code, result.err) == (ExitCode.INPUT, "hyperpod-lifecycle: a.json: key: found x; write y\n")

    monkeypatch.setattr("hyperpod_lifecycle.cluster.load", lambda *_, **__: 1 / 0)
    result = command("plan", *FILES)
    assert result.code == ExitCode.INTERNAL
    assert result.err == (
        "hyperpod-lifecycle: ZeroDivisionError: division by zero; "
        f"an internal error; its traceback is in {paths.log_file}\n"
    )
    assert "ZeroDivisionError" in paths.log_file.read_text()


def test_bundle_hands_on_its_options(command: Command, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked: list[Any] = []

    def build(*arguments: Any, **options: Any) -> Path:
        options.pop("say")
        asked.append((arguments, options))
        return tmp_path

    monkeypatch.setattr("hyperpod_lifecycle.bundle.build", build)
    assert command("bundle", "there", "--python", "3.10", "--python", "3.11", "--site", str(tmp_path)).code == 0
    assert asked == [((Path("there"), ["3.10", "3.11"], "x86_64"), {"site": tmp_path})]


def test_without_a_checkout_lab_says_what_it_needs(command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli.importlib.util, "find_spec", lambda name: None)
    result = command("lab", "up", "--whatever")
    assert result.code == ExitCode.USAGE
    assert "needs a checkout" in result.err


def test_it_starts_quickly_and_says_its_version() -> None:
    script = "import sys; from hyperpod_lifecycle import cli; print(sorted(set(sys.modules) & {HEAVY}))".replace(
        "HEAVY", "'ansible_runner', 'rich', 'pydantic', 'yaml', 'pexpect', 'ifaddr', 'hyperpod_lab', 'packaging'"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=30)
    assert done.stdout == "[]\n"
    done = subprocess.run(
        [sys.executable, "-m", "hyperpod_lifecycle.cli", "--version"],
        capture_output=True,
        text=True,
        check=True,
        timeout=30,
    )
    assert done.stdout == f"hyperpod-lifecycle {__version__}\n"


# --- whatever a user types ---

WORDS = st.sampled_from(
    [
        *("apply", "plan", "report", "bundle", "backup", "restore", "--version", "--help", "-h", "--", "-"),
        *(
            "--resource-config",
            "--provisioning-parameters",
            "--inventory",
            "--tags",
            "--skip-tags",
            "--check",
            "--diff",
        ),
        *("-e", "-v", "-vvv", "--json", "--connection", "--timeout", "--lock-wait", "--node", "--python", "--machine"),
        *("warm", "local", "1", "-1", "nan", "inf", "1e999", "3.12", "abc", "x86_64", "/nope", "/", "--diff", ""),
        *("d=2026-13-45", "slurm_log_size=27.10", "a=[", "=", "hyperpod_x=1", "brain-1", "s3://x", "a" * 5000),
        *(str(BASELINE / name) for name in ("", "resource_config.json", "provisioning_parameters.json")),
    ]
)


@given(st.lists(WORDS | st.text(st.characters(exclude_characters="\0", exclude_categories=("Cs",))), max_size=8))
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_nothing_that_is_typed_is_shown_as_a_bug(
    command: Command, applied: list[Options], monkeypatch: pytest.MonkeyPatch, words: list[str]
) -> None:
    answer = Answer("compute", (Play("slurm", ("compute",), True, (), frozenset(), frozenset()),), ())
    monkeypatch.setattr("hyperpod_lifecycle.question.ask", lambda *_: answer)
    monkeypatch.setattr("hyperpod_lifecycle.bundle.build", lambda dest, *_, **__: dest)
    result = command(*words)
    assert result.code in set(ExitCode) - {ExitCode.INTERNAL}, result.err
    assert "Traceback" not in result.err
