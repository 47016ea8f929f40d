# SPDX-License-Identifier: Apache-2.0
"""What is downloaded, what collectors are told, and what Slurm's hooks do; tests/e2e has the real ones."""

from __future__ import annotations

import hashlib
import importlib.util
import io
import os
import re
import subprocess
import tarfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible.errors import AnsibleFilterError
from ansible.parsing.dataloader import DataLoader
from ansible_collections.hyperpod.lifecycle.plugins.filter import observability
from ansible_collections.hyperpod.lifecycle.plugins.module_utils import accounting, hooks, metrics
from ansible_collections.hyperpod.lifecycle.plugins.module_utils.commands import Fault
from ansible_collections.hyperpod.lifecycle.plugins.modules import metrics_verify
from conftest import ROOT, Hosts, tasks_of

from hyperpod_lifecycle.in_ansible.answer import check_settings

ROLE = ROOT / "collection/roles/observability"
WORKSPACE = "workspaces/ws-01234567-89ab-cdef-0123-456789abcdef/api/v1/remote_write"
URL = f"https://aps-workspaces.us-west-2.amazonaws.com/{WORKSPACE}"
SCRIPT = "hyperpod-metrics-0123abcd.sh"
JOB_DIR = "/run/slurm/dcgm-job-mapping"


# --- the URL ---


@pytest.mark.parametrize(
    ("host", "region"),
    [
        ("aps-workspaces.us-west-2.amazonaws.com", "us-west-2"),
        ("aps-workspaces.cn-north-1.amazonaws.com.cn", "cn-north-1"),
        ("aps-workspaces.us-gov-west-1.amazonaws.com", "us-gov-west-1"),
        ("aps-workspaces-fips.us-east-1.amazonaws.com", "us-east-1"),
        ("vpce-0a1b.aps-workspaces.eu-central-1.vpce.amazonaws.com", "eu-central-1"),
    ],
)
def test_requests_are_signed_for_the_region_in_the_url(host: str, region: str) -> None:
    url = f"https://{host}/{WORKSPACE}"
    assert observability.aps_region(url) == region
    assert not problems(url)


@pytest.mark.parametrize(
    "url",
    [
        URL.replace("https", "http"),
        URL.removesuffix("/api/v1/remote_write"),
        URL + "/",
        "https://prometheus.example.com/api/v1/remote_write",
        "https://aps-workspaces.amazonaws.com.example/../x",
        "https://user:pass@aps-workspaces.us-west-2.amazonaws.com/" + WORKSPACE,
        "https://aps-workspaces.us-west-2.amazonaws.com/workspaces/WORKSPACE_ID/api/v1/remote_write",
        "https://aps-workspaces.us-west-2.amazonaws.com/workspaces/ws-XXXXXXXX/api/v1/remote_write",
        "https://aps-workspaces.us-west-2.amazonaws.com/workspaces/ws-********/api/v1/remote_write",
    ],
)
def test_a_url_that_cannot_be_one_is_refused_before_anything_changes(url: str) -> None:
    (problem,) = problems(url)
    assert "take the workspace's remote write URL" in problem


def test_no_url_is_no_problem() -> None:
    assert not problems("")
    with pytest.raises(AnsibleFilterError, match="no region in"):
        observability.aps_region("https://prometheus.example.com")


def problems(url: str) -> list[str]:
    found = check_settings({"observability_remote_write_url": url}, ROOT / "collection/roles", DataLoader())
    return [str(problem) for problem in found.problems]


# --- programs ---


def releases(**checksums: Any) -> dict[str, Any]:
    url = "https://x/v{version}/node_exporter-{version}.{arch}.tar.gz"
    return {"node_exporter": {"url": url, "programs": ["a"], "checksums": checksums}}


