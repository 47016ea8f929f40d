# SPDX-License-Identifier: Apache-2.0
"""Metrics from real exporters through a real agent to a real Prometheus, behind a front that checks signatures.

The tests of this module share one lab and follow each other.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import platform
import shutil
import time
import urllib.parse
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import nodes
import pytest
import yaml
from conftest import ROOT, THOROUGH, lab_called
from nodes import GROUP_VARS, bash, must

from hyperpod_lab.agent.request import from_create_cluster
from hyperpod_lab.image import Release
from hyperpod_lab.lab import Lab
from hyperpod_lab.shape import Shape

FAKES = ROOT / "lab/fakes"
DOCS = ROOT / "docs/observability"
GROUP = "gpu-workers-with-quite-a-long-group-na"
CONTROLLER, LOGIN, GPU = "controller-1", "login-1", f"{GROUP}-1"
NODES = (CONTROLLER, LOGIN, GPU)
JOBS = {
    CONTROLLER: {"node", "slurm", "collector"},
    LOGIN: {"node", "collector"},
    GPU: {"node", "dcgm", "efa", "collector"},
}
HOST = "aps-workspaces.us-west-2.amazonaws.com"
URL = f"https://{HOST}/workspaces/ws-01234567-89ab-cdef-0123-456789abcdef/api/v1/remote_write"
KEYS = ("AKIDFAKE", "not/a+secret")
LUSTRE = {
    "DnsName": "fs-12345678a90b01cde.fsx.us-west-2.amazonaws.com",
    "MountName": "1abcdefg",
    "MountPath": "/fsx",
}
ARCHITECTURE = {"x86_64": "amd64", "aarch64": "arm64"}[platform.machine()]
SETTINGS = f"{GROUP_VARS}/all.yml"
ENVIRONMENT = "/etc/hyperpod-lifecycle/observability.env"
DCGM = "hyperpod-dcgm-exporter"
#: Seconds that the receiver is away.
OUTAGE = 120 if THOROUGH else 15
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

#: Where the role may leave nothing: all but journals, caches, our inputs and reports, and what the test has put there.
TRACES = r"""
cd /; find . \( -path ./proc -o -path ./sys -o -path ./dev -o -path ./run -o -path ./tmp -o -path ./var/log \
    -o -path ./var/cache -o -path ./var/lib/apt -o -path ./var/lib/systemd -o -path ./var/lib/mysql \
    -o -path ./var/lib/munge -o -path ./var/tmp \
    -o -path ./var/spool -o -path ./root -o -path ./opt/hyperpod-lifecycle -o -path ./etc/hyperpod-lifecycle \
    -o -path ./opt/fakes -o -path ./etc/ssl/certs -o -path ./usr/local/share/ca-certificates \
    -o -path ./fsx -o -path ./srv \) -prune -o -printf '%p %u %g %m %y %l\n' | grep -v -e '^./etc/.*- ' | sort
getent passwd; getent group; ss -Hltun | awk '{print $5}' | sort
systemctl list-unit-files --no-legend --plain | awk '{print $1, $2}' | grep -v -e '[.]scope' -e '[.]mount' | sort
cat /opt/slurm/etc/accounting.conf
"""


@pytest.fixture(scope="module")
def folder(upload: Callable[..., Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The upload folder; without settings at first."""
    made = tmp_path_factory.mktemp("obs") / "src"
    shutil.copytree(upload(), made)
    return made


@pytest.fixture(scope="module")
def lab(folder: Path) -> Iterator[Lab]:
    with lab_called("obs") as lab:
        lab.up(shape(folder.parent), scripts=False)
        results = lab.up(upload_folder=folder)
        assert [result.exit_code for result in results] == [0, 0, 0], [result.summary for result in results]
        sums = start_services(lab)
        write_settings(folder, sums)
        yield lab


@pytest.fixture(scope="module")
def before(lab: Lab) -> dict[str, str]:
    """Every node as it is without metrics."""
    return {node: bash(lab, node, TRACES) for node in NODES}


@pytest.fixture(scope="module")
def on(lab: Lab, folder: Path, before: Mapping[str, str]) -> Lab:
    """Metrics on, on every node."""

    def switch_on(node: str) -> int:
        prepare(lab, node)
        lab.put(node, settings_file(folder), SETTINGS)
        return applied(lab, node)

    with ThreadPoolExecutor() as pool:
        assert all(pool.map(switch_on, NODES))
    return lab


