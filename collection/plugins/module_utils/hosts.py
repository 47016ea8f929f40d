# SPDX-License-Identifier: Apache-2.0
"""Comparison of host names. Uses the standard library only, because it runs on the node."""

from __future__ import annotations

import ipaddress
import socket

LOCAL = ("localhost", "127.0.0.1", "::1")


def _address(name):
    try:
        return ipaddress.ip_address(name)
    except ValueError:
        return None


def same_host(one, other):
    """Return whether two names mean the same host, in any case, long or short, with or without a final dot."""
    first, second = (name.strip().lower().rstrip(".") for name in (one, other))
    addresses = _address(first), _address(second)
    if any(addresses):
        return addresses[0] == addresses[1]
    short, long = sorted((first, second), key=len)
    return bool(short) and (short == long or ("." not in short and long.startswith(f"{short}.")))


def is_here(name):
    """Return whether a name or an address means this machine, without querying DNS."""
    if any(same_host(name, own) for own in (*LOCAL, socket.gethostname())):
        return True
    address = _address(name.strip())
    if not address:
        return False
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.bind((str(address), 0))
    except OSError:
        return False
    return True