def test_a_download_has_a_checksum_and_may_come_from_a_mirror() -> None:
    known = releases(arm64={"1.9.0": "ab", "1.8.0": "cd"}, amd64={})
    (found,) = observability.downloads(["node_exporter"], known, "arm64")
    assert found["url"] == "https://x/v1.9.0/node_exporter-1.9.0.arm64.tar.gz"
    assert found["checksum"] == "sha256:ab"
    assert found["programs"] == {"a": "a-1.9.0"}
    (found,) = observability.downloads(["node_exporter"], known, "arm64", "file:///fsx/programs/")
    assert found["url"] == "file:///fsx/programs/node_exporter-1.9.0.arm64.tar.gz"
    with pytest.raises(AnsibleFilterError, match="no checksum of node_exporter for amd64: .*_node_exporter_checksums"):
        observability.downloads(["node_exporter"], known, "amd64")
    assert observability.available(known, "arm64") == ["node_exporter"]
    assert observability.available(known, "amd64") == []


def test_the_roles_own_checksums_are_whole_and_for_both_architectures() -> None:
    defaults = yaml.safe_load((ROLE / "defaults/main.yml").read_text())
    maps = {name: value for name, value in defaults.items() if name.endswith("_checksums")}
    for name, by_architecture in maps.items():
        assert set(by_architecture) <= {"amd64", "arm64"}
        sums = [each for versions in by_architecture.values() for each in versions.values()]
        assert all(re.fullmatch("[0-9a-f]{64}", each) for each in sums), name
    for program in ("node_exporter", "prometheus", "otelcol_contrib"):
        assert all(maps[f"observability_{program}_checksums"][name] for name in ("amd64", "arm64"))


@pytest.mark.once
def test_programs_come_out_of_an_archive(role_tasks: Any, tmp_path: Path) -> None:
    archive = tmp_path / "a.tar.gz"
    with tarfile.open(archive, "w:gz") as made:
        member = tarfile.TarInfo("prometheus-3/promtool")
        member.size, member.mode = 4, 0o755
        made.addfile(member, io.BytesIO(b"tool"))
    download = {
        "name": "prometheus",
        "url": f"file://{archive}",
        "checksum": f"sha256:{hashlib.sha256(archive.read_bytes()).hexdigest()}",
        "programs": {"promtool": "promtool-3"},
    }
    (tmp_path / "opt/bin").mkdir(parents=True)
    tasks = tasks_of("observability", "program")
    settings = {"observability_dir": f"{tmp_path}/opt", "_observability_download": download}
    done = role_tasks("observability", tasks, **settings)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "opt/bin/promtool-3").read_bytes() == b"tool"
    assert os.access(tmp_path / "opt/bin/promtool-3", os.X_OK)
    assert [path.name for path in (tmp_path / "opt/bin").iterdir()] == ["promtool-3"]
    download["programs"] = {"other": "other-3"}
    done = role_tasks("observability", tasks, **settings)
    assert "has no other" in done.stdout, done.stdout + done.stderr


# --- units and the collector ---


@pytest.mark.parametrize(
    ("path", "unit"), [("/fsx", "fsx.mount"), ("/fsx/a_b.c", "fsx-a_b.c.mount"), ("/my-data/", r"my\x2ddata.mount")]
)
def test_a_mount_points_unit(path: str, unit: str) -> None:
    assert observability.mount_unit(path) == unit


#: Nodes to render the files of, with what differs from a compute node with a GPU and EFA.
NODES: dict[str, dict[str, Any]] = {
    "advanced": {"observability_advanced": True},
    "prometheus": {"observability_nccl_inspector": True},
    "otel": {"observability_nccl_inspector": True, "observability_collector": "otel"},
    "every_second": {"observability_scrape_seconds": 1},
    "controller": {"hyperpod_node_type": "controller"},
    "native_controller": {
        "hyperpod_node_type": "controller",
        "__observability_hooks": {"native": True, "port": 7817, "notes": [], "version": "25.11.0"},
    },
    "own_controller": {
        "hyperpod_node_type": "controller",
        "observability_slurm_exporter_checksums": {"amd64": {"1.8.4": "0" * 64}},
        "observability_prometheus_checksums": {"amd64": {"2.53.3": "0" * 64}},
    },
    "login": {"hyperpod_node_type": "login"},
    "login_otel": {"hyperpod_node_type": "login", "observability_collector": "otel"},
}


