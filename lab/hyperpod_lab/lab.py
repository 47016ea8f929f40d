# SPDX-License-Identifier: Apache-2.0
"""One lab: its network, its nodes, and what the service does with them.

The containers' labels say which nodes there are; `request.json` in the state folder says which there should be.
"""

from __future__ import annotations

import fcntl
import json
import re
import shutil
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace as replace_fields
from ipaddress import IPv4Address
from pathlib import Path
from time import sleep

from hyperpod_lab import image, machine, upload
from hyperpod_lab.agent import Node
from hyperpod_lab.agent.config_files import controllers, node_type_of
from hyperpod_lab.agent.deeds import Agent
from hyperpod_lab.agent.request import parts
from hyperpod_lab.errors import LabError, LabUsageError
from hyperpod_lab.making import Maker, instance_id
from hyperpod_lab.network import Network
from hyperpod_lab.nodes import LABEL, Nodes
from hyperpod_lab.podman import Podman
from hyperpod_lab.scripts import ScriptResult, Scripts
from hyperpod_lab.services import Services
from hyperpod_lab.shape import GroupShape, NodeType, Shape
from hyperpod_lab.storage import Storage

__all__ = ["DEFAULT_NAME", "STATE_ROOT", "Lab", "ScriptResult"]

STATE_ROOT = Path("/var/lib/hyperpod-lab")
DEFAULT_NAME = "hyperpod"
#: Roots that a software update tries before it rolls back; four were seen on a live cluster.
UPDATE_TRIES = 3

Say = Callable[[str], None]


