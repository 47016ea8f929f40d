# SPDX-License-Identifier: Apache-2.0
"""The one place that calls podman."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from hyperpod_lab.errors import LabError

Completed = subprocess.CompletedProcess[bytes]

#: Options of every container. `rm --force` kills it at once, because podman fails on one that ends by itself just when
#: its time is over; `rm` has a `--time` of its own only since podman 4.0.
CREATE = ("--detach", "--privileged", "--pull=never", "--stop-timeout=0")

#: What a command in a container finds.
ENVIRONMENT = {
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "HOME": "/root",
    "TERM": "xterm",
    "container": "podman",
}


@dataclass(frozen=True)
class Podman:
    """podman with the lab's own configuration; the system's is left alone."""

    containers_conf: Path
    #: The first process of each container that was entered, and when that process began.
    _first: dict[str, tuple[int, str]] = field(default_factory=dict, compare=False, repr=False)

    @property
    def environment(self) -> Mapping[str, str]:
        return {**os.environ, "CONTAINERS_CONF": str(self.containers_conf)}

    def run(
        self,
        *arguments: str,
        data: bytes = b"",
        stdin: IO[bytes] | None = None,
        timeout: float = 60,
        check: bool = True,
    ) -> Completed:
        """Run one podman command; its failure, if ``check``, is a LabError with podman's own words."""
        try:
            done = subprocess.run(
                ["podman", *arguments],
                env=self.environment,
                input=None if stdin else data,
                stdin=stdin,
                capture_output=True,
                timeout=timeout,
                check=False,
            )
        except FileNotFoundError as error:
            raise LabError("podman is not installed; run `hyperpod-lifecycle lab up`, which installs it") from error
        except subprocess.TimeoutExpired as error:
            raise LabError(f"podman {arguments[0]} took longer than {timeout:g} s: {' '.join(arguments)}") from error
        if check and done.returncode != 0:
            words = done.stderr.decode(errors="replace").strip() or f"exit status {done.returncode}"
            raise LabError(f"podman {' '.join(arguments[:2])} failed: {words}")
        return done

    def enter(
        self,
        container: str,
        argv: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        data: bytes = b"",
        timeout: float = 60,
        check: bool = False,
    ) -> Completed:
        """Run a command as root inside a privileged container, without podman, whose `exec` costs more than most.

        Unlike there, the command is in none of the container's cgroups: to `pause` it is somebody else.
        """
        spaces = ("--mount", "--uts", "--ipc", "--net", "--pid", "--cgroup")
        process = subprocess.Popen(
            ["nsenter", f"--target={self._first_process(container)}", *spaces, "--", *argv],
            env={**ENVIRONMENT, **(env or {})},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        try:
            out, err = process.communicate(data, timeout)
        except BaseException as error:
            # The command is a child of nsenter's and would keep our pipes open.
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            if isinstance(error, subprocess.TimeoutExpired):
                raise LabError(f"{container}: {shlex.join(argv)} took longer than {timeout:g} s") from error
            raise
        status = process.returncode if process.returncode >= 0 else 128 - process.returncode  # it ends as that did
        if check and status:
            words = (err.strip() or out.strip()).decode(errors="replace")[-2000:]
            raise LabError(f"{container}: {shlex.join(argv)} ended with {status}: {words}")
        return Completed(list(argv), status, out, err)

    def is_entered(self, container: str) -> bool:
        """Whether it is known to run, without asking podman."""
        pid, began = self._first.get(container, (0, ""))
        return bool(pid) and _began(pid) == began

    def _first_process(self, container: str) -> int:
        if not self.is_entered(container):
            pid = int(self.text("inspect", "--format", "{{.State.Pid}}", container))
            if not pid:
                raise LabError(f"{container} does not run")
            self._first[container] = pid, _began(pid)
        return self._first[container][0]

    def exists(self, kind: str, name: str) -> bool:
        """Whether there is such an ``image`` or ``network``; a podman that does not work is a LabError."""
        done = self.run(kind, "exists", name, check=False)
        if done.returncode not in (0, 1):
            raise LabError(f"podman does not work on this machine: {done.stderr.decode(errors='replace').strip()}")
        return done.returncode == 0

    def text(self, *arguments: str, timeout: float = 60) -> str:
        return self.run(*arguments, timeout=timeout).stdout.decode()

    def remove(self, *containers: str) -> None:
        """Kill and remove containers; those that do not exist are ignored."""
        self.run("rm", "--force", "--ignore", *containers, timeout=60 + 10 * len(containers))

    def json(self, *arguments: str) -> Any:
        return json.loads(self.text(*arguments) or "[]")

    def popen(self, arguments: Sequence[str], output: IO[bytes]) -> subprocess.Popen[bytes]:
        """Start a long command whose whole output goes to a file; the caller waits with its own limit."""
        return subprocess.Popen(
            ["podman", *arguments],
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )


def _began(pid: int) -> str:
    """When a process began, which tells it from a later one with its number; empty if it has ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except (FileNotFoundError, ProcessLookupError):
        return ""
