# SPDX-License-Identifier: Apache-2.0
"""Metrics from real exporters through a real Prometheus agent to a real Prometheus, behind a front that checks signatures.

The tests of this module share one lab and follow each other.
"""

from __future__ import annotations

import hashlib
import json
import platform
import shutil
import subprocess
import time
import urllib.parse
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from conftest import ROOT, changed_tasks, lab_called

from hyperpod_lab.image import Release
from hyperpod_lab.lab import Lab
from hyperpod_lab.shape import from_create_cluster

FAKES = ROOT / "lab/fakes"
DOCS = ROOT / "docs/observability"
GROUP = "gpu-workers-of-a-group-with-a-long-name"
CONTROLLER, LOGIN, GPU = "controller-1", "login-1", f"{GROUP[:38]}-1"
HOST = "aps-workspaces.us-west-2.amazonaws.com"
URL = f"https://{HOST}/workspaces/ws-01234567-89ab-cdef-0123-456789abcdef/api/v1/remote_write"
KEYS = ("AKIDFAKE", "not/a+secret")
SETTINGS = "/etc/hyperpod-lifecycle/inventory/group_vars/all.yml"
ENVIRONMENT = "/etc/hyperpod-lifecycle/observability.env"
TRUST = "/usr/local/share/ca-certificates/fake_amp.crt"

#: Archives as their makers lay them out, with Debian's programs in them, and the fake of slurm_exporter.
PACK = """
set -e
apt-get update -qq; mkdir -p /tmp/deb; cd /tmp/deb
apt-get download -qq prometheus promtool prometheus-node-exporter
for deb in *.deb; do dpkg-deb -x "$deb" /tmp/root; done
version() { dpkg-deb --field "$1"_*.deb Version | sed 's/[^0-9.].*//'; }
pack() {
    name=$1-$2.linux-$arch; mkdir -p "/tmp/$name"; shift 2
    for pair in "$@"; do cp "${pair%=*}" "/tmp/$name/${pair#*=}"; chmod 755 "/tmp/$name/${pair#*=}"; done
    tar -C /tmp -czf "$name.tar.gz" "$name"
}
cd /srv/service; mkdir -p bin; cp /tmp/root/usr/bin/prometheus /tmp/root/usr/bin/promtool bin
cp -r /tmp/root/usr/share/prometheus share
pack prometheus "$(cd /tmp/deb && version prometheus)" bin/prometheus=prometheus bin/promtool=promtool
pack node_exporter "$(cd /tmp/deb && version prometheus-node-exporter)" \
    /tmp/root/usr/bin/prometheus-node-exporter=node_exporter
pack slurm_exporter 0.0.1 fake_slurm_exporter.py=slurm_exporter
mv slurm_exporter-0.0.1.linux-$arch.tar.gz slurm_exporter-0.0.1-linux-$arch.tar.gz
"""

#: What the role may leave nothing in; journals, caches and our own inputs and reports aside.
TRACES = r"""
find / \( -path /proc -o -path /sys -o -path /dev -o -path /run -o -path /tmp -o -path /var/log -o -path /var/cache \
    -o -path /var/lib/apt -o -path /opt/hyperpod-lifecycle -o -path /etc/hyperpod-lifecycle -o -path /var/spool \
    -o -path /var/lib/mysql -o -path /root -o -path /var/lib/systemd \) -prune -o -printf '%p %u %g %m %y %l\n' | sort
getent passwd; getent group; ss -Hltn | awk '{print $4}' | sort
systemctl list-unit-files --no-legend --plain | awk '{print $1, $2}' | grep -v -e '\.scope' -e '\.mount' | sort
cat /opt/slurm/etc/accounting.conf
"""


