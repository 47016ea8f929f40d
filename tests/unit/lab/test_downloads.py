# SPDX-License-Identifier: Apache-2.0
"""What the lab's nodes download, and the settings with which they do."""

from __future__ import annotations

import subprocess
import sys
import tarfile
import urllib.error
import urllib.request
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest

from hyperpod_lab import downloads


class Services:
    """As much of the lab's services as downloads use."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def start(self, name: str, argv: list[str], files: dict[str, bytes]) -> None:
        for path, content in files.items():
            (self.folder / name / path).parent.mkdir(parents=True, exist_ok=True)
            (self.folder / name / path).write_bytes(content)


def test_what_is_served_is_what_the_settings_name(tmp_path: Path) -> None:
    services: Any = Services(tmp_path)
    settings = downloads.Downloads(services).start(("4.9.0", "4.9.1"))
    files = tmp_path / downloads.SERVICE / "files"
    architecture = downloads.ARCHITECTURE
    assert list(settings["containers_enroot_checksums"][architecture]) == ["4.9.0", "4.9.1"]
    for version, sums in settings["containers_enroot_checksums"][architecture].items():
        for name, digest in sums.items():
            made = files / f"enroot/v{version}/{name}_{version}-1_{architecture}.deb"
            assert downloads.sha256(made.read_bytes()) == digest
            shown = subprocess.run(["dpkg-deb", "--field", made], capture_output=True, text=True, check=True).stdout
            assert f"Package: {name}\n" in shown
            assert f"Version: {version}-1\n" in shown
            assert "fake_enroot" in shown
    for version, digest in settings["containers_pyxis_checksums"]["all"].items():
        source = (files / f"pyxis/v{version}.tar.gz").read_bytes()
        assert downloads.sha256(source) == digest
        with tarfile.open(fileobj=BytesIO(source)) as archive:
            assert f"pyxis-{version}/Makefile" in archive.getnames()


def test_the_sites_are_down_for_so_many_requests(tmp_path: Path) -> None:
    services: Any = Services(tmp_path)
    sites = downloads.Downloads(services)
    sites.start()
    command = [sys.executable, "server.py", "0"]
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL, "text": True}
    with subprocess.Popen(command, cwd=sites.folder, **pipes) as server:
        try:
            assert server.stdout
            url = f"http://127.0.0.1:{int(server.stdout.readline())}/pyxis/v0.99.0.tar.gz"
            sites.fail(1)
            with pytest.raises(urllib.error.HTTPError, match="503"):
                urllib.request.urlopen(url, timeout=20)
            assert urllib.request.urlopen(url, timeout=20).read()
        finally:
            server.kill()
    assert sites.requests() == ["/pyxis/v0.99.0.tar.gz 503", "/pyxis/v0.99.0.tar.gz 200"]
    assert sites.requests() == []
