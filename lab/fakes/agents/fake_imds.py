#!/usr/bin/python3 -B
# SPDX-License-Identifier: Apache-2.0
"""fake_imds: instance metadata in version 2, as far as nodes ask, behind the role proxy agent's address.

Each request needs a token. What it answers is in /etc/fake_imds.json, which the lab writes; credentials are made up.
"""

from __future__ import annotations

import json
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

IDENTITY = Path("/etc/fake_imds.json")
TOKEN = "fake-imds-token"
ROLE = "SageMaker"


def answers(identity: dict[str, str]) -> dict[str, str]:
    """Path -> text. A path with a final slash lists what is below."""
    mac = f"meta-data/network/interfaces/macs/{identity['mac']}"
    credentials = {"Code": "Success", "AccessKeyId": "FAKE", "SecretAccessKey": "FAKE", "Token": "FAKE"}
    document = {"region": identity["region"], "instanceId": identity["instance_id"], "accountId": "111122223333"}
    return {
        "meta-data/instance-id": identity["instance_id"],
        "meta-data/instance-type": identity["instance_type"],
        "meta-data/local-ipv4": identity["address"],
        "meta-data/local-hostname": identity["host"],
        "meta-data/mac": identity["mac"],
        "meta-data/placement/availability-zone": f"{identity['region']}a",
        "meta-data/placement/availability-zone-id": "usw2-az1",
        "meta-data/placement/region": identity["region"],
        f"{mac}/subnet-id": "subnet-0fake0fake0fake0f",
        f"{mac}/vpc-id": "vpc-0fake0fake0fake0f",
        f"{mac}/vpc-ipv4-cidr-block": identity["subnet"],
        f"{mac}/local-ipv4s": identity["address"],
        "meta-data/iam/security-credentials/": ROLE,
        f"meta-data/iam/security-credentials/{ROLE}": json.dumps({**credentials, "Expiration": "2099-01-01T00:00:00Z"}),
        "dynamic/instance-identity/document": json.dumps(document),
        "user-data": f"#!/bin/bash\nexport CLUSTER_NAME={identity['cluster_name']}\n",
    }


class Handler(BaseHTTPRequestHandler):
    def do_PUT(self) -> None:
        self._answer(200, TOKEN) if self.path == "/latest/api/token" else self._answer(404, "")

    def do_GET(self) -> None:
        if self.headers.get("X-aws-ec2-metadata-token") != TOKEN:
            self._answer(401, "")
            return
        found = answers(json.loads(IDENTITY.read_text())) if IDENTITY.exists() else {}
        text = found.get(self.path.removeprefix("/latest/"))
        self._answer(404 if text is None else 200, text or "")

    def _answer(self, status: int, text: str) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(text.encode())))
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *words: object) -> None:
        """Quiet: each request is one of many."""


if __name__ == "__main__":
    ThreadingHTTPServer((sys.argv[1], int(sys.argv[2])), Handler).serve_forever()
