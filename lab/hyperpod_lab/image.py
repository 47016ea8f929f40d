# SPDX-License-Identifier: Apache-2.0
"""The node image: Debian with Slurm, laid out like the HyperPod AMI, made from the machine's own apt sources.

The image holds the address of the machine's mirror, so it stays on this machine, and nothing here prints that address.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import subprocess
import tempfile
from collections.abc import Callable
from enum import Enum
from pathlib import Path

from hyperpod_lab import machine
from hyperpod_lab.errors import LabError
from hyperpod_lab.podman import Podman

RECIPE = Path(__file__).resolve().parents[1] / "image"
REPOSITORY = "localhost/hyperpod-lab"
#: Debian's public keys that sign both releases, since a machine that is no Debian may not have them.
KEYS = RECIPE / "keys"
APT_OPTIONS = re.compile(r"^Acquire::(https?|Check-Valid-Until|Check-Date|Retries)\b")
BUILD_SECONDS = 1800


class Release(str, Enum):
    TRIXIE = "trixie"  #: Slurm 24.11, Python 3.13
    BOOKWORM = "bookworm"  #: Slurm 22.05, Python 3.11

    @property
    def python(self) -> str:
        return {"trixie": "3.13", "bookworm": "3.11"}[self.value]


def packages(text: str, release: str) -> list[str]:
    """Names from packages.txt: every plain line, and those marked with this release."""
    lines = (line.split("#")[0].split() for line in text.splitlines())
    return [words[0] for words in lines if words and release in (words[1:] or [release])]


def sources(targets: str, release: str, mirror: str | None) -> list[str]:
    """One-line apt sources of a release, from ``apt-get indextargets`` lines ``URI|Origin|Label``.

    None on a machine that is no Debian: then mmdebstrap takes Debian's public archive.
    """
    archive, security = mirror, None
    if mirror is None:
        found = {(origin, label): uri for uri, origin, label in (line.split("|") for line in targets.split())}
        archive, security = found.get(("Debian", "Debian")), found.get(("Debian", "Debian-Security"))
    if archive is None:
        return []
    lines = [f"deb {archive} {suite} main" for suite in (release, f"{release}-updates")]
    return lines + ([f"deb {security} {release}-security main"] if security else [])


def _machine_targets() -> str:
    command = ["apt-get", "indextargets", "--format", "$(REPO_URI)|$(ORIGIN)|$(LABEL)", "Created-By: Packages"]
    for attempt in range(2):
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        if done.returncode != 0:
            raise LabError(f"apt-get indextargets failed: {_without_addresses(done.stderr)}")
        if done.stdout or attempt:
            break
        # A fresh machine has no package lists yet, and says nothing of its sources until it has.
        machine.apt_get("update", timeout=300)
    return done.stdout


def _machine_options() -> list[str]:
    """The machine's own proxy, certificate and clock settings of apt, as lines of apt.conf."""
    done = subprocess.run(["apt-config", "dump"], capture_output=True, text=True, timeout=60, check=True)
    return [line for line in done.stdout.splitlines() if APT_OPTIONS.match(line)]


def _without_addresses(text: str) -> str:
    return re.sub(r"\b(https?|ftp)://[^\s\"']+", "<mirror>", text)


def recipe_hash(*parts: str) -> str:
    """Changes with any file of the recipe, the release and the machine's apt configuration."""
    digest = hashlib.sha256("\0".join(parts).encode())
    for path in sorted(path for path in RECIPE.rglob("*") if path.is_file()):
        digest.update(f"\0{path.relative_to(RECIPE)}\0".encode() + path.read_bytes())
    return digest.hexdigest()[:12]


def ensure(podman: Podman, release: Release, mirror: str | None, say: Callable[[str], None]) -> str:
    """The image's name; built only when no image of this very recipe is there."""
    lines, options = sources(_machine_targets(), release.value, mirror), _machine_options()
    image = f"{REPOSITORY}-{release.value}:{recipe_hash(release.value, *lines, *options)}"
    # Two labs that start at once make it once.
    with podman.containers_conf.with_name(f"image-{release.value}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if podman.exists("image", image):
            return image
        say(f"building the {release.value} node image (once; one to two minutes)")
        with tempfile.TemporaryDirectory(prefix="hyperpod-lab-image-") as folder:
            _build(podman, release, image, lines, options, Path(folder))
        for old in _names(podman, f"{REPOSITORY}-{release.value}"):
            if old != image:
                # One that a node of another lab still uses stays.
                podman.run("rmi", old, check=False)
    return image


def _build(podman: Podman, release: Release, image: str, lines: list[str], options: list[str], folder: Path) -> None:
    log = folder / "log"
    apt_conf = folder / "apt.conf"
    apt_conf.write_text("\n".join(['APT::Install-Recommends "false";', 'Acquire::Languages "none";', *options]) + "\n")
    names = packages((RECIPE / "packages.txt").read_text(), release.value)
    # Credentials for the mirror, where the machine has any, must be there before the first download.
    credentials = (
        'if [ -d /etc/apt/auth.conf.d ]; then mkdir -p "$1/etc/apt"; cp -r /etc/apt/auth.conf.d "$1/etc/apt/"; fi'
    )
    command = [
        "mmdebstrap",
        "--variant=minbase",
        "--format=tar",
        f"--keyring={KEYS}",
        f"--include={','.join(names)}",
        f"--aptopt={apt_conf}",
        *(f"--dpkgopt=path-exclude=/usr/share/{part}/*" for part in ("doc", "info", "locale", "man")),
        f"--setup-hook={credentials}",
        f"--customize-hook={RECIPE / 'customize.sh'}",
        release.value,
        "-",
        *lines,
    ]
    changes = ('CMD ["/sbin/init"]', "STOPSIGNAL SIGRTMIN+3", "ENV container=podman")
    with log.open("wb") as stderr:
        maker = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=stderr,
            env={**os.environ, "LC_ALL": "C.UTF-8"},
        )
        try:
            arguments = [word for change in changes for word in ("--change", change)]
            podman.run("import", *arguments, "-", image, stdin=maker.stdout, timeout=BUILD_SECONDS)
            status = maker.wait(timeout=60)
        finally:
            if maker.poll() is None:
                maker.terminate()
                maker.wait()
    if status != 0:
        podman.run("rmi", "--force", image)
        tail = "\n".join(log.read_text(errors="replace").splitlines()[-15:])
        raise LabError(f"mmdebstrap could not make the {release.value} image:\n{_without_addresses(tail)}")


def _names(podman: Podman, reference: str) -> list[str]:
    rows = podman.json("images", "--format", "json", "--filter", f"reference={reference}")
    return sorted({name for row in rows for name in row.get("Names") or []})


def remove_all(podman: Podman) -> list[str]:
    """Remove every image of the lab; return their names."""
    names = _names(podman, f"{REPOSITORY}-*")
    if names:
        podman.run("rmi", *names, timeout=120)
    return names
