# SPDX-License-Identifier: Apache-2.0
"""Process Ansible's events as they arrive: concerns, tasks and reasons for the report. Events are not stored."""

from __future__ import annotations

import re
import time
import traceback
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from hyperpod_lifecycle import causes, verdicts
from hyperpod_lifecycle.log import Log
from hyperpod_lifecycle.progress import Progress
from hyperpod_lifecycle.report import Concern, FailedTask, Task, one_line
from hyperpod_lifecycle.selection import Play

HIDDEN = "its result is hidden (no_log)"

#: Actions that Ansible runs under any tag, whether the concern was selected or not.
ALWAYS_RUN = ("ansible.builtin.validate_argument_spec", "validate_argument_spec")

#: This action repeats a failure that has been reported, or declares that the concern is blocked or pending.
VERDICT = "hyperpod.lifecycle.verdict"

_ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")

_QUOTE = re.compile(r"(?:^|[;,.]?\s+)(journal of [^\n]*:\n.*)", re.DOTALL)

_ERROR = re.compile(r"ERROR[]!:]|Failed to parse")

#: A line break of Ansible 2.17 within a word, such as a path with a hyphen.
_WRAPPED = re.compile(r"(?<=\w-)\n(?=\w)")

#: Parts of Ansible's messages to remove, which differ by version: prefixes, causes and source excerpts.
_NOISE = (
    (re.compile(r"^(\[(ERROR|WARNING)\]: |ERROR! )+"), ""),
    (re.compile(r"^.*<<< caused by >>> "), ""),
    (re.compile(r"^\* Failed to parse .*? with \S+ plugin: "), ""),
    (re.compile(r" (\[ERROR\]: |ERROR! )Completely failed to parse inventory source .*$"), ""),
    (re.compile(r" Origin: <.*$"), ""),
    (re.compile(r" Origin: (\S+:\d+).*$"), r" (\1)"),
    (re.compile(r" The error appears to be in '(.*?)': line (\d+).*$"), r" (\1:\2)"),
)

#: Events with messages of Ansible itself: warnings, and why it stopped before the first play.
_WORDS = frozenset({"verbose", "warning", "system_warning", "deprecated", "error"})


