# SPDX-License-Identifier: Apache-2.0
"""Every benchmark, one after the other. Figures are ratios within one run; seconds differ from machine to machine."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def main() -> None:
    folder = Path(__file__).parent
    for name in ("plan", "node", "warm"):
        print(f"--- {name}", flush=True)
        subprocess.run([sys.executable, str(folder / f"{name}.py")], check=True)


if __name__ == "__main__":
    main()