@pytest.fixture(scope="module")
def nodes(role_on_hosts: Callable[..., Hosts]) -> dict[str, Any]:
    """What the role writes on each of the nodes."""
    facts = {
        "hyperpod_node_type": "compute",
        "hyperpod_address": "10.0.0.5",
        "hyperpod_cluster_name": "c",
        "hyperpod_instance_group": "g",
        "hyperpod_instance_id": "i-1",
        "hyperpod_instance_name": "n1",
        "hyperpod_instance_types": ["ml.p5.48xlarge"],
        "hyperpod_file_systems": [{"mount_path": "/fsx"}, {"mount_path": "/my-data"}],
        "observability_remote_write_url": URL,
        "hyperpod_architecture": "amd64",
        "hyperpod_slurm_prefix": "/opt/slurm",
        "hyperpod_slurm_config_dir": "/opt/slurm/etc",
        "hyperpod_slurm_controller_port": 0,
        "__observability_driver": {"stat": {"exists": True}},
        "__observability_dcgm": {"stat": {"exists": False}},
        "__observability_rdma": {"stdout_lines": ["/sys/bus/pci/drivers/efa"]},
        "__observability_hooks": {"native": False, "notes": [], "version": "24.11.5"},
    }
    tasks = {task["name"]: task for task in tasks_of("observability", "configure")}
    config = tasks["Write the collector's configuration"]
    units = tasks["Write the units of exporters and collector"]
    text = "lookup('ansible.builtin.template', _src, convert_data=false)"
    shown = "{{ {'enabled': observability_enabled, 'no_slurm': _observability_no_slurm, 'units': {}, 'config': TEXT} }}"
    unit = "{{ shown | combine({'units': {item.unit: TEXT}}, recursive=true) }}"
    rendering = [
        {
            "ansible.builtin.set_fact": {"shown": value.replace("TEXT", text)},
            "vars": {"_src": task["ansible.builtin.template"]["src"]},
            "loop": task.get("loop", [0]),
        }
        for value, task in ((shown, config), (unit, units))
    ]
    done = role_on_hosts("observability", rendering, {name: {**facts, **given} for name, given in NODES.items()})
    assert set(done.shown) == set(NODES), done.output
    for found in done.shown.values():
        found["config"] = yaml.safe_load(found["config"])
        found["commands"] = {unit: command(found["units"][unit]) for unit in sorted(found["units"])}
    return done.shown


def command(unit: str) -> list[str]:
    """The words of a unit's ExecStart, as systemd joins its lines."""
    (line,) = re.findall(r"^ExecStart=(.*)$", unit.replace("\\\n", " "), re.MULTILINE)
    return str(line).split()


