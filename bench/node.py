# SPDX-License-Identifier: Apache-2.0
"""What a run costs on a node of the lab, against a bare shell script, and what `on_create.sh` adds in front of it."""

from __future__ import annotations

import subprocess
import tempfile
import time
from pathlib import Path

from hyperpod_lab import upload
from hyperpod_lab.agent.request import from_create_cluster
from hyperpod_lab.image import Release
from hyperpod_lab.lab import Lab

ROOT = Path(__file__).resolve().parents[1]
NODE = "compute-nodes-1"
APPLY = "hyperpod-lifecycle apply --tags slurm"
RUNS = 5


def seconds(lab: Lab, command: str) -> float:
    """The fastest of a few runs of a shell command in the node, by the node's own clock."""
    timed = f"s=$(date +%s%N); {command} >/dev/null 2>&1 || exit 1; echo $(($(date +%s%N) - s))"
    return min(int(lab.exec(NODE, ["bash", "-c", timed], check=True).stdout) for _ in range(RUNS)) / 1e9


def first_task(lab: Lab) -> tuple[float, float]:
    """Seconds from the start of on_create.sh to the end of Ansible's first task, and to its own end."""
    container = lab.node(NODE).container
    command = ["podman", "exec", container, "env", "-i", "bash", "/tmp/src/on_create.sh", "--verbose"]
    start = time.perf_counter()
    first = None
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as run:
        assert run.stdout
        for line in run.stdout:
            if first is None and "platform" in line:
                first = time.perf_counter() - start
    assert run.returncode == 0, "on_create.sh failed"
    assert first is not None, "no task was named"
    return first, time.perf_counter() - start


def main() -> None:
    shape = from_create_cluster(ROOT / "lab/example/create_cluster.json", None, Release.TRIXIE)
    shape = shape.resized({"compute-nodes": 1, "login-group": 0})
    lab = Lab("bench")
    lab.down()
    with tempfile.TemporaryDirectory() as folder:
        try:
            bundle = upload.build(shape, Path(folder, "src"), print)
            for result in lab.up(shape, upload_folder=bundle):
                assert result.exit_code == 0, result.summary
            lab.put(NODE, bundle, "/tmp/src")
            lab.put(NODE, ROOT / "bench/checks.sh", "/tmp/checks.sh")

            floor = seconds(lab, "bash /tmp/checks.sh")
            warm = seconds(lab, APPLY)
            local = seconds(lab, f"{APPLY} --connection local")
            print(f"converged apply --tags slurm / the same checks in bare shell   {warm / floor:6.1f}")
            print(f"  with --connection local    / the same checks in bare shell   {local / floor:6.1f}")

            lab.exec(NODE, ["rm", "-rf", "/opt/hyperpod-lifecycle"], check=True)
            cold_first, cold_all = first_task(lab)
            warm_first, warm_all = first_task(lab)
            print(f"on_create.sh to its first task, cold / warm                    {cold_first / warm_first:6.1f}")
            print(f"on_create.sh to its end, cold / warm                           {cold_all / warm_all:6.1f}")
            print(f"to the first task: cold {cold_first:.1f} s, warm {warm_first:.1f} s (of this machine)")
            size = lab.exec(NODE, ["du", "-sm", "/opt/hyperpod-lifecycle"], check=True).stdout.split()[0]
            print(f"the environment on disk, byte code included: {size} MB")
        finally:
            lab.down()


if __name__ == "__main__":
    main()
