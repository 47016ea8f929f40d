# SPDX-License-Identifier: Apache-2.0
"""Run a playbook in ansible-runner until it ends, a signal arrives or the time limit is reached, and judge its end."""

from __future__ import annotations

import json
import shlex
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from hyperpod_lifecycle import causes, processes
from hyperpod_lifecycle.environment import SYSTEM_PATH, clean_environment, only, umask
from hyperpod_lifecycle.errors import ExitCode, InputError, LifecycleError
from hyperpod_lifecycle.events import Events
from hyperpod_lifecycle.log import Log
from hyperpod_lifecycle.options import Options, Site
from hyperpod_lifecycle.paths import Paths, write_private
from hyperpod_lifecycle.progress import Progress
from hyperpod_lifecycle.question import PROGRAM, Answer
from hyperpod_lifecycle.report import Concern, Report
from hyperpod_lifecycle.selection import Play
from hyperpod_lifecycle.signals import InterruptedRun, Signals

if TYPE_CHECKING:
    from hyperpod_lifecycle.cluster import Node

#: Seconds between two checks for a signal or the time limit.
POLL_SECONDS = 0.2


class TimedOut(LifecycleError):
    """The run has exceeded --timeout."""

    exit_code = ExitCode.TIMEOUT


class ConcernFailed(LifecycleError):
    """A required concern failed, or Ansible stopped early."""

    exit_code = ExitCode.FAILED


class AnsibleRun:
    """One run of Ansible."""

    def __init__(
        self,
        options: Options,
        site: Site,
        paths: Paths,
        progress: Progress,
        signals: Signals,
        deadline: float,
        transcript: Log | None,
    ) -> None:
        self.options, self.site, self.paths, self.progress = options, site, paths, progress
        self.signals, self.deadline, self.transcript = signals, deadline, transcript
        self.started = False
        self.ended = False  #: by itself, so that what still runs was left running on purpose
        self.remark = ""  #: what the last line of a good run must not leave out

    def play(self, private: Path, inventory: Path, node: Node, connection: str, report: Report) -> None:
        """Run the playbook on `node`, with `private` as the run's directory, and fill the report's concerns and tasks.

        Raises LifecycleError unless every required concern succeeds.
        """
        tags, skip_tags = self.options.tags, self.options.skip_tags
        variables = clean_environment(private, self.site.collections, connection)
        answer = private / "answer.json"
        events = Events(
            self.progress,
            (tags, skip_tags),
            self.options.verbosity,
            self.options.diff,
            plays=lambda: self._plays(answer),
            transcript=self.transcript,
        )
        report.concerns = events.concerns
        report.changed_tasks = events.changed_tasks
        report.failed_tasks = events.failed_tasks
        try:
            self._start(private, inventory, node, events, variables, answer)
        except LifecycleError:
            known = {concern.name for concern in events.concerns}
            events.concerns += [
                Concern(play.name, status="not_run" if play.selected(tags, skip_tags) else "not_selected")
                for play in self._plays(answer)
                if play.matches and play.name not in known
            ]
            raise
        if tags and not any(play.matches and play.has(tags) for play in self._plays(answer)):
            self.remark = "no concern on this node matches these tags"

    @staticmethod
    def _plays(answer: Path) -> tuple[Play, ...]:
        said = Answer.read(answer)
        return said.plays if said else ()

    def _start(
        self,
        private: Path,
        inventory: Path,
        node: Node,
        events: Events,
        variables: Mapping[str, str],
        answer: Path,
    ) -> None:
        import pexpect  # type: ignore[import-untyped]
        from ansible_runner.interface import init_runner

        options = self.options
        # ansible-runner takes settings from this file only, when it is told to write none itself.
        (private / "env").mkdir(mode=0o700)
        write_private(
            private / "env/settings", json.dumps({"pexpect_timeout": POLL_SECONDS, "suppress_output_file": True})
        )
        flags = [f"--{name}" for name, wanted in (("check", options.check), ("diff", options.diff)) if wanted]
        if options.extra_vars:
            write_private(private / "extra_vars.json", json.dumps(options.extra_vars))
            flags += ["--extra-vars", f"@{private / 'extra_vars.json'}"]

        def cancelled() -> bool:
            events.alive()
            if not self.signals.received and time.monotonic() < self.deadline:
                return False
            # Ansible's workers are in sessions of their own, where ansible-runner does not reach them.
            processes.end(self.paths.run_dir)
            return True

        with only(variables), umask(0o022):
            binary, *words = [*processes.in_scope(private, SYSTEM_PATH), *PROGRAM]
            runner = init_runner(
                private_data_dir=str(private),
                binary=binary,
                cmdline=shlex.join([*words, str(answer), self._packed(), *flags, self.site.playbook]),
                inventory=[str(inventory)],
                tags=",".join(options.tags),
                skip_tags=",".join(options.skip_tags),
                verbosity=max(0, options.verbosity - 1),
                quiet=True,
                suppress_env_files=True,
                fact_cache_type="memory",
                event_handler=events,
                cancel_callback=cancelled,
            )
            self.started = True
            try:
                runner.run()
                code = runner.rc
            except pexpect.TIMEOUT:  # Ansible has ended, and a process that it started keeps its terminal open
                code = 0 if events.stats else 1
        # Killed, it has no exit status, and its workers may be amid a task.
        self.ended = not runner.canceled and code is not None
        self._judge(runner.canceled, code, events, node, Answer.read(answer))

    def _packed(self) -> str:
        """The folder of packed modules, which a dry run uses and does not make."""
        packed = self.paths.run_dir / "modules"
        return str(packed) if packed.exists() or not self.options.check else ""

    def _judge(self, cancelled: bool, code: int | None, events: Events, node: Node, answer: Answer | None) -> None:
        """Success is what Ansible's statistics say of this node, not its exit code alone."""
        if cancelled:
            where = events.where or "before the first task"
            events.abort()
            if self.signals.received:
                raise InterruptedRun(f"{where}: stopped by {self.signals.received}")
            raise TimedOut(f"{where}: not finished after {self.options.timeout:g} s")
        if events.defect:
            self.progress.trace(events.defect)
            raise RuntimeError(events.defect.splitlines()[-1])
        if code == 0 and events.succeeded(node.name):
            return
        events.abort()
        if answer and answer.problems:
            raise InputError(answer.problems)
        if events.stats is None:
            full = causes.is_full(self.paths.run_dir)  # then ansible-runner loses events without a word
            cause = f"no space left on {self.paths.run_dir}" if full else events.cause(killed=code is None)
            words = events.words or ("it was killed" if code is None else f"it ended with code {code}")
            raise ConcernFailed(": ".join(filter(None, [events.where or "Ansible", cause, words])))
        if events.failed_tasks:
            failed = events.failed_tasks[-1]
            raise ConcernFailed(str(failed))
        hosts = ", ".join(events.stats["processed"]) or "no host"
        said = f": {events.words}" if events.words else ""
        raise ConcernFailed(f"Ansible ended with code {code}, having configured {hosts}{said}")
