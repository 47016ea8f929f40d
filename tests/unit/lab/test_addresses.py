# SPDX-License-Identifier: Apache-2.0
"""Which subnet a lab gets, and which addresses its nodes."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv4Network
from itertools import islice

from hyperpod_lab.addresses import SUBNETS, free_addresses, free_subnet, gateway, host_name

SUBNET = IPv4Network("10.70.0.0/16")


def test_first_addresses_are_parts_of_each_other() -> None:
    found = [str(address) for address in islice(free_addresses(SUBNET, []), 4)]
    assert found == ["10.70.0.1", "10.70.0.11", "10.70.0.10", "10.70.0.100"]


def test_every_address_comes_once_and_none_is_reserved() -> None:
    found = list(islice(free_addresses(SUBNET, []), 2000))
    assert len(set(found)) == 2000
    assert all(str(address).rsplit(".", 1)[1] not in ("0", "255") for address in found)


def test_used_addresses_and_the_gateway_are_left_out() -> None:
    used = {IPv4Address("10.70.0.1"), IPv4Address("10.70.0.10"), gateway(SUBNET)}
    found = set(free_addresses(SUBNET, used))
    assert not found & used
    assert all(address in SUBNET for address in found)


def test_gateway_is_none_of_the_first_addresses() -> None:
    assert gateway(SUBNET) not in list(islice(free_addresses(SUBNET, []), 1000))


def test_subnet_is_the_first_that_overlaps_nothing() -> None:
    assert free_subnet([]) == IPv4Network("10.70.0.0/16")
    assert free_subnet([IPv4Network("10.70.3.0/24"), IPv4Network("192.0.2.0/24")]) == IPv4Network("10.71.0.0/16")
    assert free_subnet([IPv4Network("10.64.0.0/12")]) == IPv4Network("10.80.0.0/16")


def test_no_subnet_is_left() -> None:
    assert free_subnet(SUBNETS) is None


def test_host_name_is_that_of_hyperpod() -> None:
    assert host_name(IPv4Address("10.70.0.1")) == "ip-10-70-0-1"
