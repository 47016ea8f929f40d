# SPDX-License-Identifier: Apache-2.0
"""Debian packages made here, fake_enroot's among them."""

from __future__ import annotations

import platform
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path

FAKES = Path(__file__).resolve().parents[1] / "fakes"
ARCHITECTURE = {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())


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
