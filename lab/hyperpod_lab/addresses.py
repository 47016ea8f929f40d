# SPDX-License-Identifier: Apache-2.0
"""Which subnet a lab gets and which address a node gets. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from ipaddress import IPv4Address, IPv4Network

#: Where a lab looks for a free /16. HyperPod's own examples use 10.x as well.
SUBNETS = tuple(IPv4Network(f"10.{second}.0.0/16") for second in range(70, 120))

#: Handed out first: each is the beginning or the end of another, so that comparing parts of addresses shows at once.
LOOK_ALIKES = (1, 11, 10, 100, 110, 101, 111, 2, 12, 112)


def free_subnet(used: Collection[IPv4Network]) -> IPv4Network | None:
    """The first subnet that overlaps nothing in use."""
    return next((subnet for subnet in SUBNETS if not any(subnet.overlaps(other) for other in used)), None)


def gateway(subnet: IPv4Network) -> IPv4Address:
    """The bridge's own address, out of the way of the nodes'."""
    return subnet.broadcast_address - 1


def free_addresses(subnet: IPv4Network, used: Collection[IPv4Address]) -> Iterator[IPv4Address]:
    """The subnet's addresses for nodes in the order they are handed out, without the used ones."""
    first = subnet.network_address
    offsets = (
        *LOOK_ALIKES,
        *(n for n in range(1, subnet.num_addresses - 2) if n not in LOOK_ALIKES and n % 256 not in (0, 255)),
    )
    return (first + offset for offset in offsets if first + offset not in used)


def service_address(subnet: IPv4Network, used: Collection[IPv4Address]) -> IPv4Address:
    """The highest free address below the bridge's, far from the nodes'."""
    below = (gateway(subnet) - offset for offset in range(1, 250))
    return next(address for address in below if address not in used)


def host_name(address: IPv4Address) -> str:
    """The name HyperPod gives a host: ``ip-10-70-0-1``."""
    return f"ip-{str(address).replace('.', '-')}"