@pytest.mark.once
def test_a_compute_node_has_all_exporters(nodes: dict[str, Any]) -> None:
    found = nodes["advanced"]
    assert found["enabled"] is True
    commands = found["commands"]
    names = ("dcgm-exporter", "efa-exporter", "metrics-agent", "node-exporter")
    assert list(commands) == [f"hyperpod-{name}" for name in names]
    sets = [word.rpartition("/")[2] for word in commands["hyperpod-dcgm-exporter"] if word.endswith(".csv")]
    assert sets == ["dcgm-advanced.csv", "dcgm-basic.csv"]
    assert "/opt/hyperpod-observability/bin/dcgm-exporter-4.8.2-1" in commands["hyperpod-dcgm-exporter"]
    assert commands["hyperpod-metrics-agent"][:2] == ["/opt/hyperpod-observability/bin/prometheus-3.13.1", "--agent"]
    assert "--collector.tcpstat" in commands["hyperpod-node-exporter"]
    assert "Wants=fsx.mount my\\x2ddata.mount\n" in found["units"]["hyperpod-node-exporter"]
    config = found["config"]
    assert config["global"]["external_labels"] == {
        "cluster": "c", "instance_group": "g", "instance_id": "i-1", "node": "n1", "node_type": "compute"
    }  # fmt: skip
    assert [each["job_name"] for each in config["scrape_configs"]] == ["node", "efa", "dcgm", "collector"]
    for job, port in zip(config["scrape_configs"], (9100, 9109, 9400, 9095), strict=True):
        assert job["static_configs"] == [{"targets": [f"127.0.0.1:{port}"], "labels": {"instance": "n1"}}]
        assert (job["scrape_interval"], job["scrape_timeout"]) == ("15s", "10s")
    (write,) = config["remote_write"]
    assert (write["url"], write["sigv4"]) == (URL, {"region": "us-west-2"})


@pytest.mark.once
@pytest.mark.parametrize("collector", ["prometheus", "otel"])
def test_units_are_what_systemd_understands(nodes: dict[str, Any], collector: str) -> None:
    found = nodes[collector]
    for name, text in found["units"].items():
        sections = [line for line in text.splitlines() if line.startswith("[")]
        assert sections == ["[Unit]", "[Service]", "[Install]"], name
        for line in text.replace("\\\n", " ").splitlines():
            assert re.fullmatch(r"|#.*|\[\w+\]|[A-Z]\w+=.+", line), (name, line)
        assert "User=hyperpod-metrics" in text
    node = found["commands"]["hyperpod-node-exporter"]
    watched = [word for word in node if "unit-include" in word]
    assert watched == [r"--collector.systemd.unit-include=^(hyperpod-.+|munge|sackd|slurm.+)\\.service$$"]
    assert "--collector.textfile.directory=/var/lib/hyperpod-observability/nccl" in node


@pytest.mark.once
def test_a_scrape_ends_before_the_next_one(nodes: dict[str, Any]) -> None:
    found = nodes["every_second"]
    assert {each["scrape_timeout"] for each in found["config"]["scrape_configs"]} == {"1s"}


@pytest.mark.once
def test_a_controller_asks_slurmctld_or_an_exporter_or_says_what_is_missing(nodes: dict[str, Any]) -> None:
    found = nodes["controller"]
    assert list(found["commands"]) == ["hyperpod-metrics-agent", "hyperpod-node-exporter"]
    assert found["no_slurm"] is True
    found = nodes["native_controller"]
    jobs = {each["job_name"]: each for each in found["config"]["scrape_configs"]}
    assert jobs["slurm-nodes"]["metrics_path"] == "/metrics/nodes"
    assert jobs["slurm-nodes"]["static_configs"][0]["targets"] == ["10.0.0.5:7817"]
    assert jobs["slurm-nodes"]["scrape_interval"] == "60s"
    assert found["no_slurm"] is False
    found = nodes["own_controller"]
    assert found["commands"]["hyperpod-slurm-exporter"][0].endswith("/slurm_exporter-1.8.4")
    assert found["commands"]["hyperpod-metrics-agent"][1] == "--enable-feature=agent"
    assert found["no_slurm"] is False


def test_each_exporter_and_slurmctld_is_asked_where_it_serves() -> None:
    exporters = [{"job": "node", "unit": "u", "port": 9100, "seconds": 15}]
    found = observability.endpoints(exporters, "10.0.0.5:6817", ["jobs", "nodes"])
    urls = ["http://127.0.0.1:9100/metrics", "http://10.0.0.5:6817/metrics/jobs", "http://10.0.0.5:6817/metrics/nodes"]
    assert [each["url"] for each in found] == urls
    assert [each["unit"] for each in found] == ["u", "slurmctld", "slurmctld"]


