# SPDX-License-Identifier: Apache-2.0
"""fake_aws: moto in the place of AWS services, and the real AWS CLI on nodes, which is told to call it.

moto answers for every account and region and lets everybody do everything. It keeps nothing when it stops.
"""

from __future__ import annotations

import json
import platform
import re
import shutil
import time
import urllib.request
import zipfile
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement

from hyperpod_lab.agent import Node
from hyperpod_lab.errors import LabError
from hyperpod_lab.lab import Lab
from hyperpod_lab.services import FOLDER
from hyperpod_lifecycle import bundle

NAME = "fake-aws"
PORT = 5000
START_SECONDS = 60
#: One call; the first ones may meet a container that has just taken another's address.
SECONDS = 5
#: moto's own extra for its server has every service's needs.
MOTO = ("moto>=5.1,<6", "flask>=3", "flask-cors>=5")
#: Version 1, which is to be had as a package of Python; images of HyperPod have version 2.
CLI = ("awscli>=1.40,<2",)
#: Most of their size: what they know of services that nobody asks for here, and the CLI's examples.
SUPERFLUOUS = re.compile(r"botocore/data/(?!secretsmanager/|s3/|sns/|sts/)[^/]+/|awscli/(examples|topics)/")
CLI_FOLDER = "/opt/awscli"
CONFIG = f"""\
[default]
endpoint_url = http://{NAME}:{PORT}
"""
#: moto asks for some, and looks at none.
CREDENTIALS = """\
[default]
aws_access_key_id = FAKE
aws_secret_access_key = FAKE
"""
PROGRAM = f"""\
#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
PYTHONPATH={CLI_FOLDER} exec python3 -m awscli "$@"
"""


class FakeAws:
    """One moto for a lab."""

    def __init__(self, lab: Lab) -> None:
        self._lab = lab

    def start(self) -> None:
        folder = self._lab.services.folder / NAME / "packages"
        self._unpack(MOTO, folder)
        command = ["python3", "-m", "moto.server", "--host=0.0.0.0", f"--port={PORT}"]
        self._lab.services.start(NAME, command, environment={"PYTHONPATH": f"{FOLDER}/packages"})
        deadline = time.monotonic() + START_SECONDS
        while not self._answers():
            if time.monotonic() > deadline:
                raise LabError(f"moto does not start: {self._lab.services.logs(NAME)[-2000:]}")
            time.sleep(0.25)

    def install_cli(self, node: str | Node) -> None:
        """The CLI as ``/usr/local/bin/aws``, which root's configuration sends here."""
        folder = self._lab.services.folder / NAME / "cli"
        self._unpack(CLI, folder)
        self._lab.put(node, folder, CLI_FOLDER)
        self._lab.put(node, PROGRAM.encode(), "/usr/local/bin/aws", mode=0o755)
        self._lab.put(node, CONFIG.encode(), "/root/.aws/config", mode=0o600)
        self._lab.put(node, CREDENTIALS.encode(), "/root/.aws/credentials", mode=0o600)

    def secret(self, name: str, text: str, region: str) -> str:
        """The ARN of a secret of Secrets Manager, which is made, or given another text."""
        if self._call("ListSecrets", region, Filters=[{"Key": "name", "Values": [name]}])["SecretList"]:
            return str(self._call("PutSecretValue", region, SecretId=name, SecretString=text)["ARN"])
        return str(self._call("CreateSecret", region, Name=name, SecretString=text)["ARN"])

    def _call(self, action: str, region: str, **parameters: object) -> Any:
        # moto takes the region from here, and looks at nothing else in it.
        scope = f"AWS4-HMAC-SHA256 Credential=FAKE/20260101/{region}/secretsmanager/aws4_request"
        request = urllib.request.Request(
            f"http://{self._lab.services.get(NAME).address}:{PORT}/",
            data=json.dumps(parameters).encode(),
            headers={
                "Authorization": f"{scope}, SignedHeaders=host, Signature=none",
                "Content-Type": "application/x-amz-json-1.1",
                "X-Amz-Target": f"secretsmanager.{action}",
            },
        )
        with urllib.request.urlopen(request, timeout=SECONDS) as answer:
            return json.load(answer)

    def _answers(self) -> bool:
        try:
            self._call("ListSecrets", "us-east-1")
        except OSError:
            return False
        return True

    def _unpack(self, packages: tuple[str, ...], folder: Path) -> None:
        """Packages for the nodes' Python, as a folder that it can import from."""
        shape = self._lab.request
        if shape is None:
            raise LabError("start the lab first")
        wheels = bundle.wheels([Requirement(each) for each in packages], shape.release.python, platform.machine())
        shutil.rmtree(folder, ignore_errors=True)
        for wheel in wheels:
            with zipfile.ZipFile(wheel) as archive:
                archive.extractall(folder, [name for name in archive.namelist() if not SUPERFLUOUS.match(name)])
