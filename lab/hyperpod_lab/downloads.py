# SPDX-License-Identifier: Apache-2.0
"""fake_enroot and fake_pyxis: what nodes would download, made here and served by a service under the same names.

Downloads, checksums, installation, build and Slurm's use of the plugin are real; see `lab/fakes`.
"""

from __future__ import annotations

import hashlib
import io
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hyperpod_lab.debian import ARCHITECTURE, enroot
from hyperpod_lab.services import Services

FAKES = Path(__file__).resolve().parents[1] / "fakes"
SERVICE = "downloads"


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def pyxis(version: str, comment: str = "") -> bytes:
    """fake_pyxis' source, as an archive of a tag."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for path in sorted((FAKES / "pyxis").iterdir()):
            content = path.read_bytes() + comment.encode()
            member = tarfile.TarInfo(f"pyxis-{version}/{path.name}")
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return buffer.getvalue()


class Downloads:
    """The sites, as a service of a lab that is up."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self.folder = services.folder / SERVICE

    def start(self, enroot_versions: Sequence[str] = ("4.9.0",), pyxis_version: str = "0.99.0") -> dict[str, Any]:
        """Serve them; the settings of the role containers that name them come back."""
        files: dict[str, bytes] = {}
        checksums: dict[str, dict[str, str]] = {}
        for version in enroot_versions:
            made = enroot(version)
            checksums[version] = {name: sha256(data) for name, data in made.items()}
            files |= {
                f"files/enroot/v{version}/{name}_{version}-1_{ARCHITECTURE}.deb": data for name, data in made.items()
            }
        source = pyxis(pyxis_version)
        files[f"files/pyxis/v{pyxis_version}.tar.gz"] = source
        files["server.py"] = (FAKES / "fake_downloads.py").read_bytes()
        self._services.start(SERVICE, ["python3", "server.py", "80"], files=files)
        return {
            "containers_enroot_url": f"http://{SERVICE}/enroot",
            "containers_enroot_checksums": {ARCHITECTURE: checksums},
            "containers_pyxis_url": f"http://{SERVICE}/pyxis",
            "containers_pyxis_checksums": {"all": {pyxis_version: sha256(source)}},
        }

    def fail(self, requests: int) -> None:
        """Be down for so many requests."""
        (self.folder / "fail").write_text(str(requests))

    def requests(self) -> list[str]:
        """What was asked for since this was last called, with the answer's status."""
        path = self.folder / "requests"
        found = path.read_text().splitlines() if path.exists() else []
        path.unlink(missing_ok=True)
        return found