def shape(folder: Path) -> Shape:
    """A cluster whose compute node has a name of 40 characters, a GPU and shared storage."""
    groups: list[dict[str, Any]] = [
        {"InstanceGroupName": "controller", "InstanceType": "ml.c5.xlarge", "SlurmConfig": {"NodeType": "Controller"}},
        {"InstanceGroupName": "login", "InstanceType": "ml.m5.xlarge", "SlurmConfig": {"NodeType": "Login"}},
        {
            "InstanceGroupName": GROUP,
            "InstanceType": "ml.g5.xlarge",
            "SlurmConfig": {"NodeType": "Compute", "PartitionNames": ["gpu"]},
            "InstanceStorageConfigs": [{"FsxLustreConfig": LUSTRE}],
        },
    ]
    assert len(GPU) == 40
    life = {"SourceS3Uri": "s3://sagemaker-x/src", "OnCreate": "on_create.sh"}
    role = "arn:aws:iam::111122223333:role/HyperPodExecutionRole"
    for group in groups:
        group |= {"InstanceCount": 1, "LifeCycleConfig": life, "ExecutionRole": role}
    network = {"SecurityGroupIds": ["sg-012345abcdef67890"], "Subnets": ["subnet-012345abcdef67890"]}
    request = folder / "create_cluster.json"
    request.write_text(json.dumps({"ClusterName": "metrics", "InstanceGroups": groups, "VpcConfig": network}))
    return from_create_cluster(request, None, Release.TRIXIE)


def start_services(lab: Lab) -> dict[str, Any]:
    """Archives, the receiver and its front. Returns the settings with the archives' checksums."""
    files = {"fake_slurm_exporter.py": (FAKES / "fake_slurm_exporter.py").read_bytes()}
    lab.services.start("releases", ["python3", "-m", "http.server", "80"], files=files)
    lab.services.exec("releases", ["bash", "-c", f"arch={ARCHITECTURE}; {PACK}"], timeout=300)
    archives = lab.services.folder / "releases"
    receiver = ["/mnt/bin/prometheus", "--config.file=prometheus.yml", "--web.enable-remote-write-receiver"]
    receiver += ["--storage.tsdb.path=data", "--web.console.templates=/mnt/share/consoles"]
    # A series that has ended is soon not there any more.
    receiver += ["--query.lookback-delta=15s"]
    lab.services.start("receiver", receiver, files={"prometheus.yml": b""}, mounts={archives: "/mnt"})
    front = ["python3", "fake_amp.py", HOST, "http://receiver:9090/api/v1/write", *KEYS]
    program = (FAKES / "fake_amp.py").read_bytes()
    lab.services.start("amp", front, files={"fake_amp.py": program}, names=[HOST])
    eventually((lab.services.folder / "amp/certificate.pem").exists)
    found: dict[str, Any] = {}
    for archive in archives.glob("*.tar.gz"):
        release, _, version = archive.name.split("linux")[0][:-1].rpartition("-")
        sha256 = hashlib.sha256(archive.read_bytes()).hexdigest()
        found[f"observability_{release}_checksums"] = {ARCHITECTURE: {version: sha256}}
    return found


def settings_file(folder: Path) -> bytes:
    return (folder / "inventory/group_vars/all.yml").read_bytes()


def write_settings(folder: Path, sums: Mapping[str, Any]) -> None:
    """Into the upload folder, from where on_create.sh takes them."""
    settings = {
        "observability_remote_write_url": URL,
        "observability_mirror": "http://releases",
        **sums,
        "observability_scrape_seconds": 1,
        "observability_slurm_scrape_seconds": 2,
        "observability_advanced": True,
        "observability_nvidia_driver": "/dev/nvidia0",
        "observability_dcgm_exporter": "/opt/fakes/fake_dcgm.py",
        "observability_infiniband_dir": "/opt/fakes/infiniband",
    }
    (folder / "inventory/group_vars").mkdir(exist_ok=True)
    (folder / "inventory/group_vars/all.yml").write_text(yaml.safe_dump(settings))