@pytest.mark.once
def test_the_other_collector_does_the_same(nodes: dict[str, Any]) -> None:
    agent = nodes["login"]["config"]
    found = nodes["login_otel"]
    assert list(found["commands"]) == ["hyperpod-node-exporter", "hyperpod-otel-collector"]
    assert found["commands"]["hyperpod-otel-collector"][0].endswith("/otelcol-contrib-0.157.0")
    config = found["config"]
    assert config["receivers"]["prometheus"]["config"]["scrape_configs"] == agent["scrape_configs"]
    assert config["extensions"]["sigv4auth"] == {"region": "us-west-2", "service": "aps"}
    exporter = config["exporters"]["prometheusremotewrite"]
    assert (exporter["endpoint"], exporter["external_labels"]) == (URL, agent["global"]["external_labels"])
    assert exporter["auth"]["authenticator"] in config["service"]["extensions"]
    assert exporter["wal"]["directory"] == "/var/lib/hyperpod-otel-collector"


@pytest.mark.parametrize(("devices", "drivers"), [((), 0), (("efa", "mlx5_core"), 2)])
def test_nodes_with_and_without_rdma_devices(tmp_path: Path, devices: tuple[str, ...], drivers: int) -> None:
    for number, driver in enumerate(devices):
        (tmp_path / "drivers" / driver).mkdir(parents=True)
        (tmp_path / f"infiniband/rdma{number}/device").mkdir(parents=True)
        (tmp_path / f"infiniband/rdma{number}/device/driver").symlink_to(tmp_path / "drivers" / driver)
    tasks = yaml.safe_load((ROLE / "tasks/discover.yml").read_text())
    (task,) = (task for task in tasks if task["name"] == "Get the drivers of RDMA devices")
    shell = task["ansible.builtin.shell"]["cmd"].replace(
        "{{ observability_infiniband_dir | quote }}", str(tmp_path / "infiniband")
    )
    done = subprocess.run(["/bin/sh", "-c", shell], capture_output=True, text=True, timeout=20, check=True)
    assert len(done.stdout.splitlines()) == drivers


# --- does it deliver? ---


def reading(sent: float, failed: float = 0, dropped: float = 0) -> str:
    return f"""
# TYPE prometheus_remote_storage_samples_failed_total counter
prometheus_remote_storage_queue_highest_sent_timestamp_seconds{{remote_name="a",url="https://x"}} {sent}
prometheus_remote_storage_samples_failed_total{{remote_name="a"}} {failed}
prometheus_remote_storage_samples_dropped_total{{reason="too_old"}} {dropped}
prometheus_remote_storage_samples_dropped_total{{reason="other"}} 0
"""


def test_an_agent_that_has_lately_delivered_all_works() -> None:
    assert metrics.Delivery("prometheus", 60).works(reading(1000), 1030)
    assert not metrics.Delivery("prometheus", 60).works(reading(1000), 1100), "long ago"
    assert not metrics.Delivery("prometheus", 60).works("", 1100), "never"


def test_after_a_loss_the_next_delivery_decides() -> None:
    delivery = metrics.Delivery("prometheus", 60)
    assert not delivery.works(reading(1000, failed=5), 1010)
    assert not delivery.works(reading(1010, failed=9), 1010), "it still loses"
    assert delivery.losing(reading(1010, failed=9)) == 4
    assert not metrics.Delivery("prometheus", 60).works(reading(1000, dropped=1), 1010)
    assert delivery.works(reading(1020, failed=5), 1021)


def test_the_other_collector_has_counters() -> None:
    delivery = metrics.Delivery("otel", 60)
    sent = 'otelcol_exporter_sent_metric_points_total{exporter="prometheusremotewrite"} '
    assert not delivery.works(sent + "0", 0)
    assert delivery.works(sent + "7", 0)
    failed = "otelcol_exporter_send_failed_metric_points_total 3"
    assert not delivery.works(f"{sent}9\n{failed}", 0)


