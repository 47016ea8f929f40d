# SPDX-License-Identifier: Apache-2.0
"""One question to Ansible: which plays and tags are for this node, and what is wrong with the user's settings.

The program `in_ansible.playbook` answers it in a file. A plan starts that program for the answer alone; in a run the
same process goes on with the playbook.
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

#: Everything that a run does on a node.
SITE = "hyperpod.lifecycle.site"

#: Ours, by its path: with our folder on PATH tasks would find our python3 instead of the node's. It takes nothing from
#: the folder it is started in.
PROGRAM = (sys.executable, "-I", "-m", "hyperpod_lifecycle.in_ansible.playbook")


@dataclass(frozen=True)
class Answer:
    """What Ansible says of a playbook on this node."""

    node_type: str
    plays: tuple[Play, ...]
    problems: tuple[Problem, ...]
    #: what the roles say of the node, in a plan: file systems, homes, users, the database
    shows: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def read(cls, path: Path) -> Answer | None:
        """The answer at `path`; None if Ansible ended before it could give one."""
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
    """Ask, and run nothing. Raises InputError for wrong settings, or with Ansible's words if it cannot answer."""
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
