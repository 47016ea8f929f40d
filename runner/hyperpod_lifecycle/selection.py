# SPDX-License-Identifier: Apache-2.0
"""Select plays and tasks by `--tags` and `--skip-tags`."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from hyperpod_lifecycle.errors import InputError, Problem

#: Tags with a special meaning in Ansible.
SPECIAL = frozenset({"all", "always", "never", "tagged", "untagged"})

#: Tags of the tasks of every role, in addition to their concern.
PHASES = ("install", "configure", "service", "verify")


@dataclass(frozen=True)
class Play:
    """One play, as Ansible has loaded it."""

    name: str
    hosts: tuple[str, ...]  #: its `hosts:`
    matches: bool  #: whether this node is among them
    off: tuple[str, ...]  #: the switches of its roles that are false
    tags: frozenset[str]  #: the play's own
    task_tags: frozenset[str]  #: of any of its tasks

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any]) -> Play:
        return cls(
            name=raw["name"],
            hosts=tuple(raw["hosts"]),
            matches=raw["matches"],
            off=tuple(raw["off"]),
            tags=frozenset(raw["tags"]),
            task_tags=frozenset(raw["task_tags"]),
        )

    def has(self, tags: Collection[str]) -> bool:
        """Return whether the play or a task of it has one of `tags`."""
        return bool((self.tags | self.task_tags | SPECIAL) & set(tags))

    def whole(self, tags: Collection[str], skip_tags: Collection[str]) -> bool:
        """Return whether a run with these options runs all tasks of the play."""
        if "always" in self.tags:
            return True
        left_out = (self.task_tags - self.tags - SPECIAL) & set(skip_tags)
        return not left_out and (not tags or bool((self.tags | {"all"}) & set(tags)))

    def selected(self, tags: Collection[str], skip_tags: Collection[str]) -> bool:
        """Return whether a run with these options runs more of the play than its `always` tasks."""
        return (not tags or self.has(tags) or "always" in self.tags) and not self.tags & set(skip_tags)


def selection(plays: Collection[Play], tags: Iterable[str], skip_tags: Iterable[str]) -> tuple[list[str], list[str]]:
    """Return Ansible's tags to run and to skip for the user's `tags` and `skip_tags`.

    Raises InputError for unknown tags and impossible combinations.
    """
    tags, skip_tags = list(tags), list(skip_tags)
    _check(plays, [*tags, *skip_tags])
    return _without_phases(plays, tags, skip_tags)


def _check(plays: Collection[Play], tags: Collection[str]) -> None:
    """Raise InputError for unknown tags, with which Ansible would succeed without running anything."""
    known = SPECIAL.union(*(play.tags | play.task_tags for play in plays))
    names = ", ".join(sorted(known))
    unknown = [
        Problem("command line", "tags", f"no task has the tag {tag!r}", f"known: {names}")
        for tag in tags
        if tag not in known
    ]
    if unknown:
        raise InputError(unknown)


def _without_phases(
    plays: Collection[Play], tags: Collection[str], skip_tags: Collection[str]
) -> tuple[list[str], list[str]]:
    """Translate phases in `skip_tags` to tags that keep tasks shared by several phases.

    Ansible skips a task that has any skipped tag, and with it discovery tasks that other phases need. Therefore the
    other phases are selected, and unwanted concerns are skipped.
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
            found = "cannot drop a phase when --tags mixes concerns and phases"
            raise InputError([Problem("command line", "--skip-tags", found, remedy)])
        left &= wanted
    elif wanted:
        skip |= {tag for play in plays if not play.has(wanted) and "always" not in play.tags for tag in play.tags}
    if not left:
        raise InputError([Problem("command line", "--skip-tags", "no phase is left", f"phases: {', '.join(PHASES)}")])
    run = left.union(*(play.tags for play in plays if not play.task_tags & phases))
    return sorted(run), sorted(skip)
