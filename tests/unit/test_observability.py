# SPDX-License-Identifier: Apache-2.0
"""What is downloaded, what collectors are told, and what Slurm's hooks do; tests/e2e has the real ones."""

from __future__ import annotations

import importlib.util
import io
import json
import re
import subprocess
import tarfile
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible.errors import AnsibleFilterError
from ansible.parsing.dataloader import DataLoader
from ansible_collections.hyperpod.lifecycle.plugins.filter import observability
from ansible_collections.hyperpod.lifecycle.plugins.module_utils import accounting, hooks, metrics
from ansible_collections.hyperpod.lifecycle.plugins.modules import archive_program
from conftest import ROOT

from hyperpod_lifecycle.values import wrong_values

ROLE = ROOT / "collection/roles/observability"
WORKSPACE = "workspaces/ws-01234567-89ab-cdef-0123-456789abcdef/api/v1/remote_write"
URL = f"https://aps-workspaces.us-west-2.amazonaws.com/{WORKSPACE}"
LABELS = {"cluster": "c", "node": "n1"}
TARGETS = [
    {"job": "node", "unit": "u", "address": "127.0.0.1:9100", "seconds": 15},
    {"job": "slurm-jobs", "unit": "slurmctld", "address": "10.0.0.5:6817", "path": "/metrics/jobs", "seconds": 60},
]
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
        "https://aps-workspaces.<region>.amazonaws.com/" + WORKSPACE,
        "https://user:pass@aps-workspaces.us-west-2.amazonaws.com/" + WORKSPACE,
    ],
)
def test_a_url_that_cannot_be_one_is_refused_before_anything_changes(url: str) -> None:
    (problem,) = problems(url)
    assert "take the workspace's remote write URL" in problem


def test_no_url_is_no_problem() -> None:
    assert not problems("")
    with pytest.raises(AnsibleFilterError, match="names no region"):
        observability.aps_region("https://prometheus.example.com")


def problems(url: str) -> list[str]:
    found = wrong_values({"observability_remote_write_url": url}, ROOT / "collection/roles", DataLoader())
    return [str(problem) for problem in found]


# --- programs ---


SOURCES = {"node_exporter": {"url": "https://x/v{version}/node_exporter-{version}.{arch}.tar.gz", "programs": ["a"]}}


def test_a_download_has_a_checksum_and_may_come_from_a_mirror() -> None:
    sums = {"aarch64": {"other-1": "0", "node_exporter-1.9.0": "ab", "node_exporter-1.8.0": "cd"}}
    (found,) = observability.downloads(["node_exporter"], SOURCES, sums, "aarch64")
    assert found["url"] == "https://x/v1.9.0/node_exporter-1.9.0.arm64.tar.gz"
    assert found["checksum"] == "sha256:ab"
    assert found["programs"] == {"a": "a-1.9.0"}
    (found,) = observability.downloads(["node_exporter"], SOURCES, sums, "aarch64", "file:///fsx/programs/")
    assert found["url"] == "file:///fsx/programs/node_exporter-1.9.0.arm64.tar.gz"
    with pytest.raises(AnsibleFilterError, match="no checksum of node_exporter for x86_64"):
        observability.downloads(["node_exporter"], SOURCES, sums, "x86_64")


def test_the_roles_own_checksums_are_whole_and_for_both_machines() -> None:
    sums = yaml.safe_load((ROLE / "defaults/main.yml").read_text())["observability_checksums"]
    assert all(re.fullmatch("[0-9a-f]{64}", each) for machine in sums.values() for each in machine.values())
    for machine in observability.ARCHITECTURES:
        for name in ("node_exporter", "prometheus", "otelcol-contrib"):
            assert observability.versions(sums, machine, name)


def test_programs_come_out_of_an_archive_whole(tmp_path: Path) -> None:
    archive = tmp_path / "a.tar.gz"
    with tarfile.open(archive, "w:gz") as made:
        member = tarfile.TarInfo("prometheus-3/promtool")
        member.size = 4
        made.addfile(member, io.BytesIO(b"tool"))
    with archive_program.opened(str(archive)) as members:
        (member,) = members
        archive_program.put(members.extractfile(member), tmp_path / "bin/promtool-3")
    assert (tmp_path / "bin/promtool-3").read_bytes() == b"tool"
    assert (tmp_path / "bin/promtool-3").stat().st_mode & 0o777 == 0o755
    assert [path.name for path in (tmp_path / "bin").iterdir()] == ["promtool-3"]


