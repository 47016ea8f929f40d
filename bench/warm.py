# SPDX-License-Identifier: Apache-2.0
"""What the warm connection saves: the same 50 tasks over `local` and over `hyperpod.lifecycle.warm`, as ratios.

Run it by the Python of an environment with Ansible in it.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TASKS = 50
MIXED = (
    {"ansible.builtin.command": "true"},
    {"ansible.builtin.copy": {"content": "text\n", "dest": "{{ work }}/copied", "mode": "0644"}},
    {"ansible.builtin.template": {"src": "{{ work }}/source.j2", "dest": "{{ work }}/templated", "mode": "0644"}},
    {"ansible.builtin.stat": {"path": "{{ work }}/copied"}},
    {"ansible.builtin.lineinfile": {"path": "{{ work }}/lines", "line": "one", "create": True, "mode": "0644"}},
)
CASES = {
    "mixed": [MIXED[number % len(MIXED)] for number in range(TASKS)],
    "command": [{"ansible.builtin.command": "true"}] * TASKS,
    "no task": [],
}


def seconds(work: Path, case: str, connection: str, interpreter: str) -> float:
    playbook = work / "playbook.yml"
    playbook.write_text(json.dumps([{"hosts": "all", "gather_facts": False, "tasks": CASES[case]}]))
    command = [
        str(Path(sys.executable).with_name("ansible-playbook")), "-i", "node,", "-c", connection, str(playbook),
        "-e", json.dumps({"work": str(work), "ansible_python_interpreter": interpreter}),
    ]  # fmt: skip
    environment = {name: value for name, value in os.environ.items() if not name.startswith("ANSIBLE_")}
    environment |= {"ANSIBLE_COLLECTIONS_PATH": str(work), "ANSIBLE_HOME": str(work / "home")}
    begin = time.monotonic()
    subprocess.run(command, check=True, cwd=work, env=environment, stdout=subprocess.DEVNULL)
    return time.monotonic() - begin


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--interpreter", default="/usr/bin/python3")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        collection = work / "ansible_collections" / "hyperpod" / "lifecycle"
        collection.parent.mkdir(parents=True)
        collection.symlink_to(ROOT / "collection")
        (work / "source.j2").write_text("{{ inventory_hostname }}\n")
        for case in CASES:
            times: dict[str, list[float]] = {"local": [], "hyperpod.lifecycle.warm": []}
            for _ in range(options.rounds):  # alternating, so that the machine's moods meet both
                for connection, measured in times.items():
                    measured.append(seconds(work, case, connection, options.interpreter))
            local, warm = (statistics.median(measured) for measured in times.values())
            print(f"{case:8} local {local:6.1f} s  warm {warm:6.1f} s  local/warm {local / warm:4.1f}")


if __name__ == "__main__":
    main()
