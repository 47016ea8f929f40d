# SPDX-License-Identifier: Apache-2.0
"""Ansible's own answer to which plays there are, whom they reach and which tags they know."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from hyperpod_lifecycle.errors import ExitCode, InputError, LifecycleError, Problem

#: Tags that Ansible gives a meaning of their own.
SPECIAL = frozenset({"all", "always", "never", "tagged", "untagged"})

#: What every role's tasks are tagged with, beside their concern.
PHASES = ("install", "configure", "service", "verify")

_PLAY = re.compile(r"^  play #\d+ \((?P<pattern>.*?)\): (?P<name>.*)\tTAGS: \[(?P<tags>.*)\]$")
_TASK_TAGS = re.compile(r"^      TASK TAGS: \[(?P<tags>.*)\]$")


class ListingError(LifecycleError):
    """Ansible cannot read its playbook or inventory."""

    exit_code = ExitCode.FAILED


@dataclass(frozen=True)
class Play:
    """One play as Ansible sees it."""

    name: str
    hosts: tuple[str, ...]
    tags: frozenset[str]  #: the play's own
    task_tags: frozenset[str]  #: of any of its tasks

    def has(self, tags: Collection[str]) -> bool:
        """Whether one of `tags` means something in it."""
        return bool((self.tags | self.task_tags | SPECIAL) & set(tags))

    def selected(self, tags: Collection[str], skip_tags: Collection[str]) -> bool:
        """Whether a run with these options does more in it than its `always` tasks."""
        return (not tags or self.has(tags) or "always" in self.tags) and not self.tags & set(skip_tags)


def imported(playbook: str, collections: Path | None) -> frozenset[str]:
    """The names of the playbooks of its own collection that `playbook`, an FQCN, imports; empty where it is not found.

    Each is the name of a concern and its tag, known without the second that it takes Ansible to say so.
    """
    namespace, _, rest = playbook.partition(".")
    name, _, stem = rest.partition(".")
    for root in ([collections] if collections else []) + [Path(entry) for entry in sys.path]:
        file = root / "ansible_collections" / namespace / name / "playbooks" / f"{stem}.yml"
        if file.is_file():
            imports = rf"import_playbook: {namespace}\.{name}\.(\w+)$"
            return frozenset(re.findall(imports, file.read_text(), re.MULTILINE))
    return frozenset()


def plays(ansible_playbook: Path, playbook: str, inventory: Path, environment: Mapping[str, str]) -> list[Play]:
    """Every play of `playbook`, in order."""
    done = subprocess.run(
        [ansible_playbook, "-i", inventory, "--list-hosts", "--list-tags", "--tags", "all,never", "--", playbook],
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise ListingError(done.stderr.strip() or done.stdout.strip())
    return parse(done.stdout)


def parse(output: str) -> list[Play]:
    """Read the output of `ansible-playbook --list-hosts --list-tags`."""
    found: list[Play] = []
    for line in output.splitlines():
        if play := _PLAY.match(line):
            found.append(Play(play["name"], (), _tags(play["tags"]), frozenset()))
        elif tags := _TASK_TAGS.match(line):
            last = found.pop()
            found.append(Play(last.name, last.hosts, last.tags, _tags(tags["tags"])))
        elif line.startswith("      ") and found:
            last = found.pop()
            found.append(Play(last.name, (*last.hosts, line.strip()), last.tags, last.task_tags))
    return found


def check_tags(listed: Collection[Play], tags: Collection[str]) -> None:
    """A tag that nothing has would make a run that does nothing and succeeds."""
    known = SPECIAL.union(*(play.tags | play.task_tags for play in listed))
    names = ", ".join(sorted(known))
    unknown = [
        Problem("command line", "tags", f"no task has the tag {tag!r}", f"known: {names}")
        for tag in tags
        if tag not in known
    ]
    if unknown:
        raise InputError(unknown)


def without_phases(
    listed: Collection[Play], tags: Collection[str], skip_tags: Collection[str]
) -> tuple[list[str], list[str]]:
    """The tags to run and to skip that leave out whole phases, and nothing that another phase needs as well.

    Ansible skips a task that has any of the skipped tags, so also what looks for all phases at what is there. Hence the
    other phases are chosen, and concerns that are not wanted are skipped.
    """
    phases = set(PHASES)
    left = phases - set(skip_tags)
    if left == phases:
        return list(tags), list(skip_tags)
    skip = set(skip_tags) - phases
    wanted = set(tags) - {"all"}
    if wanted & phases:
        if wanted - phases:
            remedy = "name in --tags either concerns or phases"
            raise InputError([Problem("command line", "--skip-tags", "a phase cannot be skipped of both", remedy)])
        left &= wanted
    elif wanted:
        skip |= {tag for play in listed if not play.has(wanted) and "always" not in play.tags for tag in play.tags}
    if not left:
        raise InputError([Problem("command line", "--skip-tags", "no phase is left", f"phases: {', '.join(PHASES)}")])
    run = left.union(*(play.tags for play in listed if not play.task_tags & phases))
    return sorted(run), sorted(skip)


def _tags(text: str) -> frozenset[str]:
    return frozenset(tag.strip() for tag in text.split(",") if tag.strip())
