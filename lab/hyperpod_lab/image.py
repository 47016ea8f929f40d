# SPDX-License-Identifier: Apache-2.0
"""The node image: Debian with Slurm, laid out like the HyperPod AMI, made from the machine's own apt sources.

The image holds the address of the machine's mirror, so it stays on this machine, and nothing here prints that address.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from enum import Enum
from pathlib import Path
from typing import Literal

from hyperpod_lab import debian, machine
from hyperpod_lab.errors import LabError
from hyperpod_lab.podman import Podman

RECIPE = Path(__file__).resolve().parents[1] / "image"
FAKES = RECIPE.with_name("fakes")
#: The file system clients' stand-ins, which every image has.
FSX = FAKES / "fsx"
#: What the AMI's image has on top of the bare one.
AMI = RECIPE / "ami"
AMI_FAKES = ("agents", "auto_resume", "enroot", "other_slurm", "pyxis")
ENROOT_VERSION = "4.9.0"
REPOSITORY = "localhost/hyperpod-lab"
#: Debian's public keys that sign both releases, since a machine that is no Debian may not have them.
KEYS = RECIPE / "keys"
APT_OPTIONS = re.compile(r"^Acquire::(https?|Check-Valid-Until|Check-Date|Retries)\b")
BUILD_SECONDS = 1800
KEPT_SECONDS = 86400


Kind = Literal["bare", "ami"]


class Release(str, Enum):
    TRIXIE = "trixie"  #: Slurm 24.11, Python 3.13
    BOOKWORM = "bookworm"  #: Slurm 22.05, Python 3.11
    FORKY = "forky"  #: a moving archive; late in 2026 Slurm 26.05, Python 3.14, and a systemd that needs cgroup v2

    @property
    def python(self) -> str:
        return {"trixie": "3.13", "bookworm": "3.11", "forky": "3.14"}[self.value]


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
        found = {(origin, label): uri for uri, origin, label in (line.split("|", 2) for line in targets.splitlines())}
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


def recipe_hash(folders: Sequence[Path], *parts: str) -> str:
    """Changes with any file of the recipe's folders, and with the parts: the release, the machine's apt settings."""
    digest = hashlib.sha256("\0".join(parts).encode())
    for folder in folders:
        for path in sorted(path for path in folder.rglob("*") if path.is_file()):
            if folder != AMI and path.is_relative_to(AMI):
                continue  # a layer of its own
            digest.update(f"\0{path.relative_to(folder)}\0".encode() + path.read_bytes())
    return digest.hexdigest()[:12]


def ensure(podman: Podman, release: Release, kind: Kind, mirror: str | None, say: Callable[[str], None]) -> str:
    """The image's name; built only when no image of this very recipe is there."""
    lines, options = sources(_machine_targets(), release.value, mirror), _machine_options()
    bare_hash = recipe_hash([RECIPE, FSX], release.value, *lines, *options)
    bare = f"{REPOSITORY}-{release.value}:{bare_hash}"
    ami = f"{REPOSITORY}-{release.value}-ami:{recipe_hash([AMI, *(FAKES / name for name in AMI_FAKES)], bare_hash)}"
    # Two labs that start at once make it once.
    with podman.containers_conf.with_name(f"image-{release.value}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not podman.exists("image", bare):
            say(f"building the {release.value} node image (once; one to two minutes)")
            with tempfile.TemporaryDirectory(prefix="hyperpod-lab-image-") as folder:
                _build(podman, release, bare, lines, options, Path(folder))
            _remove_old(podman, bare)
        if kind == "ami" and not podman.exists("image", ami):
            say(f"adding to the {release.value} node image what the AMI has (once; one to two minutes)")
            _build_ami(podman, bare, ami)
            _remove_old(podman, ami)
    return ami if kind == "ami" else bare


def _remove_old(podman: Podman, image: str) -> None:
    """Remove other images of the same repository, but for those that a node or a checkout of today may use."""
    repository, now = image.partition(":")[0], time.time()
    for row in podman.json("images", "--format", "json", "--filter", f"reference={repository}"):
        if now - row["Created"] > KEPT_SECONDS:
            for old in row.get("Names") or []:
                podman.run("rmi", old, check=False)


def _build_ami(podman: Podman, bare: str, image: str) -> None:
    container = f"hyperpod-lab-build-{os.getpid()}"
    with tempfile.TemporaryDirectory(prefix="hyperpod-lab-ami-") as name:
        given = Path(name)
        shutil.copytree(AMI, given / "ami")
        for fake in AMI_FAKES:
            shutil.copytree(FAKES / fake, given / "fakes" / fake)
        (given / "packages").mkdir()
        for package, content in debian.enroot(ENROOT_VERSION).items():
            (given / "packages" / f"{package}.deb").write_bytes(content)
        try:
            podman.run(
                *("run", f"--name={container}", "--network=host", "--pull=never", f"--volume={given}:/given:ro"),
                *(bare, "/given/ami/customize.sh", "/given"),
                timeout=BUILD_SECONDS,
            )
            podman.run("commit", *_changes(), container, image, timeout=BUILD_SECONDS)
        except LabError as error:
            raise LabError(f"the AMI's layer cannot be made: {_without_addresses(str(error))[-2000:]}") from error
        finally:
            podman.run("rm", "--force", "--ignore", container, check=False)


def _changes() -> list[str]:
    """What a container of the image runs, and how it ends."""
    changes = ('CMD ["/sbin/init"]', "STOPSIGNAL SIGRTMIN+3", "ENV container=podman")
    return [word for change in changes for word in ("--change", change)]


def _build(podman: Podman, release: Release, image: str, lines: list[str], options: list[str], folder: Path) -> None:
    log = folder / "log"
    apt_conf = folder / "apt.conf"
    settings = ['APT::Install-Recommends "false";', 'Acquire::Languages "none";']
    if release is Release.FORKY:
        # Mirrors may be behind a release that changes twice a day.
        settings.append('Acquire::Check-Valid-Until "false";')
    apt_conf.write_text("\n".join([*settings, *options]) + "\n")
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
    with log.open("wb") as stderr:
        maker = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=stderr,
            env={**os.environ, "LC_ALL": "C.UTF-8"},
        )
        try:
            podman.run("import", *_changes(), "-", image, stdin=maker.stdout, timeout=BUILD_SECONDS)
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
