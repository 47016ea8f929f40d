# SPDX-License-Identifier: Apache-2.0
"""fake_enroot and fake_pyxis: what nodes would download, made here and served by a service under the same names.

Downloads, checksums, installation, build and Slurm's use of the plugin are real; see `lab/fakes`.
"""

from __future__ import annotations

import hashlib
import io
import platform
import subprocess
import tarfile
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hyperpod_lab.services import Services

FAKES = Path(__file__).resolve().parents[1] / "fakes"
SERVICE = "downloads"
ARCHITECTURE = {"x86_64": "amd64", "aarch64": "arm64"}[platform.machine()]


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def package(name: str, version: str, files: Mapping[str, bytes], architecture: str = "all", **fields: str) -> bytes:
    """A Debian package with these files, which everybody may run; those in /etc are configuration."""
    control = {
        "Package": name,
        "Version": version,
        "Architecture": architecture,
        "Maintainer": "hyperpod-lifecycle",
        **fields,
    }
    with tempfile.TemporaryDirectory(prefix="hyperpod-lab-package-") as folder:
        root = Path(folder, "root")
        for path, content in files.items():
            place = root / path.lstrip("/")
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(content)
            place.chmod(0o755)
        (root / "DEBIAN").mkdir(parents=True)
        (root / "DEBIAN/control").write_text("".join(f"{key}: {value}\n" for key, value in control.items()))
        etc = [path for path in files if path.startswith("/etc/")]
        (root / "DEBIAN/conffiles").write_text("".join(f"{path}\n" for path in etc))
        command = ["dpkg-deb", "--root-owner-group", "-Zgzip", "--build", str(root), f"{folder}/made.deb"]
        subprocess.run(command, check=True, capture_output=True, timeout=60)
        return Path(folder, "made.deb").read_bytes()


def enroot(version: str) -> dict[str, bytes]:
    """fake_enroot's two packages."""

    def text(name: str) -> bytes:
        return (FAKES / "enroot" / name).read_text().replace("@version@", version).encode()

    files = {"/usr/bin/enroot": text("enroot"), "/etc/enroot/enroot.conf": text("enroot.conf")}
    main = {"Description": "fake_enroot of the lab", "Depends": "bash, squashfs-tools"}
    caps = {"Description": "fake_enroot of the lab (capabilities)", "Depends": f"enroot (= {version}-1)"}
    return {
        "enroot": package("enroot", f"{version}-1", files, ARCHITECTURE, **main),
        "enroot+caps": package("enroot+caps", f"{version}-1", {}, ARCHITECTURE, **caps),
    }


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
            "containers_pyxis_checksums": {pyxis_version: sha256(source)},
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
