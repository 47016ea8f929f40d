# SPDX-License-Identifier: Apache-2.0
"""Identify this machine among the cluster's nodes by its IP addresses."""

from __future__ import annotations

import ipaddress
import time
from collections.abc import Callable

import ifaddr

from hyperpod_lifecycle.cluster import Cluster, Node
from hyperpod_lifecycle.errors import InputError, Problem
from hyperpod_lifecycle.problems import known

#: Seconds between two polls; the network comes up within seconds of the lifecycle script's start.
POLL_SECONDS = 0.5


def own_addresses() -> frozenset[str]:
    """Return every address of every interface, loopback included, in canonical spelling."""
    found = set()
    for adapter in ifaddr.get_adapters():
        for entry in adapter.ips:
            # IPv6 comes as (address, flow, scope).
            text = entry.ip if isinstance(entry.ip, str) else entry.ip[0]
            found.add(str(ipaddress.ip_address(text.partition("%")[0])))
    return frozenset(found)


def find_node(cluster: Cluster, wait_seconds: float, waiting: Callable[[], None] = lambda: None) -> Node:
    """Return this machine's node, polling for up to ``wait_seconds`` because the network may not be up yet at boot.

    Calls ``waiting`` before each further poll.

    Raises :class:`InputError` if the network is not ready or no address of this machine is in the file.
    """
    deadline = time.monotonic() + wait_seconds
    while True:
        own = own_addresses()
        node = cluster.node_by_addresses(own)
        if node is not None:
            return node
        if time.monotonic() >= deadline:
            raise InputError([_not_found(cluster, own, wait_seconds)])
        waiting()
        time.sleep(min(POLL_SECONDS, max(0.0, deadline - time.monotonic())))


def _not_found(cluster: Cluster, own: frozenset[str], waited: float) -> Problem:
    key = "InstanceGroups[*].Instances[*].CustomerIpAddress"
    # An interface has a link-local address as soon as it is up, before the network assigns one.
    usable = [
        a for a in sorted(own) if not (ipaddress.ip_address(a).is_loopback or ipaddress.ip_address(a).is_link_local)
    ]
    if not usable:
        return Problem(
            cluster.resource_config,
            key,
            f"network not ready: after {waited:g} s this node has no address but {known(sorted(own))}",
            "check the node's network interface, then run again",
        )
    members = (f"{i.address} ({i.name})" for i in cluster.instances if i.address)
    return Problem(
        cluster.resource_config,
        key,
        f"none of this node's addresses ({known(usable)}) is in the file",
        f"the file may be an old copy, or this node does not belong to this cluster. Known addresses: {known(members)}",
    )
