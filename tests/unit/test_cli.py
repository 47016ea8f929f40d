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
from functools import partial
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any

import pytest
from conftest import BASELINE, CASES, ROOT
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from hyperpod_lab import cli as lab_cli
from hyperpod_lab.agent import Node
from hyperpod_lab.agent.request import from_create_cluster
from hyperpod_lab.image import Release
from hyperpod_lab.lab import Lab
from hyperpod_lab.nodes import Nodes
from hyperpod_lab.podman import Podman
from hyperpod_lab.shape import EXAMPLE
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
    commands, groups = list(cli.app.registered_commands), list(cli.app.registered_groups)

    def call(*arguments: str) -> Result:
        monkeypatch.setattr(sys, "argv", ["hyperpod-lifecycle", *arguments])
        monkeypatch.setattr(cli.app, "registered_commands", list(commands))
        monkeypatch.setattr(cli.app, "registered_groups", list(groups))
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


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A lab of the documented example on which nothing happens."""
    shape = from_create_cluster(EXAMPLE / "create_cluster.json", None, Release.TRIXIE)
    nodes = [
        Node(f"{group.name}-1", group.name, "ml.t3.medium", "i-1", IPv4Address(f"10.0.0.{number}"), f"demo-{number}")
        for number, group in enumerate(shape.groups, 1)
    ]
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(os, "execvpe", lambda *_: sys.exit(0))
    monkeypatch.setattr(lab_cli.signal, "signal", lambda *_: None)
    monkeypatch.setattr(lab_cli, "Lab", partial(Lab, state_root=tmp_path))
    monkeypatch.setattr(Lab, "request", property(lambda self: shape if self.name == "hyperpod" else None))
    monkeypatch.setattr(Lab, "nodes", lambda self: nodes)
    monkeypatch.setattr(Nodes, "all", lambda self: nodes)
    monkeypatch.setattr(Nodes, "exec", lambda self, node, argv, **_: subprocess.CompletedProcess(argv, 0, "", ""))
    for each in (Nodes, Lab, Podman):
        for name in ("remove", "wait_for_boot", "up", "_save", "_make", "_configure_fresh", "_settle", "_build", "run"):
            if hasattr(each, name):
                monkeypatch.setattr(each, name, lambda *_, **__: [])
    monkeypatch.setattr(Lab, "_set_update_status", lambda *_: None)


LAB = st.sampled_from(["up", "status", "exec", "logs", "scale", "add-group", "replace", "update", "reboot", "down"])
LAB_WORDS = st.sampled_from(
    [
        *(
            "--help",
            "--",
            "--create-cluster",
            "--resource-config",
            "--provisioning-parameters",
            "--count",
            "--release",
            "--mirror",
        ),
        *("--parallel", "--image", "--login-nodes", "--topology", "--staging", "--slurm-config", "--late-lines"),
        *("--rewrite-every", "--no-scripts", "--upload", "--name", "--user", "--partition", "--new-address"),
        *("--prepare", "--images", "--last-newline", "trixie", "bare", "ami", "/nope", "/", "", "a", "../x", "-1", "2"),
        *("nan", "inf", "1e999", "9" * 20, "compute-nodes", "compute-nodes-1", "compute-nodes=2", "=", "a=" + "9" * 20),
        *("compute-nodes=" + "9" * 20, "compute-nodes=" + "9" * 5000, "10.0.0.1", "false"),
        *(str(path) for case in ("00-documented-example", "11-broken") for path in (CASES / case).iterdir()),
    ]
)


@given(
    LAB, st.lists(LAB_WORDS | st.text(st.characters(exclude_characters="\0", exclude_categories=("Cs",))), max_size=5)
)
@example("scale", ["compute-nodes", "9" * 20])
@example("up", ["--count", "compute-nodes=" + "9" * 5000])
@example("add-group", ["a", "ml.p5.48xlarge", "9" * 20, "--partition", "x"])
@example("add-group", ["compute-nodes", "ml.p5.48xlarge", "1", "--partition", "x"])
@example("add-group", ["../x", "ml.p5.48xlarge", "1", "--partition", "x"])
@example("scale", ["compute-nodes", "1", "--upload", "/"])
@example("up", ["--late-lines", "nan"])
@example("logs", ["compute-nodes-1"])
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_nothing_that_is_typed_for_the_lab_is_shown_as_a_bug(
    command: Command, lab: None, name: str, words: list[str]
) -> None:
    result = command("lab", name, *words)
    assert result.code in set(ExitCode) - {ExitCode.INTERNAL}, result.err
    assert "Traceback" not in result.err


@pytest.mark.parametrize("words", [["up", "--late-lines", "inf"], ["down", "--name", ""], ["scale", "", "1"]])
def test_a_wrong_command_line_of_the_lab_is_a_usage_error(command: Command, lab: None, words: list[str]) -> None:
    assert command("lab", *words).code == ExitCode.USAGE
