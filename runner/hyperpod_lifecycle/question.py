# SPDX-License-Identifier: Apache-2.0
"""Ask Ansible which plays and tags apply to this node, and which settings of the user are invalid.

The program `in_ansible.playbook` writes the answer to a file. A plan starts it for the answer only; in a run the same
process then runs the playbook.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hyperpod_lifecycle.errors import ExitCode, InputError, LifecycleError, Problem
from hyperpod_lifecycle.events import tidy
from hyperpod_lifecycle.selection import Play

#: The playbook of all concerns.
SITE = "hyperpod.lifecycle.site"

#: This interpreter by its path, because tasks must find the node's python3 on PATH. `-I` ignores the working directory.
PROGRAM = (sys.executable, "-I", "-m", "hyperpod_lifecycle.in_ansible.playbook")


@dataclass(frozen=True)
class Answer:
    """Ansible's description of a playbook on this node."""

    node_type: str
    plays: tuple[Play, ...]
    problems: tuple[Problem, ...]
    #: values that roles show in a plan: file systems, homes, users, the database
    shows: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def read(cls, path: Path) -> Answer | None:
        """Return the answer at `path`, or None if Ansible ended before it wrote one."""
        if not path.exists():
            return None
        said = json.loads(path.read_bytes())
        return cls(
            node_type=said["node_type"],
            plays=tuple(map(Play.from_dict, said["plays"])),
            problems=tuple(Problem(*problem) for problem in said["problems"]),
            shows=said.get("shows", {}),
        )


def ask(playbook: str, inventory: Path, private: Path, environment: Mapping[str, str]) -> Answer:
    """Return the answer for `playbook` without running a task.

    Raises InputError for invalid settings or if Ansible fails, and LifecycleError if Ansible crashes.
    """
    path = private / "answer.json"
    done = subprocess.run(
        [*PROGRAM, str(path), "", "--list-hosts", "--inventory", str(inventory), playbook],
        env=environment,
        cwd=private,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    answer = Answer.read(path)
    if answer and answer.problems:
        raise InputError(answer.problems)
    if done.returncode == ExitCode.OK and answer:
        return answer
    if "Traceback" in done.stderr:
        raise LifecycleError(f"Ansible cannot plan this node: {done.stderr.strip()}")
    said = tidy(done.stderr)
    raise InputError([Problem("the inventory", "", f"Ansible cannot plan this node: {said}", "correct it there")])
