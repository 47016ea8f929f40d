# SPDX-License-Identifier: Apache-2.0
"""How the nodes of a shape come to be: names, ids, addresses, and what their containers are given."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection, Mapping, Sequence
from ipaddress import IPv4Address

from hyperpod_lab import addresses, cgroups, machine
from hyperpod_lab.agent import Node
from hyperpod_lab.agent.config_files import node_type_of
from hyperpod_lab.image import Release
from hyperpod_lab.network import Network
from hyperpod_lab.nodes import Nodes
from hyperpod_lab.podman import Podman
from hyperpod_lab.shape import Shape
from hyperpod_lab.storage import STORE, Storage

#: So long after its boot a node's instance store is mounted.
SCRATCH_SECONDS = 3
#: A node's first program where the kernel has no autofs, or is to look like it: systemd looks for the device.
INIT_WITHOUT_AUTOFS = (
    "rm -f /dev/autofs && sed '/\\tautofs$/d' /proc/filesystems >/run/fake_filesystems && "
    "mount --bind /run/fake_filesystems /proc/filesystems && exec /sbin/init"
)


def instance_id() -> str:
    """A made-up id of an EC2 instance."""
    return f"i-{secrets.token_hex(9)[:17]}"


class Maker:
    """Makes the nodes of one lab."""

    def __init__(
        self,
        nodes: Nodes,
        network: Network,
        storage: Storage,
        podman: Podman,
        say: Callable[[str], None],
        no_autofs: Collection[str],
    ) -> None:
        self._nodes, self._network, self._storage, self._podman, self._say = nodes, network, storage, podman, say
        self._no_autofs = no_autofs

    def make(self, shape: Shape, image: str, avoid: Sequence[IPv4Address], given: Mapping[str, Node]) -> list[Node]:
        """Start what is missing and return the nodes that are new; if that fails, these are removed again.

        New nodes get addresses other than those of ``avoid``, but ``given`` ones are as they are given.
        """
        made: list[Node] = []
        try:
            subnet = self._network.ensure()
            self._storage.prepare(shape)
            present = {node.name: node for node in self._nodes.all()}
            for node in present.values():
                if not node.running:
                    self._podman.run("start", node.container)
            taken = {node.address for node in (*present.values(), *given.values())}
            free = addresses.free_addresses(subnet, taken | set(avoid) | {addresses.gateway(subnet)})
            for group in shape.groups:
                for name in (name for name in group.instances if name not in present):
                    container = self._nodes.container_of(name)
                    node = given.get(name) or Node(
                        name, group.name, group.instance_type, instance_id(), next(free), container
                    )
                    made.append(node)
                    hidden = node.group in self._no_autofs or not machine.has_autofs()
                    init = ("sh", "-c", INIT_WITHOUT_AUTOFS) if hidden else ()
                    self._nodes.create(node, image, self._options(shape, node), init)
            self._nodes.wait_for_boot([*present.values(), *made])
        except BaseException:
            self._say("removing what was made, because not all of it could be")
            self._nodes.remove(made)
            raise
        return made

    def _options(self, shape: Shape, node: Node) -> list[str]:
        """Options of podman for a node: the lab's network, the file servers, and whether it has instance store."""
        hosts = [f"--add-host={name}:{self._network.gateway}" for name in self._storage.names]
        scratch = shape.platform.image == "ami" and node_type_of(shape, node) == "compute"
        own_cgroups = shape.release is Release.FORKY and not machine.cgroup_v2()
        return [
            *(f"--network={self._network.name}", f"--volume={self._storage.root}:{STORE}", *hosts),
            *([f"--env=FAKE_NVME={SCRATCH_SECONDS}"] if scratch else ()),
            *(cgroups.options(node.container) if own_cgroups else ()),
        ]
