# SPDX-License-Identifier: Apache-2.0
"""A fake of Amazon Managed Prometheus: refuses what is not signed, and hands the rest on to a real Prometheus.

Usage: fake_amp.py HOST RECEIVER ACCESS_KEY SECRET_KEY. Serves HTTPS with a certificate that it makes for HOST
(certificate.pem in its folder), and tells at /fake/counts how many requests it took and refused, and why.
"""

from __future__ import annotations

import collections
import hashlib
import hmac
import json
import re
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

PATH = re.compile(r"/workspaces/ws-[0-9a-f-]{36}/api/v1/remote_write")
AUTHORIZATION = re.compile(
    r"AWS4-HMAC-SHA256 Credential=([^/]+)/(\d{8})/([^/]+)/([^/]+)/aws4_request, ?"
    r"SignedHeaders=([^,]+), ?Signature=(\w+)"
)
#: How far AWS lets clocks be apart.
SKEW_SECONDS = 900


class Refused(Exception):
    """Why a request is not taken."""


def sign(key, text):
    return hmac.new(key, text.encode(), hashlib.sha256).digest()


def check(headers, method, path, body, keys, region):
    """Refused unless the request is signed with one of `keys` for `region`."""
    match = AUTHORIZATION.fullmatch(headers.get("Authorization", ""))
    if not match:
        raise Refused("MissingAuthenticationToken")
    access_key, day, signed_region, service, names, signature = match.groups()
    moment = headers.get("X-Amz-Date", "")
    if access_key not in keys:
        raise Refused("UnrecognizedClient")
    if (signed_region, service) != (region, "aps"):
        raise Refused(f"signed for {signed_region}/{service}, not {region}/aps")
    if not moment.startswith(day) or abs(_seconds(moment) - time.time()) > SKEW_SECONDS:
        raise Refused("SignatureExpired")
    if "host" not in names.split(";"):
        raise Refused("the host is not signed")
    canonical = [method, path, ""]
    canonical += [f"{name}:{' '.join(headers.get(name, '').split())}" for name in names.split(";")]
    canonical += ["", names, headers.get("X-Amz-Content-Sha256") or hashlib.sha256(body).hexdigest()]
    scope = f"{day}/{region}/aps/aws4_request"
    text = "\n".join(["AWS4-HMAC-SHA256", moment, scope, hashlib.sha256("\n".join(canonical).encode()).hexdigest()])
    key = ("AWS4" + keys[access_key]).encode()
    for part in (day, region, "aps", "aws4_request"):
        key = sign(key, part)
    if not hmac.compare_digest(sign(key, text).hex(), signature):
        raise Refused("SignatureDoesNotMatch")


def _seconds(moment):
    try:
        return time.mktime(time.strptime(moment + " UTC", "%Y%m%dT%H%M%SZ %Z")) - time.timezone
    except ValueError:
        return 0


def handler(receiver, keys, region):
    counts = collections.Counter()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self):
            if self.path == "/fake/counts":
                self.answer(200, json.dumps(counts).encode())
            else:
                self.answer(404, b"")

        def do_POST(self):
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            try:
                if not PATH.fullmatch(self.path):
                    raise Refused("no such workspace")
                check(self.headers, "POST", self.path, body, keys, region)
            except Refused as refused:
                counts[f"refused: {refused}"] += 1
                self.answer(403, json.dumps({"message": str(refused)}).encode())
                return
            names = ("Content-Encoding", "Content-Type", "X-Prometheus-Remote-Write-Version")
            request = urllib.request.Request(
                receiver, body, {name: self.headers[name] for name in names if name in self.headers}
            )
            try:
                with urllib.request.urlopen(request, timeout=10) as done:
                    status, said = done.status, done.read()
            except urllib.error.HTTPError as error:
                status, said = error.code, error.read()
            except OSError as error:
                status, said = 503, str(error).encode()
            counts[f"{status}"] += 1
            self.answer(status, said)

        def answer(self, status, body):
            self.send_response(status)
            if status != 204:
                self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if status != 204:
                self.wfile.write(body)

        def log_message(self, *args):
            pass

    return Handler


def certificate(host):
    """Made once, in the folder that stays."""
    if not Path("certificate.pem").exists():
        command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "30", "-subj", "/CN=fake_amp"]
        command += ["-addext", f"subjectAltName=DNS:{host}", "-keyout", "key.pem", "-out", "new.pem"]
        subprocess.run(command, check=True, capture_output=True)
        Path("new.pem").rename("certificate.pem")


def main():
    host, receiver, access_key, secret_key = sys.argv[1:]
    certificate(host)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain("certificate.pem", "key.pem")
    region = host.split(".")[1]
    server = ThreadingHTTPServer(("", 443), handler(receiver, {access_key: secret_key}, region))
    server.socket = context.wrap_socket(server.socket, server_side=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