def prepare(lab: Lab, node: str) -> None:
    """What a real node has of AWS: trust, credentials, an exporter of NVIDIA's, EFA."""
    lab.put(node, (lab.services.folder / "amp/certificate.pem").read_bytes(), TRUST)
    put_keys(lab, node, *KEYS)
    lab.put(node, (FAKES / "fake_dcgm.py").read_bytes(), "/opt/fakes/fake_dcgm.py", mode=0o755)
    device = "/opt/fakes/infiniband/rdmap0s6"
    counters = "; ".join(f"echo 7 >{device}/ports/1/hw_counters/{name}" for name in EFA)
    make = f"mkdir -p {device}/ports/1/hw_counters {device}/device /opt/fakes/efa; {counters}"
    bash(lab, node, f"update-ca-certificates 2>&1; {make}; ln -sfn /opt/fakes/efa {device}/device/driver")


EFA = ("tx_bytes", "rx_bytes", "rdma_read_bytes", "rdma_write_bytes", "retrans_bytes")


def put_keys(lab: Lab, node: str, access_key: str, secret_key: str) -> None:
    text = f"AWS_ACCESS_KEY_ID={access_key}\nAWS_SECRET_ACCESS_KEY={secret_key}\nAWS_EC2_METADATA_DISABLED=true\n"
    lab.put(node, text.encode(), ENVIRONMENT, mode=0o600)


#: Runs of this concern alone.
apply = partial(nodes.apply, tags="observability")
applied = partial(nodes.applied, tags="observability")
refused = partial(nodes.refused, tags="observability")


def query(lab: Lab, expression: str) -> list[dict[str, Any]]:
    """What the receiver answers."""
    text = urllib.parse.urlencode({"query": expression})
    done = lab.services.exec("receiver", ["curl", "-sS", f"http://localhost:9090/api/v1/query?{text}"])
    answer = json.loads(done.stdout)
    assert answer["status"] == "success", (expression, answer)
    found: list[dict[str, Any]] = answer["data"]["result"]
    return found


def eventually(ask: Callable[[], Any], seconds: float = 60) -> Any:
    """The first answer that is not empty."""
    deadline = time.monotonic() + seconds
    while not (answer := ask()):
        assert time.monotonic() < deadline, f"it has not come to that within {seconds} s"
        time.sleep(0.5)
    return answer


def counts(lab: Lab) -> dict[str, int]:
    """How the front has answered."""
    done = lab.services.exec("amp", ["curl", "-sSk", "https://localhost/fake/counts"])
    found: dict[str, int] = json.loads(done.stdout)
    return found


def running(lab: Lab, node: str) -> str:
    return bash(lab, node, "systemctl show --property=Id,MainPID 'hyperpod-*' slurmctld slurmd | sort")