class Lab:
    """A lab by name. Methods that change it hold its lock; a second command is told so."""

    def __init__(
        self,
        name: str = DEFAULT_NAME,
        *,
        state_root: Path = STATE_ROOT,
        say: Say = lambda _: None,
        no_autofs: Collection[str] = (),
    ) -> None:
        """``no_autofs`` names the groups whose new nodes look as if their kernel had no autofs."""
        if not re.fullmatch(r"[a-z0-9][a-z0-9-]{0,30}", name):
            raise LabUsageError(f"{name!r} cannot name a lab: small letters, digits and '-', at most 31")
        self.name = name
        self.state_root = state_root
        self.state = state_root / name
        self.say = say
        self.podman = Podman(state_root / "containers.conf")
        self._network = Network(f"{LABEL}-{name}", f"{LABEL}={name}", state_root, self.podman)
        self._nodes = Nodes(name, self.podman, say)
        #: Runs a command in a node.
        self.exec = self._nodes.exec
        self._agent = Agent(self._nodes, self.state, say)
        self._scripts = Scripts(self._nodes, self.podman, self.state / "logs", say)
        #: The file servers, which stay when nodes are replaced.
        self.storage = Storage(
            self.state / "storage",
            nodes=lambda: [node for node in self.nodes() if node.running],
            address=lambda: str(self._network.gateway),
            shell=lambda node, command: self.exec(node, ["sh", "-c", command], check=True),
        )
        self._maker = Maker(self._nodes, self._network, self.storage, self.podman, say, no_autofs)
        #: What stands beside the cluster; see services.py.
        self.services = Services(
            name, self._network.name, self.state / "services", self.podman, lambda: self._network.subnet
        )

    def _podman_is_set_up(self) -> bool:
        """Whether any lab was ever up on this machine."""
        return self.podman.containers_conf.exists() and shutil.which("podman") is not None

    # --- what is there ---

    @property
    def request(self) -> Shape | None:
        """What this lab was last asked to be; None if it is not up."""
        path = self.state / "request.json"
        return Shape.parse(path.read_text()) if path.exists() else None

    @property
    def shape(self) -> Shape:
        """The same of a lab that is up; else LabUsageError."""
        if self.request is None:
            raise LabUsageError(f"lab {self.name} is not up; `hyperpod-lifecycle lab up` starts one")
        return self.request

    @property
    def update_status(self) -> str | None:
        """``SoftwareUpdateStatus`` of the last software update; None if there was none."""
        path = self.state / "update-status"
        return path.read_text() if path.exists() else None

    def nodes(self) -> list[Node]:
        """The nodes there are, in the order of the request."""
        if not self._podman_is_set_up():
            return []
        shape = self.request
        order = [name for group in shape.groups for name in group.instances] if shape else []
        return sorted(
            self._nodes.all(),
            key=lambda node: (order.index(node.name) if node.name in order else len(order), node.name),
        )

    def node(self, name: str) -> Node:
        """The node with this instance name, host name or address."""
        return self._nodes.get(name)

    def nodes_of(self, node_type: NodeType) -> list[Node]:
        """The nodes of a type; LabUsageError if the files do not say which is the controller."""
        shape = self.shape
        parts(shape)
        return [node for node in self.nodes() if node_type_of(shape, node) == node_type]

    # --- into a node ---

    def put(
        self, node: str | Node, source: Path | bytes, dest: str, *, mode: int | None = None, owner: str = "root:root"
    ) -> None:
        """Copy a file, a folder or bytes (0644 by default) to an absolute path in a node."""
        self._nodes.put(node, source, dest, mode, owner)

    def get(self, node: str | Node, path: str) -> bytes:
        return self._nodes.get_file(node, path)

    def pause(self, node: str) -> None:
        """Freeze every process of a node, as a hung machine looks to the others."""
        self.podman.run("pause", self.node(node).container)

    def unpause(self, node: str) -> None:
        self.podman.run("unpause", self.node(node).container)

    def stop(self, node: str) -> None:
        """End every process of a node at once, as when its machine dies."""
        self.podman.run("stop", "--time", "0", self.node(node).container, timeout=60)

    def start(self, node: str) -> None:
        """Start a node that was stopped; its disk is as it was."""
        where = self.node(node)
        self.podman.run("start", where.container, timeout=60)
        self._nodes.wait_for_boot([where])

    def set_link(self, node: str, *, up: bool) -> None:
        """Take a node's network away, or give it back."""
        self._nodes.must(node, ["ip", "link", "set", "eth0", "up" if up else "down"])
        if up:
            # The kernel forgot it with the link.
            self._nodes.must(node, ["ip", "route", "replace", "default", "via", str(self._network.gateway)])

    def reboot(self, node: str) -> None:
        """Reboot a node: disks, id, address and name stay, and no scripts run."""
        where = self.node(node)
        self.podman.run("restart", "--time", "20", where.container, timeout=90)
        self._nodes.wait_for_boot([where])

    # --- up and down ---

    def up(
        self,
        shape: Shape | None = None,
        *,
        scripts: bool = True,
        upload_folder: Path | None = None,
        mirror: str | None = None,
        parallel: int = 0,
    ) -> list[ScriptResult]:
        """Make the lab what ``shape`` says (None: what it was last asked to be) and run the scripts on every node.

        Nodes that run are kept. If making nodes fails half way, what this call made is removed again.
        """
        asked = shape or self.request
        installed = machine.prepare(self.state_root, asked.platform.image if asked else "bare")
        if installed:
            self.say(f"installed {', '.join(installed)}")
        if not machine.has_autofs():
            self.say("no autofs in this kernel: nodes mount file systems at boot, not on first access")
        with self._locked():
            current = self.request
            if current and shape and (differences := current.differences(shape)):
                raise LabUsageError(
                    f"lab {self.name} is up in another shape; `scale` changes a group, `down` makes room, "
                    "--name makes a second lab:\n" + "\n".join(f"- {line}" for line in differences)
                )
            wanted = current or shape
            if wanted is None:
                raise LabUsageError(f"lab {self.name} is not up, and no shape is given")
            fresh = self._make(wanted, current is None, mirror)
            nodes = self.nodes()
            self._agent.configure(wanted, nodes, nodes)
            return self._settle(wanted, fresh, nodes, scripts=scripts, upload_folder=upload_folder, parallel=parallel)

    def scale(
        self, group: str, count: int, *, scripts: bool = True, upload_folder: Path | None = None
    ) -> list[ScriptResult]:
        """Give a group ``count`` nodes. New ones run the scripts before the controller knows their names."""
        with self._locked():
            return self._change(self.shape.resized({group: count}), scripts, upload_folder)

    def add_group(
        self, group: GroupShape, partition: str, *, scripts: bool = True, upload_folder: Path | None = None
    ) -> list[ScriptResult]:
        """Add a group of compute nodes, as UpdateCluster does."""
        with self._locked():
            shape = self.shape
            if any(each.node_type for each in shape.groups):
                group = replace_fields(group, node_type="compute", partitions=(partition,))
                shape = shape.with_group(group)
            else:
                parameters = json.loads(shape.provisioning_parameters or "{}")
                worker = {"instance_group_name": group.name, "partition_name": partition}
                parameters["worker_groups"] = [*(parameters.get("worker_groups") or []), worker]
                text = json.dumps(parameters, indent=2) + "\n"
                shape = replace_fields(shape.with_group(group), provisioning_parameters=text)
            return self._change(shape, scripts, upload_folder)

    def _change(self, wanted: Shape, scripts: bool, upload_folder: Path | None) -> list[ScriptResult]:
        keep = {name for each in wanted.groups for name in each.instances}
        self._nodes.remove([node for node in self.nodes() if node.name not in keep])
        self._save(wanted)
        fresh = self._make(wanted, False, None)
        self._configure_fresh(wanted, fresh)
        return self._settle(wanted, fresh, fresh, scripts=scripts, upload_folder=upload_folder)

    def replace(
        self, name: str, *, new_address: bool = False, scripts: bool = True, upload_folder: Path | None = None
    ) -> list[ScriptResult]:
        """Replace a node as the service does: new instance id, disks and host keys; name and address usually stay."""
        with self._locked():
            shape, old = self.shape, self.node(name)
            self._nodes.remove([old])
            if new_address:
                fresh = self._make(shape, False, None, avoid=[old.address])
            else:
                kept = replace_fields(old, instance_id=instance_id())
                fresh = self._make(shape, False, None, given={name: kept})
            self._configure_fresh(shape, fresh)
            late = fresh if new_address else []
            return self._settle(shape, late, fresh, scripts=scripts, upload_folder=upload_folder)

    def update(
        self,
        groups: Sequence[str] = (),
        *,
        prepare: Callable[[Node], object] = lambda node: None,
        upload_folder: Path | None = None,
    ) -> list[ScriptResult]:
        """Do what UpdateClusterSoftware does: every root anew from the image, ids, names and addresses kept.

        ``prepare`` makes a new root what the newer image is. Nodes whose scripts fail get further roots; if none
        succeeds, all go back to the old image. The results of all runs come back, in their order.
        """
        with self._locked():
            shape = self.shape
            shape.resized(dict.fromkeys(groups, 0))  # groups that there are
            names = [node.name for node in self.nodes() if not groups or node.group in groups]
            folder = upload_folder or self._build(shape)
            self._set_update_status("InProgress")
            results: list[ScriptResult] = []
            for _ in range(UPDATE_TRIES):
                results += (tried := self._renew(shape, names, folder, prepare))
                failed = [each.node.name for each in tried if each.exit_code != 0]
                if not failed:
                    self._set_update_status("Succeeded")
                    return results
                self.say(f"the scripts failed on {', '.join(failed)}")
            self._set_update_status("RollbackInProgress")
            results += self._renew(shape, names, folder, lambda node: None)
            self._set_update_status("Failed")
            return results

    def _renew(
        self, shape: Shape, names: Sequence[str], folder: Path, prepare: Callable[[Node], object]
    ) -> list[ScriptResult]:
        """New roots for nodes, and a run of the scripts on them."""
        old = [self.node(name) for name in names]
        self._nodes.remove(old)
        fresh = self._make(shape, False, None, given={node.name: node for node in old})
        for node in fresh:
            prepare(node)
        self._configure_fresh(shape, fresh)
        return self._settle(shape, [], fresh, scripts=True, upload_folder=folder)

    def _set_update_status(self, status: str) -> None:
        (self.state / "update-status").write_text(status)

    def run_scripts(self, nodes: Sequence[Node], folder: Path, *, parallel: int = 0) -> list[ScriptResult]:
        """Run an upload folder's on_create.sh on nodes as the platform does."""
        with self._locked():
            return self._scripts.run(nodes, folder, self.shape.platform.staging, parallel=parallel)

    def agent_at_work(self, every: float = 1) -> AbstractContextManager[None]:
        """The agent rewrites its lines and reconfigures slurmctld again and again for the length of a block."""
        return self._agent.at_work(self.shape, self.nodes, every)

    def down(self, *, images: bool = False) -> list[str]:
        """Remove the nodes, the network and the state, and with ``images`` the images of every lab too."""
        with self._locked():
            if not self._podman_is_set_up():
                return []
            nodes = self.nodes()
            removed = [node.name for node in nodes]
            self.services.remove_all()
            self._nodes.remove(nodes)
            self._network.remove()
            if self.state.exists():
                shutil.rmtree(self.state)
            if images:
                removed += image.remove_all(self.podman)
        return removed

    # --- making nodes ---

    @contextmanager
    def _locked(self) -> Iterator[None]:
        self.state_root.mkdir(parents=True, exist_ok=True)
        with (self.state_root / f"{self.name}.lock").open("w") as handle:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise LabError(f"another command is changing lab {self.name}; wait until it ends") from error
            yield

    def _save(self, shape: Shape) -> None:
        self.state.mkdir(parents=True, exist_ok=True, mode=0o700)
        path = self.state / "request.json"
        path.with_suffix(".new").write_text(shape.dump())
        path.with_suffix(".new").replace(path)

    def _make(
        self,
        shape: Shape,
        new_lab: bool,
        mirror: str | None,
        *,
        avoid: Sequence[IPv4Address] = (),
        given: Mapping[str, Node] | None = None,
    ) -> list[Node]:
        """Start what is missing and return the nodes that are new; ``given`` are those that keep what they were."""
        tag = image.ensure(self.podman, shape.release, shape.platform.image, mirror, self.say)
        try:
            self._save(shape)
            return self._maker.make(shape, tag, avoid, given or {})
        except BaseException:
            if new_lab:
                self._network.remove()
                shutil.rmtree(self.state)
            raise

    # --- after nodes have booted ---

    def _configure_fresh(self, shape: Shape, fresh: Sequence[Node]) -> None:
        """The agent's files on new nodes and controllers; the copies of the others stay as old as they are."""
        nodes = self.nodes()
        found = controllers(shape, nodes)
        self._agent.configure(shape, nodes, [node for node in nodes if node in fresh or node in found])

    def _settle(
        self,
        shape: Shape,
        late: Sequence[Node],
        run_on: Sequence[Node],
        *,
        scripts: bool,
        upload_folder: Path | None,
        parallel: int = 0,
    ) -> list[ScriptResult]:
        """Slurm's files, the scripts, and only then the names of ``late`` nodes for controllers that were there."""
        nodes = self.nodes()
        known = self._is_known(shape)
        found = controllers(shape, nodes)
        early = nodes if all(node in late for node in found) else [n for n in nodes if n in found or n not in late]
        if known:
            self._agent.tell_controllers(shape, early)
        results: list[ScriptResult] = []
        if scripts:
            folder = upload_folder or self._build(shape)
            every = shape.platform.rewrite_every
            at_work = self._agent.at_work(shape, lambda: early, every) if every and known else nullcontext()
            with at_work:
                results = self._scripts.run(run_on, folder, shape.platform.staging, parallel=parallel)
        if known:
            if len(early) < len(nodes):
                sleep(shape.platform.late_lines)
            self._agent.tell_controllers(shape, nodes)
            if any(node in late for node in found) and len(run_on) < len(nodes):
                # They cannot register before that, so nobody waits for it.
                self.say("the other nodes still ask the old controller; `lab up` runs their scripts again")
            elif results and all(result.exit_code == 0 for result in results):
                self._agent.wait_until_registered(shape, nodes)
        return results

    def _is_known(self, shape: Shape) -> bool:
        """Whether the files say what nodes are: else there is no slurm.conf, and the scripts must say what is wrong."""
        try:
            parts(shape)
        except LabUsageError as error:
            self.say(f"no slurm.conf is written, because the files do not say what nodes are: {error}")
            return False
        return True

    def _build(self, shape: Shape) -> Path:
        return upload.build(shape, self.state / "upload", self.say)