class Events:
    """The event handler of one run. It never raises, because ansible-runner would then abandon Ansible."""

    def __init__(
        self,
        progress: Progress,
        tags: tuple[Collection[str], Collection[str]] = ((), ()),
        verbosity: int = 0,
        diff: bool = False,
        plays: Callable[[], Iterable[Play]] = tuple,
        transcript: Log | None = None,
    ) -> None:
        self._progress = progress
        self._tags = tags  #: to run and to skip; with any, a play that runs no task was not selected
        self._verbosity = verbosity
        self._diff = diff
        self._plays = plays  #: what Ansible says of them; known when the first one starts
        self._transcript = transcript  #: where all that Ansible prints is kept
        self._killed = causes.killed()
        self._announced = True  #: whether the play's start was told
        self._task_started = time.monotonic()
        self._words: deque[str] = deque(maxlen=30)
        self._play: Concern | None = None
        self._play_started = 0.0
        self._task = self._item_reason = ""
        self.concerns: list[Concern] = []
        self.changed_tasks: list[Task] = []
        self.failed_tasks: list[FailedTask] = []
        self.stats: Mapping[str, Any] | None = None
        self.defect = ""  #: traceback of the first internal error

    def __call__(self, event: Mapping[str, Any]) -> bool:
        """Process one event; return False, so that ansible-runner does not store it."""
        try:
            self._take(event)
        except Exception:
            # Raising would make ansible-runner abandon Ansible during a task; `run` raises it at the end.
            self.defect = self.defect or traceback.format_exc()
        return False

    @property
    def where(self) -> str:
        """The running concern and task."""
        return ": ".join(filter(None, (self._play.name if self._play else "", self._task)))

    @property
    def words(self) -> str:
        """Ansible's own last messages, from its first error on."""
        texts = list(self._words)
        first = next((i for i, text in enumerate(texts) if _ERROR.search(text)), 0)
        return tidy("\n".join(texts[first:]))

    def succeeded(self, node: str) -> bool:
        """Return whether Ansible has finished for exactly this node without an unrescued failure."""
        return bool(self.stats and set(self.stats["processed"]) == {node} and not self._lost())

    def _lost(self) -> bool:
        return bool(self.stats and (self.stats["failures"] or self.stats["dark"]))

    # --- one method per event ---

    def _take(self, event: Mapping[str, Any]) -> None:
        kind, data = event["event"], event.get("event_data") or {}
        if kind == "EOF":
            return
        text = _ANSI.sub("", event.get("stdout") or "").replace("\r\n", "\n")
        if kind in _WORDS and text.strip():
            self._words.append(text)
        if self._transcript and text.strip():
            self._transcript.write(text.strip("\n"))
        if text.strip() and (self._verbosity > 1 or (self._diff and kind == "runner_on_file_diff")):
            self._progress.show(text.strip("\n"))
        handler = getattr(self, f"_{kind}", None)
        if handler:
            handler(data)

    def _playbook_on_play_start(self, data: Mapping[str, Any]) -> None:
        self._end_play()
        self._play = Concern(name=data["name"])
        self._play_started = time.monotonic()
        self._announced = False
        self._task = ""
        for play in self._plays():
            if play.name == self._play.name and play.off:
                self._play.status = "off"
        if not any(self._tags):
            self.concerns.append(self._play)

    def _playbook_on_no_hosts_matched(self, data: Mapping[str, Any]) -> None:
        """The play is for other node types."""
        if self._play in self.concerns:
            self.concerns.remove(self._play)
        self._play = None

    def _playbook_on_task_start(self, data: Mapping[str, Any]) -> None:
        self._task = one_line(data["task"], 200)
        self._item_reason = ""
        self._task_started = time.monotonic()
        if data.get("task_action") not in ALWAYS_RUN:
            self._selected()
        self._progress.live(self.where)

    def _runner_on_ok(self, data: Mapping[str, Any]) -> None:
        self._announce()
        changed = (data.get("res") or {}).get("changed")
        if changed:
            concern = self._selected()
            concern.changed += 1
            self.changed_tasks.append(Task(concern.name, self._task, data.get("task_path") or ""))
        if data.get("task_action") == VERDICT:
            self._declared((data.get("res") or {}).get("verdict") or {})
        self._tell(data, "changed" if changed else "ok")

    def _runner_on_skipped(self, data: Mapping[str, Any]) -> None:
        self._tell(data, "skipped")

    def _runner_on_failed(self, data: Mapping[str, Any]) -> None:
        if data.get("ignore_errors"):
            self._tell(data, "failed, ignored")
        elif data.get("task_action") != VERDICT:
            self._failed(data, self._item_reason or self._reason(data.get("res") or {}))

    def _runner_item_on_failed(self, data: Mapping[str, Any]) -> None:
        """Record the reason of the first failed item; the event at the end of the loop does not have it."""
        self._item_reason = self._item_reason or self._reason(data.get("res") or {})

    def _runner_on_unreachable(self, data: Mapping[str, Any]) -> None:
        self._failed(data, f"unreachable: {self._reason(data.get('res') or {})}")

    def _playbook_on_stats(self, data: Mapping[str, Any]) -> None:
        self.stats = {key: data.get(key) or {} for key in ("processed", "failures", "dark")}
        self._end_play()
        for name, note in _notes(data):
            for concern in self.concerns:
                if concern.name == name:
                    concern.notes.append(one_line(str(note)))

    # --- what they share ---

    def _declared(self, verdict: Mapping[str, Any]) -> None:
        """Record what a task has declared about its concern, unless a worse verdict is known."""
        concern = self._selected()
        status = verdict.get("status", verdicts.OK)
        if status != verdicts.OK and verdicts.worst([concern.status, status]) == status:
            concern.status, concern.reason = status, one_line(str(verdict["reason"]))
            self._progress.say(f"{concern.name}: {status}: {concern.reason}")

    def _selected(self) -> Concern:
        concern = self._play or Concern(name="")
        if concern not in self.concerns:
            self.concerns.append(concern)
        return concern

    def _failed(self, data: Mapping[str, Any], why: str) -> None:
        self._announce()
        concern = self._selected()
        concern.failed += 1
        concern.status = verdicts.DEGRADED  # until the statistics say that the node did not go on
        failed = FailedTask(concern.name, self._task, data.get("task_path") or "", why)
        self.failed_tasks.append(failed)
        first, *quoted = failed.reason.splitlines()
        self._progress.say(f"{concern.name}: failed: {failed.task}: {first}")
        for line in quoted:
            self._progress.say(f"    {line}")

    def cause(self, killed: bool) -> str:
        """Return why Ansible itself stopped, in one sentence, or an empty string; `killed`: it has no exit status."""
        return causes.explain(self.words, self._killed if killed else None)

    def _reason(self, result: Mapping[str, Any]) -> str:
        """Return why a task failed: a line, followed by the lines of a journal."""
        said, quoted = split_quote(reason(result))
        cause = "" if said == HIDDEN else causes.explain(evidence(result), self._killed if was_killed(result) else None)
        return "\n".join([": ".join(filter(None, [cause, tidy(said)])), *quoted])

    def _announce(self) -> None:
        """Report the start of the concern, once, unless it is off."""
        if not self._announced and self._play in self.concerns and self._play and self._play.status != "off":
            self._announced = True
            self._progress.say(f"{self._play.name}: started")

    def alive(self) -> None:
        """Report that a concern has started, and later that its task is still running; called while Ansible runs."""
        seconds = time.monotonic() - self._task_started
        if self._task and seconds > 1:
            self._announce()
        self._progress.alive(f"{self.where if self._task else 'Ansible'}: running for {seconds:.0f} s")

    def _end_play(self) -> None:
        concern, self._play = self._play, None
        if concern is None:
            return
        if concern not in self.concerns:
            concern.status = "not_selected"
            self.concerns.append(concern)
            return
        concern.seconds = round(time.monotonic() - self._play_started, 1)
        if self._lost() and self.failed_tasks and self.failed_tasks[-1].concern == concern.name:
            concern.status = verdicts.FAILED
        if concern.status == "ok" and any(self._tags):
            whole = {play.name: play.whole(*self._tags) for play in self._plays()}
            concern.status = "ok" if whole.get(concern.name, True) else "partial"
        changed = f"{concern.changed} changed, " if concern.changed else ""
        self._progress.say(f"{concern.name}: {concern.status}: {changed}{concern.seconds:.1f} s")

    def _tell(self, data: Mapping[str, Any], outcome: str) -> None:
        if self._verbosity:
            seconds = f", {data['duration']:.1f} s" if data.get("duration") is not None else ""
            self._progress.say(f"{self.where}: {outcome}{seconds}")

    def abort(self) -> None:
        """Mark the running concern as failed, because Ansible was terminated before it sent its statistics."""
        if self._play in self.concerns and self._play:
            self._play.status = verdicts.FAILED
            self._end_play()


