# SPDX-License-Identifier: GPL-3.0-or-later
"""What the role observability downloads, and the configuration of its collectors."""

from __future__ import annotations

import posixpath
import re

from ansible.errors import AnsibleFilterError

#: How those who release programs for Linux call a machine.
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}

#: Amazon Managed Prometheus, directly or through a VPC endpoint: aps-workspaces.<region>.<domain>.
REGION = re.compile(r"^https://(?:[^/]+\.)?aps-workspaces(?:-fips)?\.([a-z0-9-]+)\.")


def aps_region(url):
    """The region in a remote write URL, for which requests are signed."""
    match = REGION.match(url)
    if not match:
        raise AnsibleFilterError(f"{url} names no region: it is not https://aps-workspaces.<region>.…")
    return match[1]


def versions(checksums, machine, name):
    """The versions of a program that have a checksum for this machine, the preferred one first."""
    entries = checksums.get(machine) or {}
    return [key[len(name) + 1 :] for key in entries if key.startswith(name + "-")]


def downloads(wanted, sources, checksums, machine, mirror=""):
    """For each wanted program its version, the archive's address and checksum, and where its programs go by name."""
    found = []
    for name in wanted:
        source = sources[name]
        available = versions(checksums, machine, name)
        if not available:
            raise AnsibleFilterError(
                f"no checksum of {name} for {machine}: add one to observability_more_checksums, "
                "as docs/observability.md says; nothing is downloaded without"
            )
        version = available[0]
        url = source["url"].format(version=version, arch=ARCHITECTURES.get(machine, machine))
        found.append(
            {
                "name": name,
                "version": version,
                "url": f"{mirror.rstrip('/')}/{posixpath.basename(url)}" if mirror else url,
                "checksum": "sha256:" + checksums[machine][f"{name}-{version}"],
                "programs": {program: f"{program}-{version}" for program in source["programs"]},
            }
        )
    return found


def scrape_configs(targets, node):
    """One job for each exporter of this node; there is no other node in the list, so it is never out of date."""
    configs = []
    for target in targets:
        seconds = int(target["seconds"])
        config = {
            "job_name": target["job"],
            "scrape_interval": f"{seconds}s",
            "scrape_timeout": f"{min(10, seconds)}s",
            "static_configs": [{"targets": [target["address"]], "labels": {"instance": node}}],
        }
        if target.get("path"):
            config["metrics_path"] = target["path"]
        configs.append(config)
    return configs


def slurmctld_targets(kinds, address, seconds):
    """slurmctld's own metrics, of each kind at a path of its own."""
    return [
        {
            "job": f"slurm-{kind}",
            "unit": "slurmctld",
            "address": address,
            "path": f"/metrics/{kind}",
            "seconds": seconds,
        }
        for kind in kinds
    ]


def endpoints(targets):
    """Who answers where."""
    return [
        {
            "unit": target["unit"],
            "url": f"http://{target['address']}{target.get('path', '/metrics')}",
            "sign": target.get("sign", ""),
        }
        for target in targets
    ]


def mount_unit(path):
    """The unit of a mount point, as ``systemd-escape --path --suffix=mount`` has it."""
    escaped = re.sub(r"[^A-Za-z0-9:_./]", lambda match: f"\\x{ord(match[0]):02x}", path.strip("/"))
    return escaped.replace("/", "-") + ".mount"


def prometheus_agent(targets, url, labels):
    """prometheus.yml of an agent that reads this node's exporters and writes to `url`."""
    return {
        "global": {"external_labels": labels},
        "scrape_configs": scrape_configs(targets, labels["node"]),
        "remote_write": [
            {
                "url": url,
                "sigv4": {"region": aps_region(url)},
                # What the receiver is too busy for is sent again, not dropped.
                "queue_config": {"retry_on_http_429": True},
            }
        ],
    }


def otel_collector(targets, url, labels, wal, telemetry):
    """The configuration of an OpenTelemetry collector that does the same; its own metrics are at `telemetry`."""
    host, _, port = telemetry.rpartition(":")
    return {
        "extensions": {"sigv4auth": {"region": aps_region(url), "service": "aps"}},
        "receivers": {"prometheus": {"config": {"scrape_configs": scrape_configs(targets, labels["node"])}}},
        "exporters": {
            "prometheusremotewrite": {
                "endpoint": url,
                "auth": {"authenticator": "sigv4auth"},
                "external_labels": labels,
                # Names and labels are those that the exporters give, as with the other collector.
                "add_metric_suffixes": False,
                "target_info": {"enabled": False},
                "wal": {"directory": wal},
                "retry_on_failure": {"enabled": True, "max_elapsed_time": "0s"},
            }
        },
        "service": {
            "extensions": ["sigv4auth"],
            "telemetry": {
                "metrics": {"readers": [{"pull": {"exporter": {"prometheus": {"host": host, "port": int(port)}}}}]}
            },
            "pipelines": {"metrics": {"receivers": ["prometheus"], "exporters": ["prometheusremotewrite"]}},
        },
    }


class FilterModule:
    """Filters of the collection."""

    def filters(self):
        """By name."""
        return {
            "aps_region": aps_region,
            "metrics_downloads": downloads,
            "metrics_endpoints": endpoints,
            "metrics_versions": versions,
            "mount_unit": mount_unit,
            "otel_collector": otel_collector,
            "prometheus_agent": prometheus_agent,
            "slurmctld_targets": slurmctld_targets,
        }
