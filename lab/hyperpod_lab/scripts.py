# SPDX-License-Identifier: Apache-2.0
"""Runs of on_create.sh as the platform does them."""

from __future__ import annotations

import secrets
import subprocess
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path

from hyperpod_lab.agent import Node
from hyperpod_lab.archive import tar
from hyperpod_lab.errors import LabUsageError
from hyperpod_lab.nodes import Nodes
from hyperpod_lab.podman import ENVIRONMENT, Podman

UNIT = "hyperpod-lab-on-create"
#: Everything the platform gives a script, and nothing else.
PATH = ENVIRONMENT["PATH"]
SECONDS = 1800


@dataclass(frozen=True)
class ScriptResult:
    """How one node's on_create.sh ended."""

    node: Node
    exit_code: int
    seconds: float
    summary: str  #: the last line it printed
    log: Path


class Scripts:
    """The runs of one lab; ``logs`` has the output of each node's last one."""

    def __init__(self, nodes: Nodes, podman: Podman, logs: Path, say: Callable[[str], None]) -> None:
        self.logs = logs
        self._nodes, self._podman, self._say = nodes, podman, say

    def run(self, nodes: Sequence[Node], folder: Path, staging: str, *, parallel: int = 0) -> list[ScriptResult]:
        """Run an upload folder's on_create.sh on nodes; ``staging`` makes the name of the folder it lies in."""
        if not nodes:
            return []
        if not (folder / "on_create.sh").is_file():
            raise LabUsageError(f"{folder} has no on_create.sh")
        self.logs.mkdir(exist_ok=True)
        archive = tar({"/": folder}, None)
        self._say(f"running on_create.sh on {len(nodes)} node{'s' if len(nodes) > 1 else ''}")
        with ThreadPoolExecutor(max_workers=parallel or len(nodes)) as pool:
            running = [pool.submit(self._run, node, archive, staging) for node in nodes]
            try:
                return [each.result() for each in running]
            except BaseException:
                for each in running:
                    each.cancel()
                # A node whose files were still being copied starts its script after a first stop.
                while wait(running, timeout=1).not_done:
                    for node in nodes:
                        self._stop(node)
                raise

    def _run(self, node: Node, archive: bytes, staging: str) -> ScriptResult:
        self._stop(node)
        top, folder = staged(staging)
        log = self.logs / f"{node.name}.log"
        self._nodes.must(node, ["install", "--directory", "--mode=0755", folder])
        self._nodes.must(node, ["tar", "--extract", "--no-same-owner", f"--directory={folder}"], stdin=archive)
        # A unit of its own, as under the real agent: nothing outlives a stop, and no terminal or HOME leaks in.
        argv = [
            *("exec", node.container, "systemd-run", "--quiet", "--wait", "--collect", "--pipe", f"--unit={UNIT}"),
            *(f"--working-directory={folder}", "--property=KillMode=control-group", "--"),
            *("/usr/bin/env", "-i", f"PATH={PATH}", "HYPERPOD_LOG_GRACE=0", "/bin/bash", "on_create.sh"),
        ]
        begin = time.monotonic()
        with log.open("wb") as output:
            process = self._podman.popen(argv, output)
            try:
                status = process.wait(timeout=SECONDS)
            except subprocess.TimeoutExpired:
                self._stop(node)
                output.write(f"\nlab: stopped after {SECONDS} s\n".encode())
                status = process.wait(timeout=60)
        self._nodes.must(node, ["rm", "-rf", top])
        lines = log.read_text(errors="replace").splitlines()
        return ScriptResult(node, status, time.monotonic() - begin, lines[-1] if lines else "", log)

    def _stop(self, node: Node) -> None:
        """End a run that an interrupted command left behind."""
        unit = f"{UNIT}.service"
        self._nodes.must(node, ["sh", "-c", f"! systemctl is-active --quiet {unit} || systemctl stop {unit}"])


def staged(staging: str) -> tuple[str, str]:
    """The folder to remove afterwards, and the scripts' own: both shapes are seen on live nodes."""
    if staging == "bucket":
        top = "/tmp/sagemaker-lab-bucket"
        return top, f"{top}/life cycle/v1/src"
    top = f"/tmp/sagemaker-lifecycle-{secrets.token_hex(4)}"
    return top, f"{top}/src"
