# SPDX-License-Identifier: Apache-2.0
"""The one place that calls podman."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from hyperpod_lab.errors import LabError

Completed = subprocess.CompletedProcess[bytes]


@dataclass(frozen=True)
class Podman:
    """podman with the lab's own configuration; the system's is left alone."""

    containers_conf: Path

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

    def exists(self, kind: str, name: str) -> bool:
        """Whether there is such an ``image`` or ``network``; a podman that does not work is a LabError."""
        done = self.run(kind, "exists", name, check=False)
        if done.returncode not in (0, 1):
            raise LabError(f"podman does not work on this machine: {done.stderr.decode(errors='replace').strip()}")
        return done.returncode == 0

    def text(self, *arguments: str, timeout: float = 60) -> str:
        return self.run(*arguments, timeout=timeout).stdout.decode()

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
