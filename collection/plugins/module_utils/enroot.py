# SPDX-License-Identifier: Apache-2.0
"""Enroot's packages and its configuration. Standard library only: it runs on the node, and it touches nothing there."""

from __future__ import annotations

import re

PACKAGES = ("enroot", "enroot+caps")

#: Where a user's containers, downloads and temporary files are.
PATHS = ("ENROOT_RUNTIME_PATH", "ENROOT_CACHE_PATH", "ENROOT_DATA_PATH", "ENROOT_TEMP_PATH")

#: The first line of ours.
HEAD = "# Written whole by hyperpod-lifecycle (role containers) on each run.\n"

_SETTING = re.compile(r"^\s*([A-Za-z_]+)[ \t=]+(.*?)\s*$")


def wanted_version(there, checksums, version, older):
    """The version that both packages should have, or None where the node keeps what it has.

    `there` is what is installed, `checksums` has the known versions of this architecture, the default first, `version`
    is the one that is asked for, or empty. Nothing becomes older than it is: `older` compares two versions.
    """
    have = sorted({_upstream(found) for found in there.values()}, key=len)
    complete = len(there) == len(PACKAGES) and len(have) == 1
    if complete and (not version or not older(have[0], version)):
        return None
    if version:
        return version
    # Half of them: the other half must have the same version.
    return have[0] if have else next(iter(checksums), None)


def _upstream(version):
    """``4.1.2`` of ``4.1.2-1``."""
    return version.rpartition("-")[0] or version


def downloads(version, architecture, checksums):
    """File and checksum of each package; ValueError, with what to do, if there is none."""
    known = checksums.get(architecture) or {}
    if version is None or set(known.get(version) or {}) != set(PACKAGES):
        what = f"Enroot {version}" if version else "Enroot"
        raise ValueError(
            f"no checksums of {what} for {architecture} are known; give both in "
            f"containers_enroot_checksums.{architecture} (see docs/containers.md)"
        )
    return [
        {"file": f"{package}_{version}-1_{architecture}.deb", "checksum": f"sha256:{known[version][package]}"}
        for package in PACKAGES
    ]


def settings(text):
    """What an enroot.conf sets; of two, the second."""
    found = {}
    for line in text.splitlines():
        match = None if line.lstrip().startswith("#") else _SETTING.match(line)
        if match:
            found[match[1]] = match[2]
    return found


def is_good(text, disk):
    """Has somebody else already put all of Enroot's data where it should be?

    `disk` is the mount point for container data; empty: the root disk. Downloads may lie on shared storage, and what
    runs in memory.
    """
    if text.startswith(HEAD):
        return False
    found = settings(text)
    if not all(found.get(name) for name in PATHS):
        return False
    return not disk or all(
        found[name].startswith(disk.rstrip("/") + "/") for name in ("ENROOT_DATA_PATH", "ENROOT_TEMP_PATH")
    )