@pytest.fixture(scope="module")
def lab(upload: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    folder = tmp_path_factory.mktemp("obs") / "src"
    shutil.copytree(upload(), folder)
    with lab_called("obs") as lab:
        lab.up(create_cluster(folder.parent), scripts=False)
        results = lab.up(upload_folder=folder)
        assert [result.exit_code for result in results] == [0, 0, 0], [result.summary for result in results]
        yield lab


def create_cluster(folder: Path) -> Any:
    groups = [
        {"InstanceGroupName": "controller", "InstanceType": "ml.c5.xlarge", "SlurmConfig": {"NodeType": "Controller"}},
        {"InstanceGroupName": "login", "InstanceType": "ml.m5.xlarge", "SlurmConfig": {"NodeType": "Login"}},
        {
            "InstanceGroupName": GROUP[:38],
            "InstanceType": "ml.g5.xlarge",
            "SlurmConfig": {"NodeType": "Compute", "PartitionNames": ["gpu"]},
        },
    ]
    life = {"SourceS3Uri": "s3://sagemaker-x/src", "OnCreate": "on_create.sh"}
    role = "arn:aws:iam::111122223333:role/HyperPodExecutionRole"
    for group in groups:
        group |= {"InstanceCount": 1, "LifeCycleConfig": life, "ExecutionRole": role}
    request = folder / "create_cluster.json"
    network = {"SecurityGroupIds": ["sg-012345abcdef67890"], "Subnets": ["subnet-012345abcdef67890"]}
    request.write_text(json.dumps({"ClusterName": "metrics", "InstanceGroups": groups, "VpcConfig": network}))
    return from_create_cluster(request, None, Release.TRIXIE)


def bash(lab: Lab, node: str, script: str, *, check: bool = True) -> str:
    done = lab.exec(node, ["bash", "-c", script], check=check)
    return done.stdout + ("" if check else done.stderr)


def apply(lab: Lab, node: str, *words: str) -> subprocess.CompletedProcess[str]:
    return lab.exec(node, ["hyperpod-lifecycle", "apply", "--tags", "observability", *words])


def applied(lab: Lab, node: str, *words: str) -> int:
    """How much a run that is in order changed."""
    done = apply(lab, node, *words)
    assert done.returncode == 0, done.stdout + done.stderr
    return changed_tasks(done.stdout.strip().splitlines()[-1])


def start_services(lab: Lab) -> Mapping[str, str]:
    """Archives, the receiver and its front; the answer is the archives' checksums."""
    files = {"fake_slurm_exporter.py": (FAKES / "fake_slurm_exporter.py").read_bytes()}
    lab.services.start("releases", ["python3", "-m", "http.server", "80"], files=files)
    arch = {"x86_64": "amd64", "aarch64": "arm64"}[platform.machine()]
    lab.services.exec("releases", ["bash", "-c", f"arch={arch}; {PACK}"], timeout=300)
    archives = lab.services.folder / "releases"
    command = [f"/mnt/bin/{word}" if word == "prometheus" else word for word in RECEIVER]
    lab.services.start("receiver", command, files={"prometheus.yml": b""}, mounts={archives: "/mnt"})
    lab.services.start(
        "amp",
        ["python3", "fake_amp.py", HOST, "http://receiver:9090/api/v1/write", *KEYS],
        files={"fake_amp.py": (FAKES / "fake_amp.py").read_bytes()},
        names=[HOST],
    )
    sums = {}
    for archive in archives.glob("*.tar.gz"):
        name = archive.name.split(".linux")[0].split("-linux")[0]
        sums[name] = hashlib.sha256(archive.read_bytes()).hexdigest()
    return sums


RECEIVER = [
    "prometheus",
    "--config.file=prometheus.yml",
    "--web.enable-remote-write-receiver",
    "--web.console.templates=/mnt/share/consoles",
    "--storage.tsdb.path=data",
]


def prepare(lab: Lab, node: str, sums: Mapping[str, str]) -> None:
    """What the test puts on a node: trust, credentials, settings, and the fake of dcgm-exporter where there are GPUs."""
    settings = {
        "observability_remote_write_url": URL,
        "observability_mirror": "http://releases",
        "observability_more_checksums": {platform.machine(): dict(sums)},
        "observability_scrape_seconds": 1,
        "observability_slurm_scrape_seconds": 2,
        "observability_advanced": True,
        "observability_nvidia_driver": "/dev/nvidia0",
        "observability_dcgm_exporter": "/opt/fakes/fake_dcgm.py",
        "observability_infiniband_dir": "/opt/fakes/infiniband",
    }
    lab.put(node, (lab.services.folder / "amp/certificate.pem").read_bytes(), TRUST)
    lab.put(node, yaml.safe_dump(settings).encode(), SETTINGS)
    environment = f"AWS_ACCESS_KEY_ID={KEYS[0]}\nAWS_SECRET_ACCESS_KEY={KEYS[1]}\nAWS_EC2_METADATA_DISABLED=true\n"
    lab.put(node, environment.encode(), ENVIRONMENT, mode=0o600)
    lab.put(node, (FAKES / "fake_dcgm.py").read_bytes(), "/opt/fakes/fake_dcgm.py", mode=0o755)
    device = "/opt/fakes/infiniband/rdmap0s6"
    counters = "; ".join(
        f"echo {value} >{device}/ports/1/hw_counters/{name}"
        for name, value in (("tx_bytes", 4096), ("rdma_read_bytes", 7), ("retrans_bytes", 0))
    )
    bash(
        lab,
        node,
        f"update-ca-certificates >/dev/null 2>&1; mkdir -p {device}/ports/1/hw_counters {device}/device /opt/fakes/efa; "
        f"ln -sfn /opt/fakes/efa {device}/device/driver; {counters}",
    )


def query(lab: Lab, expression: str, **options: str) -> list[dict[str, Any]]:
    """What the receiver answers."""
    text = urllib.parse.urlencode({"query": expression, **options})
    done = lab.services.exec("receiver", ["curl", "-sS", f"http://localhost:9090/api/v1/query?{text}"])
    answer = json.loads(done.stdout)
    assert answer["status"] == "success", answer
    found: list[dict[str, Any]] = answer["data"]["result"]
    return found


def eventually(ask: Callable[[], Any], seconds: float = 60) -> Any:
    """The first answer that is not empty."""
    deadline = time.monotonic() + seconds
    while not (answer := ask()):
        assert time.monotonic() < deadline, "it has not come to that"
        time.sleep(0.5)
    return answer


def counts(lab: Lab) -> dict[str, int]:
    done = lab.services.exec("amp", ["curl", "-sSk", "https://localhost/fake/counts"])
    found: dict[str, int] = json.loads(done.stdout)
    return found


def test_before_and_on(lab: Lab) -> None:
    """Off by default; then on, on every node."""
    for node in (CONTROLLER, LOGIN, GPU):
        assert "observability" in bash(lab, node, "hyperpod-lifecycle plan")
        lab.put(node, bash(lab, node, TRACES).encode(), "/root/before")
    sums = start_services(lab)
    (lab.services.folder / "sums.json").write_text(json.dumps(sums))
    eventually(lambda: (lab.services.folder / "amp/certificate.pem").exists())
    for node in (CONTROLLER, LOGIN, GPU):
        bash(lab, node, f"{TRACES.split('cat')[0]}" if False else "true")
        prepare(lab, node, sums)
        assert applied(lab, node) > 0