def expressions(panels: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    """A dashboard's queries with its variables filled in."""
    for panel in panels:
        for target in panel["targets"]:
            text = target["expr"].replace("$cluster", "metrics").replace("$__rate_interval", "30s")
            for variable in ("$node", "$gpu", "$job"):
                text = text.replace(variable, ".*")
            yield text


def test_every_exporter_of_every_node_is_up_with_the_nodes_labels(on: Lab) -> None:
    ids = {node.name: node.instance_id for node in on.nodes()}
    wanted = {(job, node) for node, jobs in JOBS.items() for job in jobs}
    eventually(lambda: {(up["metric"]["job"], up["metric"]["node"]) for up in query(on, "up == 1")} == wanted)
    types = {CONTROLLER: "controller", LOGIN: "login", GPU: "compute"}
    for labels in (up["metric"] for up in query(on, "up")):
        node = labels["node"]
        assert labels["instance"] == node
        assert labels["cluster"] == "metrics"
        assert labels["instance_group"] == node.rpartition("-")[0]
        assert labels["node_type"] == types[node]
        assert labels["instance_id"] == ids[node]


def test_nothing_listens_for_others(on: Lab) -> None:
    ports = bash(on, GPU, "ss -Hltn | awk '{print $4}'").split()
    assert {"127.0.0.1:9100", "127.0.0.1:9109", "127.0.0.1:9400", "127.0.0.1:9095"} <= set(ports)
    assert not [
        port for port in ports if port.endswith((":9100", ":9109", ":9400", ":9095")) and "127.0.0.1" not in port
    ]


def test_a_job_is_named_in_its_gpus_metrics_and_dashboards_have_what_they_ask_for(on: Lab) -> None:
    script = "#!/bin/sh\nsleep 300\n"
    submit = ["sbatch", "--parsable", "--gres=gpu:1", "--partition=gpu", "--output=/dev/null"]
    job = on.exec(LOGIN, submit, user="ubuntu", stdin=script.encode(), check=True).stdout.strip()
    (found,) = eventually(lambda: query(on, f'DCGM_FI_DEV_GPU_UTIL{{hpc_job="{job}"}}'))
    assert (found["metric"]["gpu"], found["metric"]["node"]) == ("0", GPU)
    asked = 0
    for path in sorted(DOCS.glob("*.json")):
        for expression in expressions(json.loads(path.read_text())["panels"]):
            eventually(lambda expression=expression: query(on, expression))  # type: ignore[misc]
            asked += 1
    assert asked > 40
    bash(on, CONTROLLER, f"scancel {job}")
    eventually(lambda: not query(on, f'DCGM_FI_DEV_GPU_UTIL{{hpc_job="{job}"}}'))
    states = eventually(lambda: bash(on, CONTROLLER, "sinfo --noheader --format=%T --partition=gpu | grep idle; true"))
    assert states == "idle\n", "the hooks have not failed"


def test_alerts_are_rules_and_find_what_they_are_for(on: Lab) -> None:
    rules = (DOCS / "alerts.yml").read_bytes()
    on.services.exec("receiver", ["sh", "-c", "cat >rules.yml && /mnt/bin/promtool check rules rules.yml"], data=rules)
    by_name = {rule["alert"]: rule["expr"] for rule in yaml.safe_load(rules)["groups"][0]["rules"]}
    for expression in by_name.values():
        eventually(lambda expression=expression: not query(on, expression))  # type: ignore[misc]
    bash(on, GPU, "systemctl stop slurmd fsx.automount; mountpoint -q /fsx && umount --lazy /fsx; true")
    bash(on, LOGIN, "systemctl stop hyperpod-node-exporter")
    (found,) = eventually(lambda: query(on, by_name["SlurmdDown"]))
    assert found["metric"]["node"] == GPU
    (found,) = eventually(lambda: query(on, by_name["StorageGone"]))
    assert (found["metric"]["node"], found["metric"]["mountpoint"]) == (GPU, "/fsx")
    (found,) = eventually(lambda: query(on, by_name["ExporterDown"]))
    assert (found["metric"]["node"], found["metric"]["job"]) == (LOGIN, "node")
    bash(on, LOGIN, "systemctl stop hyperpod-metrics-agent")
    found = eventually(lambda: query(on, by_name["NodeDown"]))
    assert [each["metric"]["node"] for each in found] == [LOGIN]
    bash(on, LOGIN, "systemctl start hyperpod-node-exporter hyperpod-metrics-agent")
    bash(on, GPU, "systemctl start fsx.automount slurmd || mount /fsx; ls /fsx")


def test_nothing_is_lost_while_the_receiver_is_away(on: Lab) -> None:
    eventually(lambda: len(query(on, 'up{job="node"} == 1')) == 3)
    begin = time.time()
    on.services.stop("receiver")
    refused = counts(on).get("503", 0)
    eventually(lambda: time.time() > begin + OUTAGE, 2 * OUTAGE)
    assert counts(on)["503"] > refused, "it was asked meanwhile"
    on.services.resume("receiver")
    # Until it listens curl fails, and the loop asks again; the loop's limit is what fails the test.
    ready = ["sh", "-c", "curl --silent --fail http://localhost:9090/-/ready || true"]
    eventually(lambda: on.services.exec("receiver", ready).stdout)
    eventually(lambda: len(query(on, f'timestamp(up{{job="node"}}) > {begin + OUTAGE + 5}')) == 3, 90)
    seconds = int(time.time() - begin) + 10
    series = query(on, f'up{{job="node"}}[{seconds}s]')
    assert len(series) == 3
    for each in series:
        times = [moment for moment, _ in each["values"]]
        gap = max(later - earlier for earlier, later in itertools.pairwise(times))
        assert gap < OUTAGE, f"{each['metric']['node']} has nothing for {gap} s"


def test_what_is_not_signed_or_not_rightly_is_refused_and_the_run_says_so(on: Lab) -> None:
    send = f"curl --silent --output /dev/null --write-out '%{{http_code}}' --data x {URL}"
    assert bash(on, LOGIN, send) == "403"
    put_keys(on, LOGIN, KEYS[0], "another")
    try:
        done = apply(on, LOGIN)
    finally:
        put_keys(on, LOGIN, *KEYS)
    last = must(done)
    assert "degraded" in last
    assert "observability" in last
    assert "403" in last
    refused = counts(on)
    assert refused["refused: MissingAuthenticationToken"] == 1
    assert refused["refused: SignatureDoesNotMatch"] > 0
    assert applied(on, LOGIN) == 1, "the collector starts anew"


def test_a_second_run_restarts_nothing(on: Lab) -> None:
    def unchanged(node: str) -> bool:
        before = running(on, node)
        # All concerns: several of them have settings in Slurm's files.
        return nodes.applied(on, node) == 0 and running(on, node) == before

    with ThreadPoolExecutor() as pool:
        assert list(pool.map(unchanged, NODES)) == [True, True, True]


def test_a_download_that_fails_leaves_a_degraded_node_or_fails_the_run(on: Lab, folder: Path) -> None:
    sums = {ARCHITECTURE: {"9.9.9": "0" * 64}}
    words = ["-e", f"observability_node_exporter_checksums={json.dumps(sums)}"]
    done = apply(on, LOGIN, *words)
    last = must(done)
    assert "degraded" in last
    assert "observability: " in last
    assert "404" in last
    last = nodes.refused(on, LOGIN, *words, "-e", "observability_required=true", tags="observability")
    assert "404" in last
    assert "active" in bash(on, LOGIN, "systemctl is-active hyperpod-node-exporter"), "the old one goes on"


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("https://aps-workspaces.<region>.amazonaws.com/workspaces/ws-1/api/v1/remote_write", "placeholder"),
        (f"https://{HOST}/workspaces/ws-1", "remote_write"),
    ],
)
def test_a_url_that_cannot_be_one_changes_nothing(on: Lab, url: str, said: str) -> None:
    before = running(on, LOGIN)
    done = apply(on, LOGIN, "-e", f"observability_remote_write_url={url}")
    assert done.returncode == 3, done.stdout + done.stderr
    assert said in done.stdout + done.stderr
    assert running(on, LOGIN) == before