def test_a_removal_that_ended_before_systemd_was_reloaded_is_completed(role_tasks: Any, tmp_path: Path) -> None:
    program, calls = tmp_path / "fake/systemctl", tmp_path / "calls"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\necho "$@" >>{calls}\n[ "$1" != show ] || printf "no\\n\\nyes\\n"\n')
    program.chmod(0o755)
    environment = {"PATH": f"{program.parent}:{os.defpath}"}
    tasks = [{"name": "Remove", "block": tasks_of("observability", "absent"), "environment": environment}]
    done = role_tasks("observability", tasks, _observability_kept=["hyperpod-node-exporter"])
    assert done.returncode == 0, done.stdout
    asked, *rest = calls.read_text().splitlines()
    assert asked.startswith("show --property=NeedDaemonReload --value hyperpod-")
    assert "hyperpod-efa-exporter.service" in asked
    assert "hyperpod-node-exporter" not in asked
    assert rest == ["daemon-reload"]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (r'err="server returned HTTP status 403 Forbidden: {\"message\":\"x\"}"', "HTTP status 403 Forbidden"),
        (
            "error: Permanent error: remote write returned HTTP status 404 Not Found; err = <nil>",
            "HTTP status 404 Not Found",
        ),
        ('err="server returned HTTP status 429 Too Many Requests"', ""),
        ('err="server returned HTTP status 500 Internal Server Error"', ""),
    ],
)
def test_a_refusal_for_good_is_named_without_waiting(monkeypatch: pytest.MonkeyPatch, line: str, said: str) -> None:
    texts = iter([reading(1000), *(reading(1000 + n, failed=n) for n in range(1, 9))])
    monkeypatch.setattr(metrics_verify, "answer", lambda *_: next(texts))
    monkeypatch.setattr(metrics_verify, "journal", lambda *_: line)
    monkeypatch.setattr(metrics_verify, "POLL_SECONDS", 0)
    params = {"collector": "prometheus", "unit": "agent", "url": "", "recent_seconds": 60, "wait_seconds": 90}
    if said:
        with pytest.raises(Fault, match=f"receiver of agent refuses samples: {said}; check"):
            metrics_verify.deliver(params, time.monotonic() + 90)
        assert len(list(texts)) == 6, "one loss may be followed by a delivery"
    else:
        with pytest.raises(StopIteration):  # it waits
            metrics_verify.deliver(params, time.monotonic() + 90)


# --- Slurm ---


@pytest.mark.parametrize(
    ("version", "conf", "settings", "note"),
    [
        ((24, 11), "", {"Prolog": SCRIPT, "Epilog": SCRIPT}, ""),
        ((24, 5), "Prolog=/opt/slurm/etc/scripts/prolog.sh\n", {"Prolog": SCRIPT, "Epilog": SCRIPT}, ""),
        ((22, 5), "", {}, "Slurm 22.05 sends no prolog"),
        (
            (25, 11),
            "",
            {"MetricsType": "metrics/openmetrics", "Prolog": SCRIPT, "Epilog": SCRIPT},
            "",
        ),
        ((25, 11), "PrivateData=jobs\n", {"Prolog": SCRIPT, "Epilog": SCRIPT}, "PrivateData"),
    ],
)
def test_hooks_are_added_to_those_that_are_there(
    tmp_path: Path, version: tuple[int, int], conf: str, settings: dict[str, str], note: str
) -> None:
    (tmp_path / "slurm.conf").write_text("ClusterName=c\nInclude accounting.conf\n")
    (tmp_path / "accounting.conf").write_text(
        accounting.with_block(conf, "observability", {"Prolog": "old.sh"}, ["Prolog"])
    )
    there = accounting.all_parameters(str(tmp_path / "slurm.conf"), "observability")
    found = hooks.decide(version, there, SCRIPT, JOB_DIR, jobs=True, tasks=False)
    assert found["settings"] == settings
    assert note in " ".join(found["notes"])
    assert bool(note) == bool(found["notes"])


