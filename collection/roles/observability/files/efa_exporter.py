# SPDX-License-Identifier: Apache-2.0
"""Export counters of EFA devices, with the names of Amazon's own exporter. Uses the standard library only.

Usage: efa_exporter.py PORT FOLDER
"""

from __future__ import annotations

import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path


def devices(folder):
    """Return the RDMA devices that use the EFA driver."""
    found = sorted(folder.iterdir()) if folder.is_dir() else []
    return [path for path in found if (path / "device/driver").resolve().name == "efa"]


def samples(folder):
    """Yield name, device, port and value of each counter."""
    for device in devices(folder):
        for file in sorted(device.glob("ports/*/hw_counters/*")):
            try:
                value = int(file.read_text(encoding="ascii"))
            except (OSError, ValueError):  # lifespan is not a counter, and a device may disappear
                continue
            yield file.name, device.name, file.parts[-3], value


def metrics(folder):
    """Return all counters in Prometheus' text format."""
    by_name = {}
    for name, device, port, value in samples(folder):
        by_name.setdefault(name, []).append((device, port, value))
    lines = []
    for device in devices(folder):
        lines.append(f'node_amazonefa_info{{device="{device.name}"}} 1')
    for name, values in sorted(by_name.items()):
        lines.append(f"# TYPE node_amazonefa_{name} counter")
        lines += [f'node_amazonefa_{name}{{device="{device}",port="{port}"}} {value}' for device, port, value in values]
    return "".join(line + "\n" for line in lines)


def serve(port, folder):
    """Serve metrics on 127.0.0.1 and never return."""

    class Handler(BaseHTTPRequestHandler):
        """Answers every path with the metrics."""

        def do_GET(self):
            """Read the counters and send them."""
            body = metrics(folder).encode()
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args):
            """Do not log requests."""

    ThreadingHTTPServer(("127.0.0.1", port), Handler).serve_forever()


if __name__ == "__main__":
    serve(int(sys.argv[1]), Path(sys.argv[2]))
