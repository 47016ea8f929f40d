#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""A fake of slurm_exporter, whose releases cannot be had everywhere: the same arguments, and some of its metrics.

The numbers are real; Slurm's own commands are asked.
"""

from __future__ import annotations

import argparse
import collections
import subprocess
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

JOBS = ("pending", "running", "suspended", "completing", "failed", "timeout")
NODES = {"alloc": "allocated", "idle": "idle", "mix": "mixed", "down": "down", "drain": "drained", "fail": "fail"}


def metrics(folder):
    def ask(*words):
        done = subprocess.run(
            [f"{folder}/{words[0]}", *words[1:]], capture_output=True, text=True, timeout=10, check=True
        )
        return [line.split("|") for line in done.stdout.splitlines()]

    jobs = collections.Counter((partition, state.lower()) for partition, state in ask("squeue", "-h", "-o", "%P|%T"))
    nodes = collections.Counter()
    for partition, count, state in ask("sinfo", "-h", "-o", "%R|%D|%T"):
        nodes[partition, state.rstrip("*~#!%$@^-")] += int(count)
    partitions = sorted({partition for partition, _ in nodes})
    lines = [f"slurm_jobs_{state} {sum(n for (_, s), n in jobs.items() if s == state)}" for state in JOBS]
    for name, state in NODES.items():
        lines += [f'slurm_nodes_{name}{{partition="{each}"}} {nodes[each, state]}' for each in partitions]
    for state in JOBS[:2]:
        lines += [f'slurm_partition_jobs_{state}{{partition="{each}"}} {jobs[each, state]}' for each in partitions]
    return "".join(line + "\n" for line in lines)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--web.listen-address", dest="address", required=True)
    parser.add_argument("--slurm.bin-path", dest="folder", required=True)
    options = parser.parse_args()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            try:
                status, body = 200, metrics(options.folder).encode()
            except (OSError, subprocess.SubprocessError) as error:
                status, body = 500, str(error).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args):
            pass

    host, _, port = options.address.rpartition(":")
    ThreadingHTTPServer((host, int(port)), Handler).serve_forever()


if __name__ == "__main__":
    main()