def test_a_prolog_that_maps_jobs_already_is_enough(tmp_path: Path) -> None:
    """The image has such scripts in prolog.d; both together would count each job twice."""
    (tmp_path / "700_dcgm_job_map_register.sh").write_text(f"DIR={JOB_DIR}\n")
    there = [("Prolog", f"{tmp_path}/*")]
    found = hooks.decide((24, 11), there, SCRIPT, JOB_DIR, jobs=True, tasks=False)
    assert found == {"settings": {}, "native": False, "notes": []}


def test_a_task_prolog_that_is_there_stays() -> None:
    found = hooks.decide((24, 11), [("TaskProlog", "/x.sh")], SCRIPT, JOB_DIR, jobs=True, tasks=True)
    assert found["settings"] == {"Prolog": SCRIPT, "Epilog": SCRIPT}
    assert "TaskProlog=/x.sh" in found["notes"][0]
    found = hooks.decide((24, 11), [], SCRIPT, JOB_DIR, jobs=False, tasks=True)
    assert found["settings"]["TaskProlog"] == f"/run/slurm/conf/{SCRIPT}"
    assert found["settings"]["Prolog"] == SCRIPT, "or nodes would not have the script"


def test_settings_of_which_there_may_be_several_stand_beside_those_of_others() -> None:
    before = "Prolog=/theirs.sh\nMetricsType=x\n"
    after = accounting.with_block(before, "observability", {"Prolog": SCRIPT, "MetricsType": "y"}, ["Prolog"])
    assert after.startswith("Prolog=/theirs.sh\n# hyperpod-lifecycle: begin")
    assert "MetricsType=x" not in after
    assert accounting.with_block(after, "observability", {}) == "Prolog=/theirs.sh\n"


def test_slurmctld_shows_several_with_numbers() -> None:
    shown = f"Prolog[0]               = /theirs.sh\nProlog[1]               = {SCRIPT}\nTaskProlog = (null)\n"
    assert accounting.differing({"Prolog": SCRIPT}, shown) == []
    assert accounting.differing({"Prolog": "new.sh", "TaskProlog": "x"}, shown) == ["Prolog", "TaskProlog"]


@pytest.fixture
def hook(tmp_path: Path) -> Any:
    """The script of Slurm's hooks, rendered, and run in a context of Slurm's."""
    from jinja2 import Environment

    variables = {
        "observability_job_dir": str(tmp_path / "jobs"),
        "_observability_nccl_dir": str(tmp_path / "nccl"),
        "observability_nccl_inspector": True,
        "observability_nccl_plugin": str(tmp_path / "plugin.so"),
        "observability_nccl_seconds": 30,
    }
    template = (ROLE / "templates/slurm-hook.sh.j2").read_text()
    script = tmp_path / "hook.sh"
    # As Ansible does it: the newline after a block goes.
    script.write_text(Environment(trim_blocks=True).from_string(template).render(variables))

    def run(context: str, **environment: str) -> str:
        done = subprocess.run(
            ["sh", str(script)],
            env={"PATH": "/usr/bin:/bin", "SLURM_SCRIPT_CONTEXT": context, **environment},
            capture_output=True,
            text=True,
            timeout=20,
            check=True,
        )
        assert done.stderr == ""
        return done.stdout

    return run


