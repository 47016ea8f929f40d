# SPDX-License-Identifier: Apache-2.0
"""`apply`: one run of Ansible on this node, from the lock to the report."""

from __future__ import annotations

import errno
import os
import shutil
import tempfile
import time
import traceback
from contextlib import ExitStack
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hyperpod_lifecycle import __version__, assumptions, causes, inputs, lock, processes, users
from hyperpod_lifecycle.ansible_run import AnsibleRun
from hyperpod_lifecycle.errors import ExitCode, InputError, LifecycleError, Problem
from hyperpod_lifecycle.log import Log
from hyperpod_lifecycle.options import Options, Site
from hyperpod_lifecycle.paths import Paths
from hyperpod_lifecycle.progress import Progress
from hyperpod_lifecycle.report import UNFINISHED, Report, one_line
from hyperpod_lifecycle.signals import Signals

if TYPE_CHECKING:
    from hyperpod_lifecycle.cluster import Node

#: Seconds to wait until this node has one of the addresses in the file.
NETWORK_SECONDS = 120.0

#: Errors of the machine, such as a full disk or an immutable file, which are not internal errors.
REFUSED = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EPERM)


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
        self._own_names = ("", "")  #: folder that Ansible reads, and the user's that it stands for
        self.start = time.monotonic()
        self.deadline = self.start + options.timeout
        self.transcript = None if options.check else Log(paths.ansible_log)  #: what Ansible prints
        self.ansible = AnsibleRun(options, site, paths, progress, signals, self.deadline, self.transcript)
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
            report.end(ExitCode.OK, self.ansible.remark)
        elif isinstance(error, InputError):
            lines = str(error).splitlines()
            if len(lines) > 1:
                for line in lines:
                    self.progress.say(line)
            more = f" (and {len(error.problems) - 1} more, above)" if len(error.problems) > 1 else ""
            report.end(error.exit_code, one_line(str(error.problems[0])) + more, f"correct it, then {again}")
        elif isinstance(error, LifecycleError):
            log = self.paths.ansible_log if self.ansible.started else self.paths.log_file
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
            self.ansible.play(private, inventory, node, self._connection(found), self.report)
        finally:
            if self.ansible.ended:
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

    def _note(self, note: str) -> None:
        note = one_line(note)
        if note not in self.report.notes:
            self.report.notes.append(note)
            self.progress.say(f"note: {note}")


def require_root(options: Options) -> None:
    """Raise unless root runs us: whatever else a user may do, a run configures the machine."""
    if os.geteuid() != 0:
        raise InputError([Problem("hyperpod-lifecycle", "", "must run as root", f"sudo {options.command}")])
