# SPDX-License-Identifier: Apache-2.0
"""Run the e2e tests as often and as long as somebody does who wants to be sure, and keep the result with its date."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from datetime import datetime, timezone
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PYTEST = (sys.executable, "-m", "pytest", "--numprocesses", "2", "--dist", "loadfile")
#: What is run -> what it is run on, as the tests' environment says it.
RUNS = {"tests/e2e": {}, "tests/e2e/test_cluster.py": {"RELEASE": "forky"}}


def run(tests: str, environment: Mapping[str, str]) -> tuple[int, str]:
    """The status and the last line of a run of tests."""
    last = ""
    settings = {**os.environ, "THOROUGH": "1", **environment}
    with subprocess.Popen([*PYTEST, tests], cwd=ROOT, env=settings, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        for line in process.stdout:
            print(line, end="", flush=True)
            last = line.strip() or last
    return process.returncode, " ".join([*environment.values(), last])


def main() -> None:
    results = [run(tests, environment) for tests, environment in RUNS.items()]
    today = datetime.now(timezone.utc).date().isoformat()
    commit = subprocess.run(
        ["git", "-c", f"safe.directory={ROOT}", "describe", "--always", "--dirty"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    ).stdout.strip()
    (ROOT / "bench/thorough.txt").write_text("".join(f"{today} {commit}: {last}\n" for _, last in results))
    sys.exit(max(status for status, _ in results))


if __name__ == "__main__":
    main()
