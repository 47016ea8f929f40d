# SPDX-License-Identifier: Apache-2.0
"""fake_downloads: the sites from which nodes get software, as one file server that can be down for some requests.

It serves the folder `files` beside it. As long as the number in the file `fail` is not 0, a request is refused and
the number becomes smaller. Each request is a line in the file `requests`.
"""

from __future__ import annotations

import sys
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Lock

FAIL, REQUESTS = Path("fail"), Path("requests")
LOCK = Lock()


class Handler(SimpleHTTPRequestHandler):
    """Files, unless it is down."""

    def do_GET(self) -> None:
        with LOCK:
            left = int(FAIL.read_text() or 0) if FAIL.exists() else 0
            if left:
                FAIL.write_text(str(left - 1))
            with REQUESTS.open("a") as file:
                file.write(f"{self.path} {503 if left else 200}\n")
        if left:
            self.send_error(503)
        else:
            super().do_GET()


if __name__ == "__main__":
    with ThreadingHTTPServer(("", int(sys.argv[1])), lambda *words: Handler(*words, directory="files")) as server:
        print(server.server_port, flush=True)
        server.serve_forever()
