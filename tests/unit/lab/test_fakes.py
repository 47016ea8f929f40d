# SPDX-License-Identifier: Apache-2.0
"""The nodes' fakes, as far as they run without a node."""

from __future__ import annotations

import json
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from http.server import ThreadingHTTPServer
from importlib import util
from pathlib import Path
from types import ModuleType

import pytest
from test_agent import nodes_of

from hyperpod_lab import cgroups
from hyperpod_lab.agent.config_files import identity
from hyperpod_lab.agent.request import from_create_cluster
from hyperpod_lab.image import FAKES, Release
from hyperpod_lab.shape import EXAMPLE


@pytest.fixture
def fake_imds(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    spec = util.spec_from_file_location("fake_imds", FAKES / "agents/fake_imds.py")
    assert spec
    assert spec.loader
    module = util.module_from_spec(spec)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def address(fake_imds: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    shape = from_create_cluster(EXAMPLE / "create_cluster.json", None, Release.TRIXIE)
    (tmp_path / "identity.json").write_text(json.dumps(identity(shape, nodes_of(shape)[2])))
    monkeypatch.setattr(fake_imds, "IDENTITY", tmp_path / "identity.json")
    server = ThreadingHTTPServer(("127.0.0.1", 0), fake_imds.Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}/latest"
    server.shutdown()
    thread.join()
    server.server_close()


def test_metadata_is_version_2_and_says_who_the_node_is(address: str) -> None:
    with pytest.raises(urllib.error.HTTPError, match="401"):
        urllib.request.urlopen(f"{address}/meta-data/instance-id", timeout=5)
    request = urllib.request.Request(f"{address}/api/token", method="PUT")
    token = urllib.request.urlopen(request, timeout=5).read().decode()

    def get(path: str) -> str:
        headers = {"X-aws-ec2-metadata-token": token}
        with urllib.request.urlopen(urllib.request.Request(f"{address}/{path}", headers=headers), timeout=5) as answer:
            return str(answer.read().decode())

    assert get("meta-data/instance-id") == f"i-{2:017}"
    assert get("meta-data/placement/availability-zone") == "us-west-2a"
    assert "export CLUSTER_NAME=your-hyperpod-cluster\n" in get("user-data")
    mac = get("meta-data/mac")
    assert get(f"meta-data/network/interfaces/macs/{mac}/subnet-id").startswith("subnet-")
    with pytest.raises(urllib.error.HTTPError, match="404"):
        get("meta-data/nothing")


def test_a_nodes_own_cgroups_go_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cgroups, "UNIFIED", tmp_path)
    (tmp_path / "cgroup.procs").touch()
    assert f"--volume={tmp_path}/node:/sys/fs/cgroup:rw" in cgroups.options("node")
    (tmp_path / "node/system.slice/ssh.service").mkdir(parents=True)
    cgroups.remove("another")
    cgroups.remove("node")
    assert [path.name for path in tmp_path.iterdir()] == ["cgroup.procs"]
