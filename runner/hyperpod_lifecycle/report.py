# SPDX-License-Identifier: Apache-2.0
"""The report of a run: report.json and the last line."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from hyperpod_lifecycle import __version__, verdicts
from hyperpod_lifecycle.errors import ExitCode, InputError, Problem
from hyperpod_lifecycle.paths import write_private

#: Status of a run by its exit code; a run that ends with 0 has the worst verdict of its concerns.
STATUS: dict[int, str] = {
    ExitCode.OK: verdicts.OK,
    ExitCode.INTERNAL: "error",
    ExitCode.INPUT: "invalid",
    ExitCode.FAILED: verdicts.FAILED,
    ExitCode.TIMEOUT: "timeout",
    ExitCode.LOCKED: "locked",
    ExitCode.INTERRUPTED: "interrupted",
}


#: Status of a run that has not ended: it is still running, or it was killed.
UNFINISHED = "unfinished"

#: Maximum length of the last line, which consoles and APIs truncate.
LINE = 400

#: What to do after a run that is not ok, although its exit code is 0.
_NEXT = {
    verdicts.PENDING: "nothing; `hyperpod-lifecycle apply --tags verify` shows whether it is ready",
    verdicts.DEGRADED: "all required concerns succeeded; see `hyperpod-lifecycle report`",
    verdicts.BLOCKED: "once the cause is gone: hyperpod-lifecycle apply",
}

_RUN_AGAIN = re.compile(r",? then run again: hyperpod-lifecycle apply(?: --tags \w+)?")


@dataclass(eq=False)
class Concern:
    """One play on this node.

    Its status is a verdict (see verdicts.py), off (its switch is false), partial (tags left a part of it out), not_run
    (the run ended before it) or not_selected (tags left it out).
    """

    name: str
    status: str = "ok"
    seconds: float = 0.0
    changed: int = 0
    failed: int = 0
    reason: str = ""  #: why it is blocked or pending
    notes: list[str] = field(default_factory=list)

    @property
    def ran(self) -> bool:
        return self.status not in ("off", "not_run", "not_selected")


@dataclass(frozen=True)
class Task:
    """A task that has changed something."""

    concern: str
    task: str
    path: str  #: file and line


@dataclass(frozen=True)
class FailedTask(Task):
    """A task that failed, and why: one line, and below it the lines of a journal if it quotes one."""

    reason: str

    def __str__(self) -> str:
        return f"{self.concern}: {self.task}: {self.reason}"


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
    status: str = UNFINISHED
    exit_code: int | None = None  #: none as long as it has not ended
    reason: str = ""  #: what ended the run, if it is not ok
    remedy: str = ""  #: what to do next
    notes: list[str] = field(default_factory=list)
    concerns: list[Concern] = field(default_factory=list)
    changed_tasks: list[Task] = field(default_factory=list)
    failed_tasks: list[FailedTask] = field(default_factory=list)
    #: what this node lacks of what the code assumes about nodes, after a failed concern; see assumptions.py
    assumptions: list[str] = field(default_factory=list)
    inputs: dict[str, str] = field(default_factory=dict)  #: digest of each file that the run read
    summary: str = ""  #: the run's last line

    def end(self, exit_code: ExitCode, reason: str = "", remedy: str = "") -> None:
        """Set status, reason, remedy and the last line."""
        self.exit_code = int(exit_code)
        self.status = STATUS[exit_code]
        self.reason, self.remedy = reason, remedy
        if self.status != verdicts.OK:
            return
        self.status = verdicts.worst(concern.status for concern in self.concerns)
        if self.status == verdicts.OK:
            return
        # The worst first: it is what the status means.
        troubled = [concern for concern in self.concerns if concern.status in _NEXT]
        troubled.sort(key=lambda concern: -verdicts.ORDER.index(concern.status))
        self.reason = "; ".join(one_line(self._why(concern)) for concern in troubled)
        self.remedy = _NEXT[self.status]

    def _why(self, concern: Concern) -> str:
        """Return why a concern is not ok."""
        if concern.status != verdicts.DEGRADED:
            return f"{concern.name}: {concern.reason}"
        return str(next(task for task in self.failed_tasks if task.concern == concern.name))

    def sentence(self) -> str:
        """The run in one line of at most LINE characters. What it has to leave out is in :meth:`left_out`."""
        return self._composed()[0]

    def left_out(self) -> list[str]:
        """Return in full what the sentence had to shorten or omit."""
        return self._composed()[1]

    def _composed(self) -> tuple[str, list[str]]:
        who = f"{self.node} ({self.node_type})" if self.node else "this node"
        head = f"hyperpod-lifecycle: {who}: {self.status}: "
        left_out: list[str] = []
        facts = self._facts()
        remedy = f"next: {one_line(self.remedy)}" if self.remedy else ""
        if len(remedy) > LINE * 5 // 8:
            left_out.append(remedy)
            remedy = "next: see the line above"
        notes = [one_line(note) for note in self._notes()]

        def line(reason: str, count: int) -> str:
            rest = [f"{len(notes) - count} more in `hyperpod-lifecycle report`"] if count < len(notes) else []
            return head + "; ".join(filter(None, [facts, reason, *notes[:count], *rest, remedy]))

        reason = one_line(self.reason)
        room = LINE - len(line("", 0)) - 2
        if len(reason) > room:
            left_out.insert(0, reason)
            reason = shorten(self._brief(reason), max(room, 40))
        fitting = [count for count in range(len(notes) + 1) if len(line(reason, count)) <= LINE]
        count = fitting[-1] if fitting else 0
        return shorten(line(reason, count), LINE), [*left_out, *notes[count:]]

    def _brief(self, reason: str) -> str:
        """Return a reason without the task's name and without its own call to run again, for the sake of the cause."""
        for task in self.failed_tasks:
            reason = reason.replace(f"{task.concern}: {task.task}: ", f"{task.concern}: ")
        return _RUN_AGAIN.sub("", reason)

    def _facts(self) -> str:
        """Return the numbers for the last line of a run that has not failed."""
        if self.status == UNFINISHED:
            return f"started {self.started}"
        if self.exit_code != ExitCode.OK:
            return ""
        ran = [concern for concern in self.concerns if concern.ran]
        changed = sum(concern.changed for concern in self.concerns)
        parts = ["check only"] if self.check else []
        parts += [_count(len(ran), "concern"), f"{changed} would change" if self.check else f"{changed} changed"]
        only = [f"only {self.selection}"] if self.selection else []
        return ", ".join([*parts, f"{self.seconds:.1f} s", *only])

    @property
    def selection(self) -> str:
        """The tags of a run that was not about everything, as on the command line."""
        tags = [f"--tags {','.join(self.tags)}"] if self.tags else []
        return " ".join([*tags, *([f"--skip-tags {','.join(self.skip_tags)}"] if self.skip_tags else [])])

    def _notes(self) -> Iterable[str]:
        yield from (f"{concern.name}: {note}" for concern in self.concerns for note in concern.notes)
        yield from self.notes

    def table(self) -> Iterable[str]:
        """Yield a line for each concern."""
        width = max((len(concern.name) for concern in self.concerns), default=0)
        column = max((len(concern.status) for concern in self.concerns), default=0)
        for concern in self.concerns:
            facts = [f"{concern.seconds:.1f} s"] if concern.ran else []
            facts += [f"{concern.changed} changed"] if concern.changed else []
            facts += [f"{concern.failed} failed"] if concern.failed else []
            yield f"{concern.name:{width}}  {concern.status.replace('_', ' '):{column}}  {', '.join(facts)}".rstrip()

    def details(self) -> Iterable[str]:
        """What `report` shows between table and last line: tags, failed tasks in full, notes that are not there."""
        if self.selection:
            yield f"only a part was asked for: {self.selection}"
        for task in self.failed_tasks:
            first, *quoted = str(task).splitlines()
            yield f"failed: {first}"
            yield from (f"    {line}" for line in quoted)
        yield from (f"note: {note}" for note in self._notes() if one_line(note) not in self.summary)
        yield from (f"does not hold on this node: {assumption}" for assumption in self.assumptions)

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
            [Problem(str(path), "", "no run has started on this node yet", "start one: hyperpod-lifecycle apply")]
        ) from None
    except PermissionError:
        raise InputError([Problem(str(path), "", "only root may read it", "run the command as root")]) from None
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(
            [Problem(str(path), "", f"not a report of this version ({error})", "run hyperpod-lifecycle apply")]
        ) from error


def one_line(text: str, limit: int = 2000) -> str:
    """Return text on one line, shortened to `limit` characters."""
    line = " ".join(text.split())
    return line if len(line) <= limit else f"{line[: limit - 1]}…"


def shorten(text: str, limit: int) -> str:
    """Shorten text in the middle: the beginning has what failed, the end a journal's last lines."""
    if len(text) <= limit:
        return text
    tail = limit * 2 // 5
    return f"{text[: limit - tail - 3]} … {text[len(text) - tail :]}"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