def _notes(stats: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the notes that roles have added with `set_stats`: {hyperpod_notes: {<concern>: <text>}}."""
    notes = (stats.get("artifact_data") or {}).get("hyperpod_notes")
    if isinstance(notes, Mapping):
        yield from notes.items()


def tidy(text: str) -> str:
    """Return a message of Ansible on one line, without prefixes and source excerpts."""
    text = one_line(_WRAPPED.sub("", text), 10_000)
    for noise, instead in _NOISE:
        text = noise.sub(instead, text)
    text = one_line(text.strip(" ;:"), 10_000)
    # Keep the beginning, which has what failed, and the end, which has a journal's last lines.
    return text if len(text) <= 1200 else f"{text[:400]} … {text[-800:]}"


def reason(result: Mapping[str, Any]) -> str:
    """Return why a task failed, from its module's result; hidden for a task with `no_log`."""
    if "censored" in result or result.get("_ansible_no_log"):
        return HIDDEN
    for item in result.get("results") or ():
        if isinstance(item, Mapping) and (item.get("failed") or item.get("unreachable") or "censored" in item):
            return reason(item)
    message = str(result.get("msg") or "").strip()
    errors = str(result.get("stderr") or result.get("module_stderr") or "")
    tail = [line.strip() for line in errors.splitlines() if line.strip()][-3:]
    if not tail and result.get("rc"):
        output = str(result.get("stdout") or result.get("module_stdout") or "")
        tail = [line.strip() for line in output.splitlines() if line.strip()][-3:]
    said = [line for line in tail if line not in message]
    if result.get("url"):  # a download names neither its source nor, often, the cause
        url, response = public(str(result["url"])), str(result.get("response") or "")
        message = ": ".join([message, *(each for each in (url, response) if each and each not in message)])
    if "non-zero return code" in message:  # how the command modules say it, in words that differ by version
        message = f"return code {result.get('rc')}"
    return " | ".join(filter(None, [message, *said])) or "the module gave no reason"


def public(url: str) -> str:
    """Return a URL without possible secrets: user, password, query."""
    parts = urlsplit(url)
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))


def split_quote(text: str) -> tuple[str, list[str]]:
    """Split a module's message into the message and the journal lines that it quotes."""
    found = _QUOTE.search(text)
    if not found:
        return text, []
    return text[: found.start()].strip(), [line.rstrip() for line in found[1].splitlines() if line.strip()]


def evidence(result: Mapping[str, Any]) -> str:
    """Return all texts of a result that may explain its failure."""
    fields = ("msg", "module_stderr", "module_stdout", "stderr", "stdout", "exception")
    return "\n".join(str(result[name]) for name in fields if result.get(name))


def was_killed(result: Mapping[str, Any]) -> bool:
    """Return whether the module may have been killed, by its exit status or because it has no output."""
    said = str(result.get("msg") or "")
    silent = ("MODULE FAILURE", "Module result deserialization failed", "the warm interpreter ended")
    return result.get("rc") in (-9, 137) or said.startswith(silent)