# --- collectors ---


def test_the_agent_reads_this_node_and_signs_what_it_writes() -> None:
    config = observability.prometheus_agent(TARGETS, URL, LABELS)
    assert config["global"]["external_labels"] == LABELS
    (write,) = config["remote_write"]
    assert (write["url"], write["sigv4"]) == (URL, {"region": "us-west-2"})
    node, slurm = config["scrape_configs"]
    assert node["static_configs"] == [{"targets": ["127.0.0.1:9100"], "labels": {"instance": "n1"}}]
    assert "metrics_path" not in node
    assert (slurm["metrics_path"], slurm["scrape_interval"]) == ("/metrics/jobs", "60s")


@pytest.mark.parametrize(("seconds", "timeout"), [(1, "1s"), (10, "10s"), (60, "10s")])
def test_a_scrape_ends_before_the_next_one(seconds: int, timeout: str) -> None:
    (config,) = observability.scrape_configs([{**TARGETS[0], "seconds": seconds}], "n1")
    assert config["scrape_timeout"] == timeout


def test_the_other_collector_does_the_same() -> None:
    config = observability.otel_collector(TARGETS, URL, LABELS, "/var/lib/wal", "127.0.0.1:9095")
    agent = observability.prometheus_agent(TARGETS, URL, LABELS)
    assert config["receivers"]["prometheus"]["config"]["scrape_configs"] == agent["scrape_configs"]
    assert config["extensions"]["sigv4auth"] == {"region": "us-west-2", "service": "aps"}
    exporter = config["exporters"]["prometheusremotewrite"]
    assert (exporter["endpoint"], exporter["external_labels"]) == (URL, LABELS)
    assert exporter["auth"]["authenticator"] in config["service"]["extensions"]
    assert exporter["wal"]["directory"] == "/var/lib/wal"


def test_slurmctld_is_asked_for_each_kind_of_metrics() -> None:
    targets = observability.slurmctld_targets(["jobs", "nodes"], "10.0.0.5:6817", 60)
    urls = [each["url"] for each in observability.endpoints(targets)]
    assert urls == ["http://10.0.0.5:6817/metrics/jobs", "http://10.0.0.5:6817/metrics/nodes"]


@pytest.mark.parametrize(
    ("path", "unit"), [("/fsx", "fsx.mount"), ("/fsx/a_b.c", "fsx-a_b.c.mount"), ("/my-data/", r"my\x2ddata.mount")]
)
def test_a_mount_points_unit(path: str, unit: str) -> None:
    assert observability.mount_unit(path) == unit


def rendered(ansible: Any, tmp_path: Path, **settings: Any) -> dict[str, Any]:
    """The role's variables on a compute node with a GPU and EFA, or on another one, as Ansible renders them."""
    facts = {
        "hyperpod_node_type": "compute",
        "hyperpod_address": "10.0.0.5",
        "hyperpod_cluster_name": "c",
        "hyperpod_instance_group": "g",
        "hyperpod_instance_id": "i-1",
        "hyperpod_instance_name": "n1",
        "hyperpod_instance_types": ["ml.p5.48xlarge"],
        "hyperpod_file_systems": [{"mount_path": "/fsx"}],
        "observability_remote_write_url": URL,
        "__observability_machine": {"stdout": "x86_64"},
        "__observability_driver": {"stat": {"exists": True}},
        "__observability_dcgm": {"stat": {"exists": False}},
        "__observability_rdma": {"stdout_lines": ["/sys/bus/pci/drivers/efa"]},
        "__observability_hooks": {"native": False, "notes": [], "version": "24.11.5"},
    }
    names = (
        "observability_enabled",
        "_observability_units",
        "_observability_collector_config",
        "_observability_no_slurm",
    )
    shown = "{{ {" + ", ".join(f"'{name}': {name}" for name in names) + "} | to_json }}"
    play = {
        "hosts": "localhost",
        "gather_facts": False,
        "vars_files": [str(ROLE / "defaults/main.yml"), str(ROLE / "vars/main.yml")],
        "tasks": [{"ansible.builtin.copy": {"content": shown, "dest": str(tmp_path / "shown"), "mode": "0644"}}],
    }
    (tmp_path / "play.yml").write_text(yaml.safe_dump([play]))
    (tmp_path / "facts.json").write_text(json.dumps({**facts, **settings}))
    done = ansible("ansible-playbook", "-c", "local", "-e", f"@{tmp_path}/facts.json", tmp_path / "play.yml")
    assert done.returncode == 0, done.stdout + done.stderr
    found: dict[str, Any] = json.loads((tmp_path / "shown").read_text())
    return found


