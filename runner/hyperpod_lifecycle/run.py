# SPDX-License-Identifier: Apache-2.0
"""`apply`: one run of Ansible on this node, from the lock to the report."""

from __future__ import annotations

import errno
import json
import os
import shlex
import shutil
import tempfile
import time
import traceback
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hyperpod_lifecycle import __version__, assumptions, causes, inputs, lock, processes, users
from hyperpod_lifecycle.environment import SYSTEM_PATH, clean_environment, only, umask
from hyperpod_lifecycle.errors import ExitCode, InputError, LifecycleError, Problem
from hyperpod_lifecycle.events import Events
from hyperpod_lifecycle.log import Log
from hyperpod_lifecycle.paths import Paths, write_private
from hyperpod_lifecycle.progress import Progress
from hyperpod_lifecycle.question import PROGRAM, SITE, Answer
from hyperpod_lifecycle.report import UNFINISHED, Concern, Report, one_line
from hyperpod_lifecycle.selection import Play
from hyperpod_lifecycle.signals import InterruptedRun, Signals

if TYPE_CHECKING:
    from hyperpod_lifecycle.cluster import Node

#: Seconds to wait until this node has one of the addresses in the file.
NETWORK_SECONDS = 120.0

#: Seconds between two checks for a signal or the time limit.
POLL_SECONDS = 0.2

#: Errors of the machine, such as a full disk or an immutable file, which are not internal errors.
REFUSED = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EPERM)


@dataclass(frozen=True)
class Options:
    """The options of a run."""

    tags: tuple[str, ...] = ()
    skip_tags: tuple[str, ...] = ()
    extra_vars: Mapping[str, Any] = field(default_factory=dict)  #: settings for this run alone
    extra_words: tuple[str, ...] = ()  #: the same as words of the command line that may be shown
    check: bool = False
    diff: bool = False
    verbosity: int = 0  #: 1: a line per task; 2 and more: also Ansible's own output
    connection: str | None = None  #: "warm" or "local"; None leaves it to the inventory
    timeout: float = 3600.0  #: seconds for everything, waits included
    lock_wait: float = 60.0
    resource_config: Path | None = None
    provisioning_parameters: Path | None = None
    inventory: Path | None = None
    json: bool = False  #: print the report as JSON
    request: tuple[str, ...] = ()  #: another command than `apply`, with its arguments

    @property
    def command(self) -> str:
        """The command line for the same run."""
        words = ["hyperpod-lifecycle", *self.request]
        if not self.request:
            pairs = [("--tags", tag) for tag in self.tags] + [("--skip-tags", tag) for tag in self.skip_tags]
            for name in ("resource_config", "provisioning_parameters", "inventory", "connection"):
                value = getattr(self, name)
                value = value.absolute() if isinstance(value, Path) else value
                pairs += [(f"--{name.replace('_', '-')}", str(value))] if value is not None else []
            for name, default in (("timeout", Options.timeout), ("lock_wait", Options.lock_wait)):
                value = getattr(self, name)
                pairs += [(f"--{name.replace('_', '-')}", f"{value:g}")] if value != default else []
            words += ["apply", *(word for pair in pairs for word in pair), *self.extra_words]
        flags = {"--check": self.check, "--diff": self.diff, "--json": self.json}
        words += [flag for flag, given in flags.items() if given]
        words += [f"-{'v' * self.verbosity}"] if self.verbosity else []
        return shlex.join(words)


@dataclass(frozen=True)
class Site:
    """The playbook to run and its location; the defaults apply to an installed package."""

    playbook: str = SITE
    collections: Path | None = None  #: folder that holds `ansible_collections`, unless Ansible finds it by itself
    checkout: Path | None = None  #: the source tree we run from, if we do


class TimedOut(LifecycleError):
    """The run has exceeded --timeout."""

    exit_code = ExitCode.TIMEOUT


class ConcernFailed(LifecycleError):
    """A required concern failed, or Ansible stopped early."""

    exit_code = ExitCode.FAILED


def apply(options: Options, progress: Progress, paths: Paths | None = None, site: Site | None = None) -> Report:
    """Configure this node. Whatever happens, the answer is a report; its summary is the last line to print.

    Call it in the main thread, because that is where signals arrive.
    """
    with Signals() as signals:
        run = _Run(options, progress, paths or Paths(), site or Site(), signals)
        try:
            require_root(options)
            with ExitStack() as stack:
                with signals.raising():
                    stack.enter_context(run.lock())
                run.locked()
        except (LifecycleError, OSError) as error:
            # Without the lock the report on disk may be that of a run in progress, so it stays.
            run.end(error)
        return run.report


