# SPDX-License-Identifier: Apache-2.0
"""What the agents do on nodes: put their files in place, keep Slurm's lines, and tell slurmctld."""

from __future__ import annotations

import hashlib
import os
import secrets
import shlex
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from hyperpod_lab.agent.config_files import FAKE_NVIDIA, controllers, node_files, node_type_of
from hyperpod_lab.agent.node import Hardware, Node
from hyperpod_lab.agent.slurm_files import SLURM_CONF, TOPOLOGY_CONF, rewritten, slurm_conf, slurm_files
from hyperpod_lab.errors import LabError
from hyperpod_lab.nodes import Nodes
from hyperpod_lab.shape import Shape

MUNGE_KEY = "/etc/munge/munge.key"
RECONFIGURE_SECONDS = 30
REGISTER_SECONDS = 60


class Agent:
    """The stand-in for the agents of one lab. ``state`` keeps what is the cluster's own: munge's key."""

    def __init__(self, nodes: Nodes, state: Path, say: Callable[[str], None]) -> None:
        self._nodes, self._state, self._say = nodes, state, say

    # --- every node ---

    def configure(self, shape: Shape, nodes: Sequence[Node], on: Sequence[Node]) -> None:
        """Write /opt/ml/config and munge's key on some nodes: the snapshot of all of them as they are now."""
        key = self._munge_key()
        for node in on:
            files = node_files(shape, nodes, node)
            self._nodes.install(node, {path: text.encode() for path, text in files.items()}, "root:root", 0o600)
            self._nodes.install(node, {MUNGE_KEY: key}, "munge:munge", 0o400)
            if shape.platform.image == "ami":
                self._nodes.must(node, ["systemctl", "start", "sagemaker-cluster-agent"])
            if FAKE_NVIDIA in files:
                self._nodes.must(node, ["systemd-tmpfiles", "--create", FAKE_NVIDIA])

    def _munge_key(self) -> bytes:
        path = self._state / "munge.key"
        if not path.exists():
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(descriptor, "wb") as handle:
                handle.write(secrets.token_bytes(1024))
        return path.read_bytes()

    # --- controllers ---

    def tell_controllers(self, shape: Shape, nodes: Sequence[Node]) -> None:
        """Write Slurm's files from nothing on every controller; a slurmctld that runs is told of a change."""
        files = {path: text.encode() for path, text in slurm_files(shape, nodes, _hardware()).items()}
        found = controllers(shape, nodes)
        for node in found:
            if TOPOLOGY_CONF not in files:
                self._nodes.must(node, ["rm", "-f", TOPOLOGY_CONF])
        changed = [node for node in found if self._nodes.install(node, files, "root:root", 0o644)]
        for node in changed:
            # Before 23.11 only a restart takes new node names; the reconfigure tells the daemons on the nodes.
            self._nodes.must(node, ["systemctl", "try-restart", "slurmctld"])
        self._reconfigure(changed)

    def rewrite(self, shape: Shape, nodes: Sequence[Node]) -> None:
        """Put the agent's own lines as they should be into each controller's slurm.conf, and reconfigure."""
        wanted = slurm_conf(shape, nodes, _hardware())
        found = controllers(shape, nodes)
        for node in found:
            if self._nodes.exec(node, ["test", "-e", SLURM_CONF]).returncode != 0:
                continue
            present = self._nodes.get_file(node, SLURM_CONF)
            new = rewritten(present.decode(), wanted).encode()
            # Not if another has written meanwhile: then the next time.
            script = (
                f"cat >{SLURM_CONF}.agent && "
                f'if [ "$(sha256sum <{SLURM_CONF})" = {shlex.quote(hashlib.sha256(present).hexdigest() + "  -")} ]; '
                f"then mv {SLURM_CONF}.agent {SLURM_CONF}; else rm {SLURM_CONF}.agent; fi"
            )
            self._nodes.must(node, ["sh", "-c", script], stdin=new)
        self._reconfigure(found)

    def _reconfigure(self, found: Sequence[Node]) -> None:
        first = next((node for node in found if self._slurmctld_runs(node)), None)
        if first is None:
            return
        deadline = time.monotonic() + RECONFIGURE_SECONDS
        while (done := self._nodes.exec(first, ["/opt/slurm/bin/scontrol", "reconfigure"])).returncode != 0:
            if time.monotonic() > deadline:
                raise LabError(f"{first.name}: slurmctld does not take the new slurm.conf: {done.stderr.strip()}")
            time.sleep(0.5)

    def _slurmctld_runs(self, node: Node) -> bool:
        return self._nodes.exec(node, ["systemctl", "is-active", "slurmctld"]).returncode == 0

    @contextmanager
    def at_work(self, shape: Shape, nodes: Callable[[], Sequence[Node]], every: float) -> Iterator[None]:
        """Rewrite the agent's lines again and again for the length of a block, as live agents may at any time."""
        ended = threading.Event()
        faults: list[Exception] = []

        def work() -> None:
            while not ended.wait(every):
                try:
                    self.rewrite(shape, nodes())
                except LabError as error:
                    # A slurmctld that a script restarts just then answers the next time.
                    faults.append(error)

        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()
        if faults:
            self._say(f"the agent could not rewrite its lines {len(faults)} times; the last time: {faults[-1]}")

    def wait_until_registered(self, shape: Shape, nodes: Sequence[Node]) -> None:
        """Until every compute node that Slurm knows has registered: none with the mark of one that does not answer."""
        deadline = time.monotonic() + REGISTER_SECONDS
        compute = {node.host for node in nodes if node_type_of(shape, node) == "compute"}
        command = ["/opt/slurm/bin/sinfo", "--noheader", "--Node", "--format=%N %T"]
        for node in controllers(shape, nodes):
            while self._slurmctld_runs(node):
                states = self._nodes.exec(node, command).stdout.split("\n")
                waiting = {line.split()[0] for line in states if line.endswith("*") or " unknown" in line} & compute
                if not waiting:
                    return
                if time.monotonic() > deadline:
                    self._say(f"not registered with Slurm after {REGISTER_SECONDS} s: {', '.join(sorted(waiting))}")
                    return
                time.sleep(0.5)


def _hardware() -> Hardware:
    """The machine's own, with the memory as it is sold: slurmd finds some per cent less, and may find 10 % less."""
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2**20
    return Hardware(os.cpu_count() or 1, memory * 104 // 100)