def test_a_compute_node_has_all_exporters(ansible: Any, tmp_path: Path) -> None:
    found = rendered(ansible, tmp_path, observability_advanced=True)
    assert found["observability_enabled"] is True
    commands = {unit["job"]: unit["command"] for unit in found["_observability_units"]}
    assert list(commands) == ["node", "efa", "dcgm", "collector"]
    sets = [str(word).rpartition("/")[2] for word in commands["dcgm"] if str(word).endswith(".csv")]
    assert sets == ["dcgm-advanced.csv", "dcgm-basic.csv"]
    assert "/opt/hyperpod-observability/bin/dcgm-exporter-4.8.2-1" in commands["dcgm"]
    assert commands["collector"][:2] == ["/opt/hyperpod-observability/bin/prometheus-3.13.1", "--agent"]
    config = found["_observability_collector_config"]
    assert config["global"]["external_labels"] == {
        "cluster": "c", "instance_group": "g", "instance_id": "i-1", "node": "n1", "node_type": "compute"
    }  # fmt: skip
    assert [each["scrape_interval"] for each in config["scrape_configs"]] == ["15s"] * 4


def test_a_controller_asks_slurmctld_or_an_exporter_or_says_what_is_missing(ansible: Any, tmp_path: Path) -> None:
    here = {"hyperpod_node_type": "controller"}
    found = rendered(ansible, tmp_path, **here)
    assert [unit["job"] for unit in found["_observability_units"]] == ["node", "collector"]
    assert found["_observability_no_slurm"] is True
    native = {"native": True, "notes": [], "version": "25.11.0"}
    found = rendered(ansible, tmp_path, **here, __observability_hooks=native)
    jobs = {each["job_name"]: each for each in found["_observability_collector_config"]["scrape_configs"]}
    assert jobs["slurm-nodes"]["metrics_path"] == "/metrics/nodes"
    assert jobs["slurm-nodes"]["static_configs"][0]["targets"] == ["10.0.0.5:6817"]
    assert jobs["slurm-nodes"]["scrape_interval"] == "60s"
    assert found["_observability_no_slurm"] is False
    mine = {"x86_64": {"slurm_exporter-1.8.4": "0" * 64, "prometheus-2.53.3": "0" * 64}}
    found = rendered(ansible, tmp_path, **here, observability_more_checksums=mine)
    commands = {unit["job"]: unit["command"] for unit in found["_observability_units"]}
    assert commands["slurm"][0].endswith("/slurm_exporter-1.8.4")
    assert commands["collector"][1] == "--enable-feature=agent"
    assert found["_observability_no_slurm"] is False


def test_the_other_collector_has_its_own_unit(ansible: Any, tmp_path: Path) -> None:
    found = rendered(ansible, tmp_path, hyperpod_node_type="login", observability_collector="otel")
    units = {unit["unit"]: unit["command"][0] for unit in found["_observability_units"]}
    assert list(units) == ["hyperpod-node-exporter", "hyperpod-otel-collector"]
    assert units["hyperpod-otel-collector"].endswith("/otelcol-contrib-0.157.0")
    assert "prometheusremotewrite" in found["_observability_collector_config"]["exporters"]


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
    there = hooks.parameters(str(tmp_path / "slurm.conf"), "observability")
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
    assert "ended with 3" in done.stderr


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
