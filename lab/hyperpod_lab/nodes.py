# SPDX-License-Identifier: Apache-2.0
"""The nodes of a lab as containers: which there are, how they are made, and the way into them.

Labels of the containers say which nodes there are.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from ipaddress import IPv4Address
from pathlib import Path

from hyperpod_lab import cgroups
from hyperpod_lab.agent import Node
from hyperpod_lab.archive import tar
from hyperpod_lab.errors import LabError, LabUsageError
from hyperpod_lab.podman import CREATE, Podman

LABEL = "hyperpod-lab"
BOOT_SECONDS = 90


class Nodes:
    """The containers of one lab. A node is called by its instance name or given as what :meth:`all` returns."""

    def __init__(self, lab: str, podman: Podman, say: Callable[[str], None]) -> None:
        self._lab, self._podman, self._say = lab, podman, say

    # --- what is there ---

    def all(self) -> list[Node]:
        """The nodes there are, by name."""
        rows = self._podman.json("ps", "--all", "--format", "json", "--filter", f"label={LABEL}={self._lab}")
        found = [
            Node(
                name=labels[f"{LABEL}.instance"],
                group=labels[f"{LABEL}.group"],
                instance_type=labels[f"{LABEL}.instance-type"],
                instance_id=labels[f"{LABEL}.instance-id"],
                address=IPv4Address(labels[f"{LABEL}.address"]),
                container=row["Names"][0],
                running=row["State"] == "running",
            )
            for row in rows
            for labels in [row["Labels"]]
        ]
        return sorted(found, key=lambda node: node.name)

    def get(self, name: str) -> Node:
        """The node with this instance name, host name or address."""
        nodes = self.all()
        for node in nodes:
            if name in (node.name, node.host, str(node.address)):
                return node
        known = ", ".join(node.name for node in nodes) or "none; `hyperpod-lifecycle lab up` makes them"
        raise LabUsageError(f"lab {self._lab} has no node {name}. Known nodes: {known}")

    def container_of(self, name: str) -> str:
        return f"{LABEL}-{self._lab}-{name}"

    def _container(self, node: str | Node) -> str:
        if isinstance(node, Node):
            return node.container
        usual = self.container_of(node)
        return usual if self._podman.is_entered(usual) else self.get(node).container

    # --- making and removing ---

    def create(self, node: Node, image: str, options: Sequence[str], init: Sequence[str]) -> None:
        """Start a new node: an empty disk, and the image on it; ``init`` is its first program if not the image's."""
        labels = {
            LABEL: self._lab,
            f"{LABEL}.instance": node.name,
            f"{LABEL}.group": node.group,
            f"{LABEL}.instance-type": node.instance_type,
            f"{LABEL}.instance-id": node.instance_id,
            f"{LABEL}.address": str(node.address),
        }
        self._podman.run(
            *("run", *CREATE, "--systemd=always"),
            *(f"--name={node.container}", f"--hostname={node.host}", f"--network-alias={node.host}"),
            *(f"--ip={node.address}", *options, *(f"--label={key}={value}" for key, value in labels.items())),
            *(image, *init),
            timeout=120,
        )

    def remove(self, nodes: Iterable[Node]) -> None:
        containers = [node.container for node in nodes]
        if containers:
            self._podman.remove(*containers)
        for container in containers:
            cgroups.remove(container)

    def wait_for_boot(self, nodes: Iterable[Node]) -> None:
        deadline = time.monotonic() + BOOT_SECONDS
        for node in nodes:
            while True:
                state = self.exec(node, ["systemctl", "is-system-running"]).stdout.strip()
                if state == "running":
                    break
                if state == "degraded":
                    units = self.exec(node, ["systemctl", "--failed", "--plain", "--no-legend"]).stdout
                    names = ", ".join(line.split()[0] for line in units.splitlines())
                    self._say(f"{node.name}: booted, with failed units: {names}")
                    break
                if time.monotonic() > deadline:
                    raise LabError(
                        f"{node.name} did not boot within {BOOT_SECONDS} s: systemd says {state or 'nothing'}"
                    )
                time.sleep(0.2)

    # --- into a node ---

    def exec(
        self,
        node: str | Node,
        argv: Sequence[str],
        *,
        user: str | None = None,
        env: Mapping[str, str] | None = None,
        stdin: bytes = b"",
        timeout: float = 300,
        check: bool = False,
    ) -> subprocess.CompletedProcess[str]:
        """Run a command in a node. With ``check`` a status other than 0 is a LabError with its output."""
        container = self._container(node)
        if user:
            options = ["--interactive", "--user", user]
            options += [word for key, value in (env or {}).items() for word in ("--env", f"{key}={value}")]
            done = self._podman.run("exec", *options, container, *argv, data=stdin, timeout=timeout, check=check)
        else:
            done = self._podman.enter(container, argv, env=env, data=stdin, timeout=timeout, check=check)
        out, err = (stream.decode(errors="replace") for stream in (done.stdout, done.stderr))
        return subprocess.CompletedProcess(list(argv), done.returncode, out, err)

    def must(self, node: str | Node, argv: Sequence[str], *, stdin: bytes = b"") -> str:
        """The output of a command that has to succeed."""
        return self.exec(node, argv, stdin=stdin, timeout=120, check=True).stdout

    def put(self, node: str | Node, source: Path | bytes, dest: str, mode: int | None, owner: str) -> None:
        self.must(node, ["tar", "--extract", "--no-same-owner", "--directory=/"], stdin=tar({dest: source}, mode))
        if owner != "root:root":
            self.must(node, ["chown", "--recursive", owner, dest])

    def get_file(self, node: str | Node, path: str) -> bytes:
        return self._podman.enter(self._container(node), ["cat", "--", path], check=True).stdout

    def install(self, node: Node, files: Mapping[str, bytes], owner: str, mode: int) -> list[str]:
        """Put files in place that differ from what is there, with their owner and mode from birth; return those."""
        # The archive goes to a folder only root can enter; an equal file keeps its inode and times.
        script = (
            'umask 077; new=$(mktemp -d) && trap \'rm -rf "$new"\' EXIT && tar -xC "$new" && cd "$new" || exit 1; '
            'find . -type f | while read -r file; do dest=${file#.}; cmp -s "$file" "$dest" && continue; '
            f'chown {owner} "$file" && chmod {mode:o} "$file" && mv "$file" "$dest" && echo "$dest" || exit 1; done'
        )
        return self.must(node, ["sh", "-c", script], stdin=tar(dict(files), mode)).split()
