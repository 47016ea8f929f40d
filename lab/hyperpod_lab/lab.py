# SPDX-License-Identifier: Apache-2.0
"""One lab: its network, its nodes, and what the cluster agent does to them.

The containers' labels say which nodes there are; `request.json` in the state folder says which there should be.
"""

from __future__ import annotations

import fcntl
import io
import ipaddress
import os
import re
import secrets
import shutil
import subprocess
import tarfile
import tempfile
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path

from hyperpod_lab import addresses, agent, image, machine, upload
from hyperpod_lab.agent import Hardware, Node
from hyperpod_lab.errors import LabError, LabUsageError
from hyperpod_lab.podman import ENVIRONMENT, Podman
from hyperpod_lab.services import Services
from hyperpod_lab.shape import Shape
from hyperpod_lab.storage import STORE, Storage
from hyperpod_lifecycle.cluster import Cluster, NodeType, load
from hyperpod_lifecycle.errors import InputError

STATE_ROOT = Path("/var/lib/hyperpod-lab")
DEFAULT_NAME = "hyperpod"
LABEL = "hyperpod-lab"
#: Everything the platform gives a script, and nothing else.
SCRIPT_PATH = ENVIRONMENT["PATH"]
SCRIPT_UNIT = "hyperpod-lab-on-create"
BOOT_SECONDS = 90
SCRIPT_SECONDS = 1800
RECONFIGURE_SECONDS = 30
REGISTER_SECONDS = 60
#: A node's first program where the kernel has no autofs, or is to look like it: systemd looks for the device.
INIT_WITHOUT_AUTOFS = (
    "rm -f /dev/autofs && sed '/\\tautofs$/d' /proc/filesystems >/run/fake_filesystems && "
    "mount --bind /run/fake_filesystems /proc/filesystems && exec /sbin/init"
)

Say = Callable[[str], None]