def test_prolog_and_epilog_say_which_job_has_which_gpu(tmp_path: Path, hook: Any) -> None:
    def jobs() -> dict[str, list[str]]:
        return {file.name: file.read_text().split() for file in sorted((tmp_path / "jobs").iterdir())}

    hook("prolog_slurmd", SLURM_JOB_ID="7")
    assert not (tmp_path / "jobs").exists(), "a job without GPUs"
    for _twice in range(2):
        hook("prolog_slurmd", SLURM_JOB_ID="7", SLURM_JOB_GPUS="0,1")
    hook("prolog_slurmd", SLURM_JOB_ID="77", SLURM_JOB_GPUS="1")
    assert jobs() == {"0": ["7"], "1": ["7", "77"]}
    hook("epilog_slurmd", SLURM_JOB_ID="7", SLURM_JOB_UID="0")
    assert jobs() == {"1": ["77"]}


def test_a_hook_never_fails(tmp_path: Path, hook: Any) -> None:
    (tmp_path / "jobs").write_text("in the way")
    for context in ("epilog_slurmd", "prolog_task", "anything"):
        hook(context, SLURM_JOB_ID="7", SLURM_JOB_GPUS="0", SLURM_JOB_UID="0")


def test_tasks_load_the_inspector_where_it_is(tmp_path: Path, hook: Any) -> None:
    assert hook("prolog_task") == ""
    (tmp_path / "plugin.so").touch()
    (tmp_path / "nccl").mkdir()
    said = hook("prolog_task").splitlines()
    assert all(line.startswith("export NCCL_") for line in said)
    assert f"export NCCL_INSPECTOR_DUMP_DIR={tmp_path}/nccl" in said
    assert "export NCCL_INSPECTOR_DUMP_THREAD_INTERVAL_MICROSECONDS=30000000" in said


# --- exporters ---


def test_the_exporter_starts_with_the_first_set_that_it_can_serve(tmp_path: Path) -> None:
    program = tmp_path / "exporter"
    program.write_text('#!/bin/sh\necho "$@"\ncase $* in *advanced*) exit 3 ;; esac\nexit 0\n')
    program.chmod(0o755)
    command = [
        "sh",
        str(ROLE / "files/dcgm-start.sh"),
        "advanced.csv",
        "basic.csv",
        "--",
        str(program),
        "--address",
        "x",
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
    assert done.stdout.splitlines() == ["--address x --collectors advanced.csv", "--address x --collectors basic.csv"]
    assert "exited with 3" in done.stderr


def test_both_sets_are_fields_of_dcgm_and_have_none_twice() -> None:
    sets = [(ROLE / f"files/dcgm-{name}.csv").read_text().splitlines() for name in ("basic", "advanced")]
    lines = [line for each in sets for line in each if not line.startswith("#")]
    names = [line.split(",")[0] for line in lines]
    assert len(names) == len(set(names))
    assert all(re.fullmatch(r"DCGM_FI_[A-Z0-9_]+, (gauge|counter|label), .+", line) for line in lines)
    assert not any("_PROF_" in line for line in sets[0]), "the basic set needs no profiling"


def test_efa_counters_are_read_where_efa_is(tmp_path: Path) -> None:
    spec = importlib.util.spec_from_file_location("efa_exporter", ROLE / "files/efa_exporter.py")
    assert spec
    assert spec.loader
    exporter = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(exporter)
    assert exporter.metrics(tmp_path / "absent") == ""
    for device, driver in (("rdmap0s6", "efa"), ("mlx5_0", "mlx5_core")):
        counters = tmp_path / "class" / device / "ports/1/hw_counters"
        counters.mkdir(parents=True)
        (tmp_path / driver).mkdir()
        (tmp_path / "class" / device / "device").mkdir()
        (tmp_path / "class" / device / "device/driver").symlink_to(tmp_path / driver)
        (counters / "tx_bytes").write_text("4096\n")
        (counters / "lifespan").write_text("12 ms\n")
    assert exporter.metrics(tmp_path / "class") == (
        'node_amazonefa_info{device="rdmap0s6"} 1\n'
        "# TYPE node_amazonefa_tx_bytes counter\n"
        'node_amazonefa_tx_bytes{device="rdmap0s6",port="1"} 4096\n'
    )