def test_without_profiling_metrics_are_the_basic_ones(on: Lab) -> None:
    bash(on, GPU, f"touch /opt/fakes/no_profiling; systemctl restart {DCGM}")
    done = apply(on, GPU)
    assert "no profiling" in must(done)
    names = bash(on, GPU, "curl -sS http://127.0.0.1:9400/metrics")
    assert "DCGM_FI_DEV_GPU_UTIL" in names
    assert "DCGM_FI_PROF" not in names
    bash(on, GPU, f"rm /opt/fakes/no_profiling; systemctl restart {DCGM}")


def test_exporters_outlast_a_reboot(on: Lab) -> None:
    begin = time.time()
    on.reboot(LOGIN)
    fresh = f'timestamp(up{{job="node", node="{LOGIN}"}}) > {begin + 5}'
    assert eventually(lambda: query(on, fresh))
    units = bash(on, LOGIN, "systemctl is-active hyperpod-node-exporter hyperpod-metrics-agent")
    assert units == "active\nactive\n"


def test_switched_off_it_leaves_nothing(on: Lab, before: Mapping[str, str]) -> None:
    off = ("-e", "observability_enabled=false")
    with ThreadPoolExecutor() as pool:
        assert all(pool.map(lambda node: applied(on, node, *off), NODES))
        assert not any(pool.map(lambda node: applied(on, node, *off), NODES))
    for node in NODES:
        after = bash(on, node, TRACES)
        left = set(after.splitlines()) ^ set(before[node].splitlines())
        assert not left, f"{node}: {sorted(left)}"
    assert "hyperpod-metrics" not in bash(on, CONTROLLER, "scontrol show config")


def test_a_replaced_node_comes_by_itself(on: Lab, folder: Path) -> None:
    """Its controller has no metrics at that time, and nobody else is touched."""
    old = on.node(GPU).instance_id
    on.replace(GPU, scripts=False)
    prepare(on, GPU)
    (result,) = on.run_scripts([on.node(GPU)], folder)
    assert result.exit_code == 0, result.summary
    new = on.node(GPU).instance_id
    assert new != old
    wanted = JOBS[GPU]
    selector = f'up{{instance_id="{new}", node="{GPU}"}} == 1'
    eventually(lambda: {up["metric"]["job"] for up in query(on, selector)} == wanted)