@dataclass(frozen=True)
class ScriptResult:
    """How one node's on_create.sh ended."""

    node: Node
    exit_code: int
    seconds: float
    summary: str  #: the last line it printed
    log: Path


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
        self.no_autofs = no_autofs
        self.podman = Podman(state_root / "containers.conf")
        #: The file servers, which stay when nodes are replaced.
        self.storage = Storage(
            self.state / "storage",
            nodes=lambda: [node for node in self.nodes() if node.running],
            address=lambda: str(addresses.gateway(self._subnet())),
            shell=lambda node, command: self.exec(node, ["sh", "-c", command], check=True),
        )
        #: What stands beside the cluster; see services.py.
        self.services = Services(name, self.network, self.state / "services", self.podman, self._subnet)

    def _podman_is_set_up(self) -> bool:
        """Whether any lab was ever up on this machine."""
        return self.podman.containers_conf.exists() and shutil.which("podman") is not None

    # --- what is there ---

    @property
    def network(self) -> str:
        return f"{LABEL}-{self.name}"

    @property
    def request(self) -> Shape | None:
        """What this lab was last asked to be; None if it is not up."""
        path = self.state / "request.json"
        return Shape.parse(path.read_text()) if path.exists() else None

    def nodes(self) -> list[Node]:
        """The nodes there are, in the order of the request."""
        if not self._podman_is_set_up():
            return []
        rows = self.podman.json("ps", "--all", "--format", "json", "--filter", f"label={LABEL}={self.name}")
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
        shape = self.request
        order = [name for group in shape.groups for name in group.instances] if shape else []
        return sorted(found, key=lambda node: (order.index(node.name) if node.name in order else len(order), node.name))

    def node(self, name: str) -> Node:
        """The node with this instance name, host name or address."""
        nodes = self.nodes()
        for node in nodes:
            if name in (node.name, node.host, str(node.address)):
                return node
        known = ", ".join(node.name for node in nodes) or "none; `hyperpod-lifecycle lab up` makes them"
        raise LabUsageError(f"lab {self.name} has no node {name}. Known nodes: {known}")

    def cluster(self) -> Cluster:
        """The cluster as the nodes' own JSON files have it; InputError if they are wrong."""
        shape = self._shape()
        return self._model(shape, self.nodes())

    def nodes_of(self, node_type: NodeType) -> list[Node]:
        types = {group.name: group.node_type for group in self.cluster().groups}
        return [node for node in self.nodes() if types.get(node.group) is node_type]

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
            done = self.podman.run("exec", *options, container, *argv, data=stdin, timeout=timeout, check=check)
        else:
            done = self.podman.enter(container, argv, env=env, data=stdin, timeout=timeout, check=check)
        out, err = (stream.decode(errors="replace") for stream in (done.stdout, done.stderr))
        return subprocess.CompletedProcess(list(argv), done.returncode, out, err)

    def _container(self, node: str | Node) -> str:
        if isinstance(node, Node):
            return node.container
        usual = self._container_of(node)
        return usual if self.podman.is_entered(usual) else self.node(node).container

    def _container_of(self, name: str) -> str:
        return f"{LABEL}-{self.name}-{name}"

    def put(
        self, node: str | Node, source: Path | bytes, dest: str, *, mode: int | None = None, owner: str = "root:root"
    ) -> None:
        """Copy a file, a folder or bytes (0644 by default) to an absolute path in a node."""
        archive = _tar({dest: source}, mode)
        self._in(node, ["tar", "--extract", "--no-same-owner", "--directory=/"], stdin=archive)
        if owner != "root:root":
            self._in(node, ["chown", "--recursive", owner, dest])

    def get(self, node: str | Node, path: str) -> bytes:
        return self.podman.enter(self._container(node), ["cat", "--", path], check=True).stdout

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
        self._wait_for_boot([where])

    def set_link(self, node: str, *, up: bool) -> None:
        """Take a node's network away, or give it back."""
        self._in(node, ["ip", "link", "set", "eth0", "up" if up else "down"])
        if up:
            # The kernel forgot it with the link.
            self._in(node, ["ip", "route", "replace", "default", "via", str(addresses.gateway(self._subnet()))])

    def reboot(self, node: str) -> None:
        where = self.node(node)
        self.podman.run("restart", "--time", "20", where.container, timeout=90)
        self._wait_for_boot([where])

    def _in(self, node: str | Node, argv: Sequence[str], *, stdin: bytes = b"") -> str:
        return self.exec(node, argv, stdin=stdin, timeout=120, check=True).stdout

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
        installed = machine.prepare(self.state_root)
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
            return self._settle(
                wanted, fresh, self.nodes(), scripts=scripts, upload_folder=upload_folder, parallel=parallel
            )

    def scale(
        self, group: str, count: int, *, scripts: bool = True, upload_folder: Path | None = None
    ) -> list[ScriptResult]:
        """Give a group ``count`` nodes. New ones run the scripts before the controller knows their names."""
        with self._locked():
            shape = self._shape()
            wanted = shape.resized({group: count})
            keep = {name for each in wanted.groups for name in each.instances}
            gone = [node for node in self.nodes() if node.name not in keep]
            self._remove(gone)
            self._save(wanted)
            fresh = self._make(wanted, False, None)
            return self._settle(wanted, fresh, fresh, scripts=scripts, upload_folder=upload_folder)

    def replace(self, name: str, *, scripts: bool = True, upload_folder: Path | None = None) -> list[ScriptResult]:
        """Replace a node as the service does: the same instance name, a new instance id, address and host name."""
        with self._locked():
            shape, old = self._shape(), self.node(name)
            self._remove([old])
            fresh = self._make(shape, False, None, avoid=[old.address])
            return self._settle(shape, fresh, fresh, scripts=scripts, upload_folder=upload_folder)

    def down(self, *, images: bool = False) -> list[str]:
        """Remove the nodes, the network and the state, and with ``images`` the images of every lab too."""
        with self._locked():
            if not self._podman_is_set_up():
                return []
            removed = [node.name for node in self.nodes()]
            self.services.remove_all()
            self._remove(self.nodes())
            if self._network_exists():
                self.podman.run("network", "rm", "--force", self.network)
            if self.state.exists():
                shutil.rmtree(self.state)
            if images:
                removed += image.remove_all(self.podman)
        return removed

    # --- making nodes ---

    def _shape(self) -> Shape:
        shape = self.request
        if shape is None:
            raise LabUsageError(f"lab {self.name} is not up; `hyperpod-lifecycle lab up` starts one")
        return shape

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

    def _make(self, shape: Shape, new_lab: bool, mirror: str | None, avoid: Sequence[IPv4Address] = ()) -> list[Node]:
        """Start what is missing and return the nodes that are new."""
        tag = image.ensure(self.podman, shape.release, mirror, self.say)
        made: list[Node] = []
        try:
            self._save(shape)
            subnet = self._ensure_network()
            self.storage.prepare(shape)
            present = {node.name: node for node in self.nodes()}
            for node in present.values():
                if not node.running:
                    self.podman.run("start", node.container)
            used = {node.address for node in present.values()} | set(avoid) | {addresses.gateway(subnet)}
            free = addresses.free_addresses(subnet, used)
            for group in shape.groups:
                for name in group.instances:
                    if name not in present:
                        node = self._new_node(name, group.name, group.instance_type, next(free))
                        made.append(node)
                        self._start(node, tag)
            self._wait_for_boot([*present.values(), *made])
        except BaseException:
            self.say("removing what was made, because not all of it could be")
            self._remove(made)
            if new_lab:
                if self._network_exists():
                    self.podman.run("network", "rm", "--force", self.network)
                shutil.rmtree(self.state)
            raise
        return made

    def _new_node(self, name: str, group: str, instance_type: str, address: IPv4Address) -> Node:
        instance_id = f"i-{secrets.token_hex(9)[:17]}"
        return Node(name, group, instance_type, instance_id, address, self._container_of(name))

    def _start(self, node: Node, tag: str) -> None:
        labels = {
            LABEL: self.name,
            f"{LABEL}.instance": node.name,
            f"{LABEL}.group": node.group,
            f"{LABEL}.instance-type": node.instance_type,
            f"{LABEL}.instance-id": node.instance_id,
            f"{LABEL}.address": str(node.address),
        }
        hidden = node.group in self.no_autofs or not machine.has_autofs()
        self.podman.run(
            "run",
            "--detach",
            "--systemd=always",
            "--privileged",
            "--pull=never",
            f"--name={node.container}",
            f"--hostname={node.host}",
            f"--network={self.network}",
            f"--network-alias={node.host}",
            f"--ip={node.address}",
            f"--volume={self.storage.root}:{STORE}",
            *(f"--add-host={name}:{addresses.gateway(self._subnet())}" for name in self.storage.names),
            *(f"--label={key}={value}" for key, value in labels.items()),
            tag,
            *(("sh", "-c", INIT_WITHOUT_AUTOFS) if hidden else ()),
            timeout=120,
        )

    def _remove(self, nodes: Iterable[Node]) -> None:
        containers = [node.container for node in nodes]
        if containers:
            # At once: podman fails on one that ends by itself just when its time is over.
            self.podman.run("rm", "--force", "--ignore", "--time", "0", *containers, timeout=60 + 10 * len(containers))

    def _network_exists(self) -> bool:
        return self.podman.exists("network", self.network)

    def _ensure_network(self) -> IPv4Network:
        with (self.state_root / "subnets.lock").open("w") as handle:
            fcntl.flock(handle, fcntl.LOCK_EX)
            if not self._network_exists():
                subnet = addresses.free_subnet(self._used_networks())
                if subnet is None:
                    raise LabError(
                        "every subnet the lab may use (10.70.0.0/16 to 10.119.0.0/16) is taken on this machine"
                    )
                gateway = addresses.gateway(subnet)
                options = [f"--subnet={subnet}", f"--gateway={gateway}", f"--label={LABEL}={self.name}"]
                self.podman.run("network", "create", *options, self.network)
        return self._subnet()

    def _subnet(self) -> IPv4Network:
        (network,) = self.podman.json("network", "inspect", self.network)
        return IPv4Network(network["subnets"][0]["subnet"])

    def _used_networks(self) -> list[IPv4Network]:
        names = self.podman.text("network", "ls", "--quiet").split()
        rows = self.podman.json("network", "inspect", *names) if names else []
        theirs = [each["subnet"] for row in rows for each in row.get("subnets") or []]
        routes = subprocess.run(["ip", "-4", "route"], capture_output=True, text=True, check=True, timeout=10).stdout
        ours = [
            line.split()[0]
            for line in routes.splitlines()
            if line and not line.startswith(("default", "unreachable", "blackhole"))
        ]
        return [network for text in (*theirs, *ours) if isinstance(network := ipaddress.ip_network(text), IPv4Network)]

    def _wait_for_boot(self, nodes: Iterable[Node]) -> None:
        deadline = time.monotonic() + BOOT_SECONDS
        for node in nodes:
            while True:
                state = self.exec(node, ["systemctl", "is-system-running"]).stdout.strip()
                if state == "running":
                    break
                if state == "degraded":
                    units = self.exec(node, ["systemctl", "--failed", "--plain", "--no-legend"]).stdout
                    names = ", ".join(line.split()[0] for line in units.splitlines())
                    self.say(f"{node.name}: booted, with failed units: {names}")
                    break
                if time.monotonic() > deadline:
                    raise LabError(
                        f"{node.name} did not boot within {BOOT_SECONDS} s: systemd says {state or 'nothing'}"
                    )
                time.sleep(0.2)

    # --- what the cluster agent does ---

    def _settle(
        self,
        shape: Shape,
        fresh: Sequence[Node],
        run_on: Sequence[Node],
        *,
        scripts: bool,
        upload_folder: Path | None,
        parallel: int = 0,
    ) -> list[ScriptResult]:
        """The agent's files, the scripts, and only then the new names for controllers that were there before."""
        nodes = self.nodes()
        self._write_node_files(shape, nodes)
        model = self._model_or_note(shape, nodes)
        if model:
            self._tell_controllers(self._model(shape, self._known_early(model, nodes, fresh)), nodes)
        results = []
        if scripts:
            folder = upload_folder or upload.build(shape, self.state / "upload", self.say)
            results = self._run_scripts(run_on, folder, parallel or len(run_on))
        if model:
            self._tell_controllers(model, nodes)
            moved = {str(node.address) for node in fresh} & {*model.controller_addresses}
            if moved and len(run_on) < len(nodes):
                # They cannot register before that, so nobody waits for it.
                self.say("the other nodes still ask the old controller; `lab up` runs their scripts again")
            elif results and all(result.exit_code == 0 for result in results):
                self._wait_until_registered(model)
        return results

    def _model(self, shape: Shape, nodes: Iterable[Node]) -> Cluster:
        with tempfile.TemporaryDirectory(prefix="hyperpod-lab-") as folder:
            resource_config = Path(folder, "resource_config.json")
            resource_config.write_text(agent.resource_config(shape, nodes))
            parameters = None
            if shape.provisioning_parameters is not None:
                parameters = Path(folder, "provisioning_parameters.json")
                parameters.write_text(shape.provisioning_parameters, encoding="utf-8")
            return load(resource_config, parameters)

    def _model_or_note(self, shape: Shape, nodes: Iterable[Node]) -> Cluster | None:
        """None when the files are wrong: nodes then have no slurm.conf, and the scripts must say what is wrong."""
        try:
            return self._model(shape, nodes)
        except InputError as error:
            self.say(f"no slurm.conf is written, because the files do not say what nodes are:\n{error}")
            return None

    def _write_node_files(self, shape: Shape, nodes: Sequence[Node]) -> None:
        key = self._munge_key()
        for node in nodes:
            files = agent.node_files(shape, nodes, node)
            self._install(node, {**{path: text.encode() for path, text in files.items()}}, "root:root", 0o600)
            self._install(node, {agent.MUNGE_KEY: key}, "munge:munge", 0o400)
            if agent.FAKE_NVIDIA in files:
                self._in(node, ["systemd-tmpfiles", "--create", agent.FAKE_NVIDIA])

    def _munge_key(self) -> bytes:
        path = self.state / "munge.key"
        if not path.exists():
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(descriptor, "wb") as handle:
                handle.write(secrets.token_bytes(1024))
        return path.read_bytes()

    def _install(self, node: Node, files: Mapping[str, bytes], owner: str, mode: int) -> list[str]:
        """Put files in place that differ from what is there, with their owner and mode from birth; return those."""
        # The archive goes to a folder only root can enter; an equal file keeps its inode and times.
        script = (
            'umask 077; new=$(mktemp -d) && trap \'rm -rf "$new"\' EXIT && tar -xC "$new" && cd "$new" || exit 1; '
            'find . -type f | while read -r file; do dest=${file#.}; cmp -s "$file" "$dest" && continue; '
            f'chown {owner} "$file" && chmod {mode:o} "$file" && mv "$file" "$dest" && echo "$dest" || exit 1; done'
        )
        return self._in(node, ["sh", "-c", script], stdin=_tar(dict(files), mode)).split()

    @staticmethod
    def _known_early(model: Cluster, nodes: Sequence[Node], fresh: Sequence[Node]) -> list[Node]:
        """The nodes whose names controllers know before the scripts run: at first all, later only those of before."""
        controllers = [node for node in nodes if str(node.address) in model.controller_addresses]
        if all(node in fresh for node in controllers):
            return list(nodes)
        return [node for node in nodes if node in controllers or node not in fresh]

    def _tell_controllers(self, model: Cluster, nodes: Sequence[Node]) -> None:
        """Bring slurm.conf and gres.conf up to date on every controller; a slurmctld that runs is told of a change."""
        memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2**20
        # A little less than there is, so that a node never registers with less than its line says.
        hardware = Hardware(os.cpu_count() or 1, memory * 9 // 10)
        files = {
            agent.SLURM_CONF: agent.slurm_conf(model, hardware).encode(),
            agent.GRES_CONF: agent.gres_conf(model).encode(),
        }
        controllers = [node for node in nodes if str(node.address) in model.controller_addresses]
        changed = [node for node in controllers if self._install(node, files, "root:root", 0o644)]
        for node in changed:
            # Before 23.11 only a restart takes new node names; the reconfigure tells the daemons on the nodes.
            self._in(node, ["systemctl", "try-restart", "slurmctld"])
        first = next((node for node in changed if self._slurmctld_runs(node)), None)
        if first is None:
            return
        deadline = time.monotonic() + RECONFIGURE_SECONDS
        while (done := self.exec(first, ["scontrol", "reconfigure"])).returncode != 0:
            if time.monotonic() > deadline:
                raise LabError(f"{first.name}: slurmctld does not take the new slurm.conf: {done.stderr.strip()}")
            time.sleep(0.5)

    def _slurmctld_runs(self, node: Node) -> bool:
        return self.exec(node, ["systemctl", "is-active", "slurmctld"]).returncode == 0

    def _wait_until_registered(self, model: Cluster) -> None:
        """Until every node that Slurm knows has registered: no name with the mark of one that does not answer."""
        deadline = time.monotonic() + REGISTER_SECONDS
        for node in self.nodes_of(NodeType.CONTROLLER):
            while self._slurmctld_runs(node):
                states = self.exec(node, ["sinfo", "--noheader", "--Node", "--format=%N %T"]).stdout.split("\n")
                waiting = {line.split()[0] for line in states if line.endswith("*") or " unknown" in line}
                if not waiting:
                    return
                if time.monotonic() > deadline:
                    self.say(f"not registered with Slurm after {REGISTER_SECONDS} s: {', '.join(sorted(waiting))}")
                    return
                time.sleep(0.5)

    # --- scripts ---

    def run_scripts(self, nodes: Sequence[Node], folder: Path, *, parallel: int = 0) -> list[ScriptResult]:
        """Run an upload folder's on_create.sh on nodes as the platform does."""
        with self._locked():
            return self._run_scripts(nodes, folder, parallel or len(nodes))

    def _run_scripts(self, nodes: Sequence[Node], folder: Path, parallel: int) -> list[ScriptResult]:
        if not nodes:
            return []
        if not (folder / "on_create.sh").is_file():
            raise LabUsageError(f"{folder} has no on_create.sh")
        (self.state / "logs").mkdir(exist_ok=True)
        archive = _tar({"/src": folder}, None)
        self.say(f"running on_create.sh on {len(nodes)} node{'s' if len(nodes) > 1 else ''}")
        with ThreadPoolExecutor(max_workers=parallel) as pool:
            running = [pool.submit(self._run_script, node, archive) for node in nodes]
            try:
                return [each.result() for each in running]
            except BaseException:
                for each in running:
                    each.cancel()
                # A node whose files were still being copied starts its script after a first stop.
                while wait(running, timeout=1).not_done:
                    for node in nodes:
                        self._stop_script(node)
                raise

    def _run_script(self, node: Node, archive: bytes) -> ScriptResult:
        self._stop_script(node)
        folder = f"/tmp/sagemaker-lifecycle-{secrets.token_hex(4)}"
        log = self.state / "logs" / f"{node.name}.log"
        self._in(node, ["mkdir", "--mode=0755", folder])
        self._in(node, ["tar", "--extract", "--no-same-owner", f"--directory={folder}"], stdin=archive)
        # A unit of its own, as under the real agent: nothing outlives a stop, and no terminal or HOME leaks in.
        argv = [
            *(
                "exec",
                node.container,
                "systemd-run",
                "--quiet",
                "--wait",
                "--collect",
                "--pipe",
                f"--unit={SCRIPT_UNIT}",
            ),
            *(f"--working-directory={folder}/src", "--property=KillMode=control-group", "--"),
            *("/usr/bin/env", "-i", f"PATH={SCRIPT_PATH}", "/bin/bash", "on_create.sh"),
        ]
        begin = time.monotonic()
        with log.open("wb") as output:
            process = self.podman.popen(argv, output)
            try:
                status = process.wait(timeout=SCRIPT_SECONDS)
            except subprocess.TimeoutExpired:
                self._stop_script(node)
                output.write(f"\nlab: stopped after {SCRIPT_SECONDS} s\n".encode())
                status = process.wait(timeout=60)
        self._in(node, ["rm", "-rf", folder])
        lines = log.read_text(errors="replace").splitlines()
        return ScriptResult(node, status, time.monotonic() - begin, lines[-1] if lines else "", log)

    def _stop_script(self, node: Node) -> None:
        """End a run that an interrupted command left behind."""
        unit = f"{SCRIPT_UNIT}.service"
        self._in(node, ["sh", "-c", f"! systemctl is-active --quiet {unit} || systemctl stop {unit}"])


def _tar(files: Mapping[str, Path | bytes], mode: int | None) -> bytes:
    """An archive owned by root of files and folders at absolute paths; ``mode`` None keeps the files' own."""

    def owned_by_root(member: tarfile.TarInfo) -> tarfile.TarInfo:
        member.uid = member.gid = 0
        member.uname = member.gname = "root"
        if mode is not None and member.isfile():
            member.mode = mode
        return member

    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for dest, source in files.items():
            if isinstance(source, Path):
                archive.add(source, arcname=dest.lstrip("/"), filter=owned_by_root)
            else:
                member = owned_by_root(tarfile.TarInfo(dest.lstrip("/")))
                member.size, member.mtime = len(source), time.time()
                archive.addfile(member, io.BytesIO(source))
    return buffer.getvalue()
