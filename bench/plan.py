# SPDX-License-Identifier: Apache-2.0
"""Measure `plan` and the reading of the files on clusters of up to 10,000 nodes."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from hyperpod_lifecycle import cluster

ROOT = Path(__file__).resolve().parents[1]
PER_GROUP = 100
RUNS = 3


def write_cluster(folder: Path, nodes: int) -> list[str]:
    """Write both files for a controller and `nodes` compute nodes; answers the options that name them."""
    groups = [f"pod-{number}" for number in range(nodes // PER_GROUP)]

    def instance(group: str, number: int, address: str) -> dict[str, str]:
        return {
            "InstanceName": f"{group}-{number + 1}",
            "CustomerIpAddress": address,
            "InstanceId": f"i-{group}{number}",
        }

    members = [("brain", "ml.c5.xlarge", [instance("brain", 0, "10.255.0.5")])]
    members += [
        (group, "ml.p5.48xlarge", [instance(group, n, f"10.{at}.{n // 200}.{n % 200 + 10}") for n in range(PER_GROUP)])
        for at, group in enumerate(groups)
    ]
    config = {
        "ClusterConfig": {"ClusterName": "otter", "ClusterArn": "arn:aws:sagemaker:us-west-2:111122223333:cluster/q1"},
        "InstanceGroups": [{"Name": n, "InstanceType": t, "Instances": instances} for n, t, instances in members],
    }
    parameters = {
        "version": "1.0.0",
        "workload_manager": "slurm",
        "controller_group": "brain",
        "worker_groups": [{"instance_group_name": group, "partition_name": "train"} for group in groups],
    }
    files = folder / f"config-{nodes}.json", folder / f"parameters-{nodes}.json"
    for path, document in zip(files, (config, parameters), strict=True):
        path.write_text(json.dumps(document))
    return ["--resource-config", str(files[0]), "--provisioning-parameters", str(files[1])]


def best(work: Callable[[], object]) -> float:
    """Seconds of the fastest of a few runs."""
    times = []
    for _ in range(RUNS):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return min(times)


def command(*words: str) -> Callable[[], object]:
    return lambda: subprocess.run(words, check=True, stdout=subprocess.DEVNULL)


def reading(folder: Path, nodes: int) -> Callable[[], object]:
    _, config, _, parameters = write_cluster(folder, nodes)
    return lambda: cluster.load(Path(config), Path(parameters)).node_by_name("pod-3-7")


def main() -> None:
    binaries = Path(sys.executable).parent
    with tempfile.TemporaryDirectory() as folder:
        read = {nodes: best(reading(Path(folder), nodes)) for nodes in (1_000, 10_000)}
        base = best(command(str(binaries / "ansible-playbook"), "--version"))
        found = {}
        for nodes in (600, 10_000):
            files = write_cluster(Path(folder), nodes)
            plan = [str(binaries / "hyperpod-lifecycle"), "plan", "--node", "pod-3-7", "--json", *files]
            found[nodes] = best(command(*plan, "--inventory", str(ROOT / "inventory")))
    print(f"reading 10,000     / reading 1,000 nodes         {read[10_000] / read[1_000]:5.1f}")
    print(f"plan, 600 nodes    / ansible-playbook --version  {found[600] / base:5.1f}")
    print(f"plan, 10,000 nodes / ansible-playbook --version  {found[10_000] / base:5.1f}")
    print(f"plan, 10,000 nodes / plan, 600 nodes             {found[10_000] / found[600]:5.1f}")


if __name__ == "__main__":
    main()
