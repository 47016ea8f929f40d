# SPDX-License-Identifier: Apache-2.0
"""Record `make lab` as docs/lab.svg, as a terminal shows it: `make picture`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from rich.console import Console
from rich.text import Text

ROOT = Path(__file__).parents[1]
WIDTH = 132
#: What make itself prints.
OF_MAKE = (".venv/", "sudo ", "NO_AUTOFS=", "make[")
#: Commands to show, as a user types them.
COMMANDS = (
    "make lab",
    "hyperpod-lifecycle lab exec login-group-1 -- srun --nodes=2 hostname",
    "hyperpod-lifecycle lab exec compute-nodes-1 -- hyperpod-lifecycle apply --tags slurm",
)


def main() -> None:
    """Run the commands one after the other and write the picture."""
    console = Console(record=True, width=WIDTH, file=sys.stderr)
    for command in COMMANDS:
        console.print(Text.assemble(("$ ", "bold green"), (command, "bold")))
        done = subprocess.run(
            ["sh", "-c", command], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=True
        )
        for line in done.stdout.splitlines():
            if not line.startswith(OF_MAKE):
                console.print(Text(line))
    console.save_svg(str(ROOT / "docs/lab.svg"), title="hyperpod-lifecycle")


if __name__ == "__main__":
    main()
