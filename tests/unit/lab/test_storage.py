# SPDX-License-Identifier: Apache-2.0
"""The stand-ins for FSx: which file systems a lab has, their switches, and what the mount helper understands."""

from __future__ import annotations

import importlib.util
import shutil
import sys
import time
from dataclasses import asdict, replace
from pathlib import Path
from types import ModuleType

import pytest

from hyperpod_lab.agent import Node
from hyperpod_lab.agent.request import file_systems, from_create_cluster
from hyperpod_lab.image import FSX, Release
from hyperpod_lab.shape import EXAMPLE, Shape
from hyperpod_lab.storage import Storage, Switches

CASES = Path(__file__).parents[1] / "cases"
LUSTRE = "fs-12345678a90b01cde.fsx.us-west-2.amazonaws.com"
OPENZFS = "fs-87654321e90d01abc.fsx.us-west-2.amazonaws.com"


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The nodes' own module."""
    spec = importlib.util.spec_from_file_location("fake_fsx", FSX / "fake_fsx.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "fake_fsx", module)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def example() -> Shape:
    return from_create_cluster(EXAMPLE / "create_cluster.json", None, Release.TRIXIE)


@pytest.fixture
def store(tmp_path: Path, example: Shape) -> Storage:
    def no_nodes() -> list[Node]:
        return []

    made = Storage(tmp_path / "storage", no_nodes, lambda: "10.70.255.254", lambda node, command: None)
    made.prepare(example)
    return made


def test_the_example_has_both(example: Shape) -> None:
    assert [(each.kind, each.dns_name, each.mount_name) for each in file_systems(example)] == [
        ("lustre", LUSTRE, "1abcdefg"),
        ("openzfs", OPENZFS, None),
    ]


def test_groups_have_theirs_and_each_is_made_once() -> None:
    api = from_create_cluster(CASES / "08-create_cluster-api-driven.json", None, Release.TRIXIE)
    found = file_systems(api)
    assert {each.kind for each in found} == {"lustre", "openzfs"}
    twice = replace(api, groups=(*api.groups, *api.groups))
    assert file_systems(twice) == found


@pytest.mark.parametrize("text", ["{", "[]", "null", '{"fsx_dns_name": 1}', '{"fsx_openzfs_dns_name": "a b; c"}'])
def test_broken_files_have_none(example: Shape, text: str) -> None:
    assert file_systems(replace(example, provisioning_parameters=text)) == []


def test_what_is_in_a_file_system_outlives_the_next_up(store: Storage, example: Shape) -> None:
    assert store.names == [LUSTRE, OPENZFS]
    assert store.path(LUSTRE).name == "1abcdefg"
    (store.path(OPENZFS) / "file").write_text("kept")
    store.prepare(example)
    assert (store.path(OPENZFS) / "file").read_text() == "kept"


def test_nodes_read_what_the_lab_switches(store: Storage, fake: ModuleType) -> None:
    assert asdict(fake.Switches()) == asdict(Switches())
    server = fake.Server(store.root / LUSTRE)
    assert server.switches == fake.Switches()
    store.set(LUSTRE, read_only=True)
    store.set(LUSTRE, root_squash=True)
    assert (server.switches.read_only, server.switches.root_squash) == (True, True)
    store.heal()
    assert server.switches == fake.Switches()
    with store.switched(LUSTRE, hang=True):
        assert server.switches.hang
    assert not server.switches.hang
    with pytest.raises(TypeError):
        store.set(LUSTRE, no_such_switch=True)


def test_failures_are_counted_once_for_all_nodes(store: Storage, fake: ModuleType) -> None:
    one, two = (fake.Server(store.root / LUSTRE) for _ in range(2))
    store.set(LUSTRE, fail_mounts=3)
    assert [one.take("fail_mounts"), two.take("fail_mounts"), one.take("fail_mounts")] == [True] * 3
    assert not two.take("fail_mounts")
    assert store.get(LUSTRE) == Switches()


def test_a_slow_server_refuses_changes_until_its_time(store: Storage, fake: ModuleType) -> None:
    server = fake.Server(store.root / LUSTRE)
    store.slow(LUSTRE, 60)
    assert server.refuses_changes()
    store.set(LUSTRE, writable_at=time.time() - 1)
    assert not server.refuses_changes()


def test_sources(fake: ModuleType) -> None:
    assert fake.split_source("lustre", f"{LUSTRE}@tcp:/1abcdefg") == (LUSTRE, "1abcdefg")
    assert fake.split_source("nfs", f"{OPENZFS}:/fsx/") == (OPENZFS, "fsx")
    assert fake.split_source("nfs", f"{OPENZFS}:/fsx/part") == (OPENZFS, "fsx/part")


@pytest.mark.parametrize(
    ("kind", "source"),
    [
        ("lustre", "name:/fsx"),
        ("lustre", "name@tcp:/"),
        ("lustre", "name@tcp:/toolong12"),
        ("nfs", "/fsx"),
        ("nfs", "name:"),
        ("nfs", "name:/.."),
        ("nfs", "name@tcp:/abc"),
    ],
)
def test_a_source_of_another_form_is_refused(fake: ModuleType, kind: str, source: str) -> None:
    with pytest.raises(ValueError, match=".*"):
        fake.split_source(kind, source)


def test_options_become_flags(fake: ModuleType) -> None:
    systemd = "_netdev,x-systemd.automount,x-systemd.requires=network-online.target"
    assert fake.flags("lustre", f"rw,noatime,flock,{systemd}") == 1024
    assert fake.flags("nfs", f"nfsvers=4.2,nconnect=16,{systemd}") == 0
    assert fake.flags("nfs", "ro,nosuid,nodev") == 7
    assert fake.flags("nfs", "") == 0


@pytest.mark.parametrize(
    ("kind", "option"),
    [("lustre", "nconnect=16"), ("nfs", "flock"), ("nfs", "nconnect=17"), ("nfs", "nfsvers=5"), ("nfs", "noatim")],
)
def test_an_option_that_the_real_client_does_not_know_is_refused(fake: ModuleType, kind: str, option: str) -> None:
    with pytest.raises(ValueError, match=option):
        fake.flags(kind, f"noatime,{option}")


def test_no_switches_without_a_file_system(store: Storage) -> None:
    shutil.rmtree(store.root)
    assert store.names == []
    store.heal()
