# SPDX-License-Identifier: GPL-3.0-or-later
"""Filters of the role observability: releases to download, and parts of units and configuration."""

from __future__ import annotations

import posixpath
import re

from ansible.errors import AnsibleFilterError

#: Amazon Managed Prometheus, directly or through a VPC endpoint: aps-workspaces.<region>.<domain>.
REGION = re.compile(r"^https://(?:[^/]+\.)?aps-workspaces(?:-fips)?\.([a-z0-9-]+)\.")


def aps_region(url):
    """Return the region in a remote write URL, for which requests are signed."""
    match = REGION.match(url)
    if not match:
        raise AnsibleFilterError(f"no region in {url}: it must begin with https://aps-workspaces.<region>.")
    return match[1]


def available(releases, architecture):
    """Return the names of `releases` that have a checksum for this architecture."""
    return [name for name, release in releases.items() if release["checksums"].get(architecture)]


def downloads(wanted, releases, architecture, mirror=""):
    """Return URL and checksum of each wanted release's archive, and the file names of its programs.

    Selects the first version with a checksum.
    """
    found = []
    for name in wanted:
        release = releases[name]
        checksums = release["checksums"].get(architecture)
        if not checksums:
            raise AnsibleFilterError(
                f"no checksum of {name} for {architecture}: add one to "
                f"observability_{name.replace('-', '_')}_checksums, see docs/observability.md"
            )
        version, checksum = next(iter(checksums.items()))
        url = release["url"].format(version=version, arch=architecture)
        found.append(
            {
                "name": name,
                "version": version,
                "url": f"{mirror.rstrip('/')}/{posixpath.basename(url)}" if mirror else url,
                "checksum": f"sha256:{checksum}",
                "programs": {program: f"{program}-{version}" for program in release["programs"]},
            }
        )
    return found


def endpoints(exporters, slurmctld, kinds):
    """Return the endpoint of each exporter, and of slurmctld at host:port `slurmctld` for each of `kinds`."""
    found = [
        {
            "unit": exporter["unit"],
            "url": f"http://127.0.0.1:{exporter['port']}/metrics",
            "metric": exporter.get("metric", ""),
        }
        for exporter in exporters
    ]
    return found + [{"unit": "slurmctld", "url": f"http://{slurmctld}/metrics/{kind}"} for kind in kinds]


def mount_unit(path):
    """Return the unit of a mount point, as ``systemd-escape --path --suffix=mount`` does."""
    escaped = re.sub(r"[^A-Za-z0-9:_./]", lambda match: f"\\x{ord(match[0]):02x}", path.strip("/"))
    return escaped.replace("/", "-") + ".mount"


class FilterModule:
    """Filters of the collection."""

    def filters(self):
        """Return the filters by name."""
        return {
            "aps_region": aps_region,
            "metrics_available": available,
            "metrics_downloads": downloads,
            "metrics_endpoints": endpoints,
            "mount_unit": mount_unit,
        }
