# SPDX-License-Identifier: Apache-2.0
"""EFA for Lustre: who can use it, and what lnetctl is told."""

from __future__ import annotations

import pytest
from ansible_collections.hyperpod.lifecycle.plugins.module_utils import efa

ROUTES = """\
Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\tMTU\tWindow\tIRTT
ens33\t00000000\t0100000A\t0003\t0\t0\t200\t00000000\t0\t0\t0
ens32\t00000000\t0100000A\t0003\t0\t0\t100\t00000000\t0\t0\t0
ens31\t0000000A\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0
"""


def test_the_files_systems_id_and_region_come_from_its_name() -> None:
    assert efa.file_system("fs-0aaa1111bbb22223.fsx.us-gov-west-1.amazonaws.com") == (
        "fs-0aaa1111bbb22223",
        "us-gov-west-1",
    )
    assert efa.file_system("fs-0a.fsx.cn-north-1.amazonaws.com.cn") == ("fs-0a", "cn-north-1")
    with pytest.raises(efa.Unusable, match="no DNS name of FSx"):
        efa.file_system("storage.example.com")


def test_both_sides_must_have_it_in_one_zone() -> None:
    answer = {
        "FileSystems": [{"FileSystemId": "fs-1", "SubnetIds": ["s"], "LustreConfiguration": {"EfaEnabled": True}}]
    }
    assert efa.subnet(answer) == "s"
    answer["FileSystems"][0]["LustreConfiguration"] = {}
    with pytest.raises(efa.Unusable, match="EFA is off in fs-1"):
        efa.subnet(answer)
    zone = {"Subnets": [{"AvailabilityZone": "us-west-2a"}]}
    efa.same_zone(zone, "us-west-2a")
    with pytest.raises(efa.Unusable, match="in us-west-2a, this node in us-west-2b"):
        efa.same_zone(zone, "us-west-2b")


def test_devices_are_spread_over_the_buses() -> None:
    assert efa.chosen(["d1"]) == ["d1"]
    assert efa.chosen(["d3", "d1", "d2"]) == ["d1", "d3"]
    assert efa.chosen([f"d{number:02}" for number in range(32)]) == [f"d{number:02}" for number in range(0, 32, 4)]


def test_tcp_stays_on_the_best_default_route() -> None:
    assert efa.interface(ROUTES) == "ens32"
    with pytest.raises(efa.Unusable):
        efa.interface(ROUTES.splitlines()[0])
    assert ["modprobe", "kefalnd", "ipif_name=ens32"] in efa.commands(["d1"], "ens32")


def test_networks_are_named_whole() -> None:
    shown = "net:\n    - net type: lo\n    - net type: tcp1\n"
    assert not efa.has_network(shown, "tcp")
    assert efa.has_network(shown, "tcp1")
