# SPDX-License-Identifier: Apache-2.0
"""Run the e2e tests as often and as long as somebody does who wants to be sure, and keep the result with its date."""

from __future__ import annotations

import os
import subprocess
import sys
from datetime import datetime, timezone
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PYTEST = (sys.executable, "-m", "pytest", "--numprocesses", "2", "--dist", "loadfile", "tests/e2e")


def main() -> None:
    environment = {**os.environ, "THOROUGH": "1"}
    last = ""
    with subprocess.Popen(PYTEST, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True) as tests:
        assert tests.stdout
        for line in tests.stdout:
            print(line, end="", flush=True)
            last = line.strip() or last
    today = datetime.now(timezone.utc).date().isoformat()
    commit = subprocess.run(
        ["git", "-c", f"safe.directory={ROOT}", "describe", "--always", "--dirty"],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    ).stdout.strip()
    (ROOT / "bench/thorough.txt").write_text(f"{today} {commit}: {last}\n")
    sys.exit(tests.returncode)


if __name__ == "__main__":
    main()
