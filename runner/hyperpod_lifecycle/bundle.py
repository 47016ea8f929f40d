# SPDX-License-Identifier: Apache-2.0
"""Build the directory to upload: on_create.sh, the inventory and all wheels, so that nodes need no package index."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from email.parser import Parser
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name, parse_wheel_filename

from hyperpod_lifecycle import users
from hyperpod_lifecycle.errors import ExitCode, LifecycleError

#: Checksums of the files of a bundle, for ``sha256sum --check``.
SUMS = "SHA256SUMS"
MACHINES = ("x86_64", "aarch64")
#: Minor versions of glibc to accept wheels for; Ubuntu 22.04 and later run those for 2.34.
GLIBC_MINORS = range(34, 16, -1)


class BundleError(LifecycleError):
    """The bundle cannot be built."""

    exit_code = ExitCode.FAILED


def build(
    dest: Path,
    python_versions: Sequence[str],
    machine: str = "x86_64",
    checkout: Path | None = None,
    *,
    site: Path | None = None,
    packages: Sequence[str] = (),
    say: Callable[[str], object] = lambda _: None,
) -> Path:
    """Create or update the bundle in `dest` and return its path. Builds are reproducible.

    `site` is the directory with the user's ``inventory``, ``shared_users.txt`` or ``.yaml``, and
    ``provisioning_parameters.json``; the default is the checkout. Files that the user has added to `dest` or changed
    there are kept. `packages` are additional requirements for pip. `say` is called with lines about the progress.

    Raises BundleError if the bundle cannot be built.
    """
    checkout = checkout or _checkout()
    site = site or checkout
    if not site.is_dir():
        raise BundleError(f"{site} is not a directory: name the one with your inventory")
    if machine not in MACHINES:
        raise BundleError(f"machine {machine!r} is not known; known: {', '.join(MACHINES)}")
    if not python_versions:
        raise BundleError("no Python version given: name those of the nodes, such as 3.10")
    if importlib.util.find_spec("pip") is None:
        raise BundleError(f"{sys.executable} has no pip to fetch the wheels: make the bundle where pip is installed")
    if not _renewable(dest):
        raise BundleError(f"{dest} is not empty and has no {SUMS} of a bundle: name an empty or a new directory")

    dest.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{dest.name}.", dir=dest.parent) as scratch:
        folder = Path(scratch, "new")
        wheelhouse = folder / "wheels"
        wheelhouse.mkdir(parents=True)
        own = _own_wheel(checkout, wheelhouse)
        versions = sorted(set(python_versions), key=lambda version: tuple(map(int, version.split("."))))
        for version in versions:
            # One pip, in the newest release for the oldest Python.
            extra = [Requirement(package) for package in (*packages, *(["pip"] if version == versions[0] else []))]
            for wheel in wheels(_requirements(own) + extra, version, machine, say):
                shutil.copy2(wheel, wheelhouse)
        shutil.copy2(checkout / "on_create.sh", folder)
        own_inventory = site / "inventory"
        shutil.copytree(own_inventory if own_inventory.is_dir() else checkout / "inventory", folder / "inventory")
        for path in (*users.files(site), site / "provisioning_parameters.json"):
            if path.is_file():
                shutil.copyfile(path, folder / path.name)
        for kept in _renew(dest, folder):
            say(f"kept {kept}, which was changed there; remove it to get the bundle's own")
    return dest


def _checkout() -> Path:
    root = Path(__file__).resolve().parents[2]
    if not (root / "on_create.sh").is_file():
        raise BundleError("a bundle is made from a checkout of hyperpod-lifecycle, and this is an installed copy")
    return root


def _renewable(dest: Path) -> bool:
    return not dest.exists() or (dest.is_dir() and ((dest / SUMS).is_file() or not any(dest.iterdir())))


def _renew(dest: Path, new: Path) -> list[Path]:
    """Move the files of `new` into `dest`, remove the previous bundle's, and return the files changed by the user.

    The checksums cover old and new files until the update is complete, so that the next build continues a killed one.
    """
    dest.mkdir(exist_ok=True)
    sums = dest / SUMS
    old = set(sums.read_text().splitlines()) if sums.exists() else set()
    made = set(_sums(new, (path for path in new.rglob("*") if path.is_file())))
    _write(sums, old | made)
    kept = []
    for name in sorted(_names(old | made)):
        target = dest / name
        if target.is_file() and not {*_sums(dest, [target])} & (old | made):
            kept.append(target)
        elif name in _names(made):
            target.parent.mkdir(parents=True, exist_ok=True)
            (new / name).replace(target)
        else:
            target.unlink(missing_ok=True)
            _remove_empty(target.parent, dest)
    _write(sums, made)
    return kept


def _sums(root: Path, files: Iterable[Path]) -> Iterator[str]:
    """Yield a line for each file, as ``sha256sum`` prints it."""
    for path in files:
        yield f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.relative_to(root)}"


def _names(sums: Iterable[str]) -> set[str]:
    return {line.partition("  ")[2] for line in sums}


def _write(path: Path, lines: Iterable[str]) -> None:
    new = path.with_name(f".{path.name}.new")
    new.write_text("".join(f"{line}\n" for line in sorted(lines, key=lambda line: line.partition("  ")[2])))
    new.replace(path)


def _remove_empty(folder: Path, root: Path) -> None:
    while folder != root and folder.is_dir() and not any(folder.iterdir()):
        folder.rmdir()
        folder = folder.parent


def _own_wheel(checkout: Path, wheels: Path) -> Path:
    # Build isolation needs a download; the lab builds a bundle at each start.
    isolation = ["--no-build-isolation"] if importlib.util.find_spec("hatchling") else []
    _pip("wheel", "--no-deps", *isolation, "--wheel-dir", str(wheels), str(checkout))
    (wheel,) = wheels.glob("*.whl")
    return wheel


def wheels(
    requirements: Sequence[Requirement], python: str, machine: str, say: Callable[[str], object] = lambda _: None
) -> list[Path]:
    """Return the wheels that satisfy `requirements` for `python` on `machine`, from the user's cache or downloaded."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "hyperpod-lifecycle", "wheels")
    key = json.dumps([sorted(map(str, requirements)), python, machine])
    kept = cache / f"{python}-{machine}-{hashlib.sha256(key.encode()).hexdigest()[:12]}"
    if not kept.is_dir():
        say(f"downloading the wheels for Python {python} on {machine}")
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache) as scratch:
            try:
                _complete_download(requirements, python, machine, Path(scratch)).rename(kept)
            except OSError:  # another build has just put the same wheels there
                if not kept.is_dir():
                    raise
    return sorted(kept.iterdir())