class _Run:
    """One run: its options and the report it fills."""

    def __init__(self, options: Options, progress: Progress, paths: Paths, site: Site, signals: Signals) -> None:
        self.options, self.progress, self.paths, self.site, self.signals = options, progress, paths, site, signals
        self._remark = ""  #: what the last line of a good run must not leave out
        self._ansible_started = False
        self._ansible_ended = False  #: by itself, so that what still runs was left running on purpose
        self._own_names = ("", "")  #: folder that Ansible reads, and the user's that it stands for
        self.start = time.monotonic()
        self.deadline = self.start + options.timeout
        self.transcript = None if options.check else Log(paths.ansible_log)  #: what Ansible prints
        self.command = options.command
        self.report = Report(
            started=datetime.now(timezone.utc).isoformat(timespec="seconds"),
            check=options.check,
            tags=list(options.tags),
            skip_tags=list(options.skip_tags),
        )

    def lock(self) -> Any:
        wait = min(self.options.lock_wait, self.options.timeout)
        return lock.hold(self.paths.lock_file, self.command, wait, self.progress.say)

    def locked(self) -> None:
        """Everything that needs the lock; how it ends goes into the report."""
        self._save()
        try:
            self._configure()
            self.end(None)
        except LifecycleError as error:
            self.end(error)
        except Exception as error:
            self.progress.trace(traceback.format_exc())
            self.end(error)
        if fault := self._save():
            self.report.notes.append(fault)
            self.report.summary = self.report.sentence()

    def _save(self) -> str:
        """Write the report as it is now, so that also a killed run is the last one; the answer is why it cannot be."""
        if self.options.check:
            return ""
        if self.report.status == UNFINISHED:
            self.report.summary = self.report.sentence()
        try:
            self.report.write(self.paths.report_file)
        except OSError as error:  # the node is what it is, also when the disk is full
            return f"{self.paths.report_file} is of an earlier run: {error.strerror}"
        return ""

    def end(self, error: Exception | None) -> None:
        """Close the report and the screen."""
        report, again = self.report, f"run it again: {self.command}"
        self.progress.close_live()
        report.seconds = round(time.monotonic() - self.start, 1)
        for fault in filter(None, (self.progress.fault, self.transcript.fault if self.transcript else "")):
            self._note(fault)
        if error is None:
            report.end(ExitCode.OK, self._remark)
        elif isinstance(error, InputError):
            lines = str(error).splitlines()
            if len(lines) > 1:
                for line in lines:
                    self.progress.say(line)
            more = f" (and {len(error.problems) - 1} more, above)" if len(error.problems) > 1 else ""
            report.end(error.exit_code, one_line(str(error.problems[0])) + more, f"correct it, then {again}")
        elif isinstance(error, LifecycleError):
            log = self.paths.ansible_log if self._ansible_started else self.paths.log_file
            see = "" if self.options.check else f" (log: {log})"
            remedy = {
                ExitCode.FAILED: f"fix the cause{see}, then {again}",
                ExitCode.LOCKED: "wait until it ends, or give --lock-wait more seconds",
                ExitCode.TIMEOUT: f"see what it waited for{see}, then {again}, with a higher --timeout if need be",
            }.get(error.exit_code, again)
            report.end(error.exit_code, one_line(str(error).replace(*self._own_names)), remedy)
            if error.exit_code == ExitCode.FAILED:
                report.assumptions = [
                    f"{found.id}: {found.claim}"
                    for found in assumptions.probe(self.paths)
                    if found.verdict == assumptions.DOES_NOT_HOLD
                ]
        elif isinstance(error, OSError) and error.errno in REFUSED:
            what = ": ".join(
                filter(None, [causes.explain(str(error)), str(error.filename or self.paths.run_dir), error.strerror])
            )
            report.end(ExitCode.INTERNAL, what, f"make it writable, with room, then {again}")
        elif isinstance(error, MemoryError) or (isinstance(error, OSError) and error.errno == errno.ENOMEM):
            report.end(ExitCode.INTERNAL, "out of memory", f"end what uses it, then {again}")
        else:
            what = one_line(f"{type(error).__name__}: {error}", 300)
            where = "above" if self.options.check else f"in {self.paths.log_file}"
            report.end(ExitCode.INTERNAL, what, f"this is a bug in hyperpod-lifecycle; its traceback is {where}")
        report.summary = report.sentence()
        said = {*report.notes, *(one_line(f"{report.status}: {task}") for task in report.failed_tasks)}
        for text in report.left_out():
            if text not in said and not any(one_line(str(task)) in text for task in report.failed_tasks):
                self.progress.say(text)
        self.progress.log(report.summary)
        self.progress.close()
        if self.transcript:
            self.transcript.close()

    # --- the steps ---

    def _configure(self) -> None:
        with self.signals.raising():
            self._clean()
            found = inputs.resolve(
                self.paths,
                self.options.resource_config,
                self.options.provisioning_parameters,
                self.options.inventory,
                self.site.checkout,
            )
            node = self._node(found)
            if not self.options.check:
                found.keep(self.paths)
                self.command = self._command_without_copies()
            self._save()
        private = Path(tempfile.mkdtemp(prefix="run-", dir=self.paths.run_dir))
        try:
            inventory = found.write(private / "inventory", node.name, self.options.connection)
            self._own_names = (str(inventory.parent), str(found.inventory or inventory.parent))
            self._play(private, inventory, node, self._connection(found))
        finally:
            if self._ansible_ended:
                for process in processes.left(self.paths.run_dir):
                    self._note(f"process {process} outlives the run that started it")
                shutil.rmtree(private)
            self._clean()

    def _command_without_copies(self) -> str:
        """The command line that asks for the same again, without files that a run finds by itself.

        on_create.sh names files in an upload folder, which may vanish; their copies stay on the node.
        """
        kept: dict[str, Path] = {}
        for name in ("resource_config", "provisioning_parameters"):
            given = getattr(self.options, name)
            platform, copy = (folder / f"{name}.json" for folder in (self.paths.platform_dir, self.paths.etc_dir))
            found = platform if platform.exists() else copy
            if given and not (found.exists() and found.read_bytes() == given.read_bytes()):
                kept[name] = given
        return replace(
            self.options,
            resource_config=kept.get("resource_config"),
            provisioning_parameters=kept.get("provisioning_parameters"),
        ).command

    def _clean(self) -> None:
        """End the processes of a run that did not end by itself, this one or a killed one, and remove its directory."""
        for pid in processes.end(self.paths.run_dir):
            self._note(f"process {pid} cannot be killed (uninterruptible sleep)")
        for private in self.paths.run_dir.glob("run-*"):
            shutil.rmtree(private)

    def _node(self, found: inputs.Inputs) -> Node:
        from hyperpod_lifecycle.addresses import find_node
        from hyperpod_lifecycle.cluster import load

        cluster = load(found.resource_config, found.provisioning_parameters)
        people = users.load(found.shared_users)
        self.report.cluster = cluster.name
        self.report.inputs = found.fingerprints()
        for note in (*found.notes, *found.check_names(cluster), *cluster.notes, *people.notes):
            self._note(note)
        node = find_node(
            cluster,
            max(0.0, min(NETWORK_SECONDS, self.deadline - time.monotonic())),
            lambda: self.progress.alive("waiting for the network to give this node its address"),
        )
        self.report.node, self.report.node_type = node.name, node.node_type.value
        if found.node not in (None, node.name):
            file = str((found.inventory or Path()) / inputs.SOURCE_FILE)
            what = f"found {found.node}, and this machine is {node.name}"
            raise InputError([Problem(file, "node", what, "remove it: it is for plans")])
        who = f"hyperpod-lifecycle {__version__}: {node.name} ({node.node_type.value}) of {cluster.name}"
        self.progress.say(who)
        if self.transcript:
            self.transcript.write(f"{who}: {self.command}")
        return node

    def _connection(self, found: inputs.Inputs) -> str:
        return inputs.CONNECTIONS.get(self.options.connection or "", found.options.get("connection", "")) or "warm"

    def _play(self, private: Path, inventory: Path, node: Node, connection: str) -> None:
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
        self.report.concerns = events.concerns
        self.report.changed_tasks = events.changed_tasks
        self.report.failed_tasks = events.failed_tasks
        try:
            self._ansible(private, inventory, node, events, variables, answer)
        except LifecycleError:
            known = {concern.name for concern in events.concerns}
            events.concerns += [
                Concern(play.name, status="not_run" if play.selected(tags, skip_tags) else "not_selected")
                for play in self._plays(answer)
                if play.matches and play.name not in known
            ]
            raise
        if tags and not any(play.matches and play.has(tags) for play in self._plays(answer)):
            self._remark = "no concern on this node matches these tags"

    @staticmethod
    def _plays(answer: Path) -> tuple[Play, ...]:
        said = Answer.read(answer)
        return said.plays if said else ()

    def _ansible(
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
            self._ansible_started = True
            try:
                runner.run()
                code = runner.rc
            except pexpect.TIMEOUT:  # Ansible has ended, and a process that it started keeps its terminal open
                code = 0 if events.stats else 1
        # Killed, it has no exit status, and its workers may be amid a task.
        self._ansible_ended = not runner.canceled and code is not None
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

    def _note(self, note: str) -> None:
        note = one_line(note)
        if note not in self.report.notes:
            self.report.notes.append(note)
            self.progress.say(f"note: {note}")


def require_root(options: Options) -> None:
    """Raise unless root runs us: whatever else a user may do, a run configures the machine."""
    if os.geteuid() != 0:
        raise InputError([Problem("hyperpod-lifecycle", "", "must run as root", f"sudo {options.command}")])
