# SPDX-License-Identifier: Apache-2.0
"""fake_lustre and fake_nfs: the file servers that a lab's nodes mount, and the switches that make them fail.

A file system is a folder below the lab's state, which every node sees at :data:`STORE`. What mounts it there is in
`fakes/fsx`.
"""

from __future__ import annotations

import fcntl
import json
import shlex
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from hyperpod_lab.agent import Node
from hyperpod_lab.agent.request import file_systems
from hyperpod_lab.shape import Shape

STORE = "/srv/fake_fsx"
NO_MODULE = "/etc/fake_lustre_has_no_module"
OPENZFS_EXPORT = "fsx"

#: Run a shell command in a node; LabError if it fails.
Shell = Callable[[str | Node, str], object]


@dataclass(frozen=True)
class Switches:
    """How a file server misbehaves; all nodes see it at once. The node's `fake_fsx.py` reads the same fields."""

    fail_mounts: int = 0  #: so many more mounts fail, on whichever node
    fail_writes: int = 0  #: so many more changes fail with an input/output error
    writable_at: float = 0  #: every change before this time fails with an input/output error
    read_only: bool = False
    root_squash: bool = False  #: root is nobody, as with NFS
    hang: bool = False  #: nothing is answered until this ends


class Storage:
    """The file servers of one lab. A file system is called by its DNS name."""

    def __init__(
        self, root: Path, nodes: Callable[[], Sequence[Node]], address: Callable[[], str], shell: Shell
    ) -> None:
        self.root = root
        self._nodes, self._address, self._shell = nodes, address, shell

    # --- what there is ---

    def prepare(self, shape: Shape) -> None:
        """Make the file systems of a cluster's files; those that are there stay as they are."""
        # Every node has it mounted, also where there are no file systems.
        self.root.mkdir(parents=True, exist_ok=True)
        for each in file_systems(shape):
            self._folder(each.dns_name, each.mount_name or OPENZFS_EXPORT)

    def create(self, dns_name: str, export: str = OPENZFS_EXPORT) -> None:
        """A further file system, known to the nodes that run: ``export`` is Lustre's mount name, or OpenZFS's path."""
        self._folder(dns_name, export)
        for node in self._nodes():
            self.set_names(node, known=True)

    def _folder(self, dns_name: str, export: str) -> None:
        (self.root / dns_name / "exports" / export).mkdir(parents=True, exist_ok=True)

    def path(self, dns_name: str) -> Path:
        """A file system's root, as the host sees it."""
        (folder,) = (self.root / dns_name / "exports").iterdir()
        return folder

    @property
    def names(self) -> list[str]:
        return sorted(each.name for each in self.root.iterdir()) if self.root.is_dir() else []

    # --- switches ---

    def set(self, dns_name: str, **switches: float) -> None:
        """Set some of :class:`Switches`; the others stay."""
        folder = self.root / dns_name
        path = folder / "switches.json"
        with (folder / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            now = json.loads(path.read_text()) if path.exists() else {}
            path.with_suffix(".new").write_text(json.dumps(asdict(Switches(**{**now, **switches}))))
            path.with_suffix(".new").replace(path)

    def get(self, dns_name: str) -> Switches:
        path = self.root / dns_name / "switches.json"
        return Switches(**json.loads(path.read_text())) if path.exists() else Switches()

    def slow(self, dns_name: str, seconds: float) -> None:
        """It can be mounted, but not written for so long."""
        self.set(dns_name, writable_at=time.time() + seconds)

    def heal(self) -> None:
        """Every switch off, every name known, the module there."""
        for name in self.names:
            (self.root / name / "switches.json").unlink(missing_ok=True)
        for node in self._nodes():
            self.set_names(node, known=True)
            self.set_module(node, present=True)

    @contextmanager
    def switched(self, dns_name: str, **switches: float) -> Iterator[None]:
        """Switches for the length of a block."""
        self.set(dns_name, **switches)
        try:
            yield
        finally:
            self.set(dns_name, **{key: getattr(Switches(), key) for key in switches})

    def set_names(self, node: str | Node, *, known: bool) -> None:
        """Whether a node can resolve the names of the file systems. A container that is started again can."""
        patterns = " ".join(f"-e {name}" for name in self.names)
        lines = [f"{self._address()} {name}" for name in self.names] if known else []
        # The file is written into, because podman has mounted it.
        command = f"kept=$(grep -vwF {patterns} /etc/hosts); printf '%s\\n' \"$kept\" {shlex.join(lines)} >/etc/hosts"
        if patterns:
            self._shell(node, command)

    def set_module(self, node: str | Node, *, present: bool) -> None:
        """Whether a node's kernel has a Lustre module."""
        self._shell(node, f"{'rm -f' if present else 'touch'} {NO_MODULE}")