def _complete_download(requirements: Sequence[Requirement], python: str, machine: str, scratch: Path) -> Path:
    """Download all wheels and return their directory. Evaluates markers here: pip does so for its own Python only."""
    environment = marker_environment(python, machine)
    wanted: list[str] = []
    while True:
        folder = scratch / str(len(wanted))
        folder.mkdir()
        if wanted:
            _pip("download", *_target_options(python, machine), "--dest", str(folder), *wanted)
        missing = unmet(requirements, folder, environment)
        if not missing:
            return folder
        if missing <= set(wanted):
            raise BundleError(f"no wheels for Python {python} on {machine} satisfy {', '.join(sorted(missing))}")
        wanted += sorted(missing - set(wanted))


def unmet(requirements: Sequence[Requirement], folder: Path, environment: dict[str, str]) -> set[str]:
    """Return the requirements, of `requirements` and of the wheels in `folder`, that no wheel in `folder` satisfies."""
    wheels = list(folder.iterdir())
    found = dict(parse_wheel_filename(wheel.name)[:2] for wheel in wheels)
    missing = set()
    for each in [*requirements, *(each for wheel in wheels for each in _requirements(wheel))]:
        if each.marker and not each.marker.evaluate(environment):
            continue
        version = found.get(canonicalize_name(each.name))
        if version is None or not each.specifier.contains(version, prereleases=True):
            missing.add(f"{each.name}{each.specifier}")
    return missing


def _requirements(wheel: Path) -> list[Requirement]:
    name, version, *_ = wheel.name.split("-")
    with zipfile.ZipFile(wheel) as archive:
        metadata = Parser().parsestr(archive.read(f"{name}-{version}.dist-info/METADATA").decode())
    return [Requirement(each) for each in metadata.get_all("Requires-Dist", [])]


def marker_environment(python: str, machine: str) -> dict[str, str]:
    return {
        "extra": "",
        "implementation_name": "cpython",
        "implementation_version": f"{python}.0",
        "os_name": "posix",
        "platform_machine": machine,
        "platform_python_implementation": "CPython",
        "platform_system": "Linux",
        "python_full_version": f"{python}.0",
        "python_version": python,
        "sys_platform": "linux",
    }


def _target_options(python: str, machine: str) -> list[str]:
    platforms = [f"manylinux_2_{minor}_{machine}" for minor in GLIBC_MINORS] + [f"manylinux2014_{machine}"]
    return [
        *("--only-binary=:all:", "--implementation=cp", f"--python-version={python}"),
        *(f"--platform={platform}" for platform in platforms),
    ]


def _pip(verb: str, *arguments: str) -> None:
    # A fixed time stamp makes builds reproducible (hatchling's default, 2 February 2020).
    environment = os.environ | {"SOURCE_DATE_EPOCH": "1580601600"}
    command = [sys.executable, "-m", "pip", verb, "--quiet", "--disable-pip-version-check", "--no-input", *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise BundleError(f"pip {verb} failed: {done.stderr.strip() or done.stdout.strip()}")
