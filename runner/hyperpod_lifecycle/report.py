# SPDX-License-Identifier: Apache-2.0
"""What a run leaves behind for people and programs: report.json and one sentence."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from hyperpod_lifecycle import __version__
from hyperpod_lifecycle.errors import ExitCode, InputError, Problem
from hyperpod_lifecycle.paths import write_private

#: Status of a run by its exit code; a run that ends with 0 is "ok" or "degraded".
STATUS = {
    ExitCode.OK: "ok",
    ExitCode.INTERNAL: "error",
    ExitCode.INPUT: "invalid",
    ExitCode.FAILED: "failed",
    ExitCode.TIMEOUT: "timeout",
    ExitCode.LOCKED: "locked",
    ExitCode.INTERRUPTED: "interrupted",
}


@dataclass(eq=False)
class Concern:
    """One play on this node."""

    name: str
    status: str = "ok"  #: ok, failed, degraded (a task failed, the node went on), not_run (an earlier one failed)
    seconds: float = 0.0
    changed: int = 0
    failed: int = 0
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Task:
    """A task that changed something."""

    concern: str
    task: str
    path: str  #: file and line


@dataclass(frozen=True)
class FailedTask(Task):
    """A task that failed, and why."""

    reason: str


@dataclass
class Report:
    """Everything about one run; `report.json` has exactly these keys."""

    started: str
    version: str = __version__
    node: str = ""  #: empty if the run ended before it knew
    node_type: str = ""
    cluster: str = ""
    seconds: float = 0.0
    check: bool = False
    tags: list[str] = field(default_factory=list)
    skip_tags: list[str] = field(default_factory=list)
    status: str = "ok"
    exit_code: int = ExitCode.OK
    reason: str = ""  #: what ended the run, if it is not ok
    remedy: str = ""  #: what to do next
    notes: list[str] = field(default_factory=list)
    concerns: list[Concern] = field(default_factory=list)
    changed_tasks: list[Task] = field(default_factory=list)
    failed_tasks: list[FailedTask] = field(default_factory=list)
    inputs: dict[str, str] = field(default_factory=dict)  #: digest of each file that the run read
    summary: str = ""  #: the run's last line

    def end(self, exit_code: ExitCode, reason: str = "", remedy: str = "") -> None:
        """Say how the run ended."""
        self.exit_code = int(exit_code)
        self.status = STATUS[exit_code]
        self.reason, self.remedy = reason, remedy
        if self.status == "ok" and any(concern.status == "degraded" for concern in self.concerns):
            self.status = "degraded"
            failed = self.failed_tasks[-1]
            self.reason = f"{failed.concern}: {failed.task}: {failed.reason}"
            self.remedy = "see the report; the required concerns are in order"

    def sentence(self) -> str:
        """The run in one line."""
        who = f"{self.node} ({self.node_type})" if self.node else "this node"
        return one_line(f"hyperpod-lifecycle: {who}: {self.status}: {'; '.join(self._clauses())}")

    def _clauses(self) -> Iterable[str]:
        if self.exit_code == ExitCode.OK:
            ran = [concern for concern in self.concerns if concern.status != "not_run"]
            changed = sum(concern.changed for concern in ran)
            change = f"{changed} would change" if self.check else f"{changed} changed"
            checked = "check only, " if self.check else ""
            yield f"{checked}{_count(len(ran), 'concern')}, {change}, {self.seconds:.1f} s"
        if self.reason:
            yield self.reason
        yield from (f"{concern.name}: {note}" for concern in self.concerns for note in concern.notes)
        yield from self.notes
        if self.remedy:
            yield f"next: {self.remedy}"

    def table(self) -> Iterable[str]:
        """The concerns, one a line."""
        width = max((len(concern.name) for concern in self.concerns), default=0)
        for concern in self.concerns:
            facts = [f"{concern.seconds:.1f} s"] if concern.status != "not_run" else []
            facts += [f"{concern.changed} changed"] if concern.changed else []
            facts += [f"{concern.failed} failed"] if concern.failed else []
            yield f"{concern.name:{width}}  {concern.status.replace('_', ' '):8}  {', '.join(facts)}".rstrip()

    def differences(self, now: Mapping[str, str]) -> Iterable[str]:
        """How the files that a run would read `now` differ; a file that was copied or moved as it is does not."""
        for path in sorted(now.keys() | self.inputs.keys()):
            here, there = now.get(path), self.inputs.get(path)
            if here and there and here != there:
                yield f"{path} has changed since that run"
            elif here and not there and here not in self.inputs.values():
                yield f"{path} is new since that run"
            elif there and not here and there not in now.values():
                yield f"{path}, which that run read, would not be read now"

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=2)

    def write(self, path: Path) -> None:
        write_private(path, self.to_json() + "\n")


def read(path: Path) -> Report:
    """The report of the last run."""
    try:
        raw: Mapping[str, Any] = json.loads(path.read_bytes())
        return Report(
            **{
                **raw,
                "concerns": [Concern(**concern) for concern in raw["concerns"]],
                "changed_tasks": [Task(**task) for task in raw["changed_tasks"]],
                "failed_tasks": [FailedTask(**task) for task in raw["failed_tasks"]],
            }
        )
    except FileNotFoundError:
        raise InputError(
            [Problem(str(path), "", "no run has ended on this node yet", "start one: hyperpod-lifecycle apply")]
        ) from None
    except PermissionError:
        raise InputError([Problem(str(path), "", "only root may read it", "run the command as root")]) from None
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(
            [Problem(str(path), "", f"not a report of this version ({error})", "run hyperpod-lifecycle apply")]
        ) from error


def one_line(text: str, limit: int = 2000) -> str:
    """Text from anywhere, fit for the one line that people read."""
    line = " ".join(text.split())
    return line if len(line) <= limit else f"{line[: limit - 1]}…"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
