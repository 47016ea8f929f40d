#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""A fake of dcgm-exporter for the lab's GPUs, which are none: the same arguments, file of fields and job files.

With a file no_profiling beside it, it ends at once if it is asked for profiling, as some versions do without it.
"""

from __future__ import annotations

import argparse
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path


def fields(path):
    """Name, type and help of each field in the file of them."""
    lines = (line.split("#")[0].strip() for line in path.read_text().splitlines())
    return [[word.strip() for word in line.split(",", 2)] for line in lines if line]


def metrics(wanted, jobs):
    """A made-up value for each field and GPU, with the jobs that have it."""
    lines = []
    gpus = sorted(Path("/dev").glob("nvidia[0-9]*"))
    for number, (name, kind, text) in enumerate(wanted):
        if kind == "label":
            continue
        lines += [f"# HELP {name} {text}", f"# TYPE {name} {kind}"]
        for gpu in gpus:
            index = gpu.name[len("nvidia") :]
            labels = f'gpu="{index}",UUID="GPU-fake-{index}",device="{gpu.name}",modelName="fake"'
            file = Path(jobs, index) if jobs else Path("/nonexistent")
            for job in file.read_text().split() if file.is_file() else [""]:
                shown = f',hpc_job="{job}"' if job else ""
                value = 0 if "ERROR" in name or "FAILURE" in name else number
                lines.append(f"{name}{{{labels}{shown}}} {value}")
    return "".join(line + "\n" for line in lines)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--collectors", type=Path, required=True)
    parser.add_argument("--address", required=True)
    parser.add_argument("--collect-interval", type=int, required=True)
    parser.add_argument("--hpc-job-mapping-dir", required=True)
    options = parser.parse_args()
    wanted = fields(options.collectors)
    if Path(sys.argv[0]).with_name("no_profiling").exists() and any("_PROF_" in name for name, *_ in wanted):
        sys.exit("fake_dcgm: profiling is not supported")

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            body = metrics(wanted, options.hpc_job_mapping_dir).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args):
            pass

    host, _, port = options.address.rpartition(":")
    ThreadingHTTPServer((host, int(port)), Handler).serve_forever()


if __name__ == "__main__":
    main()
