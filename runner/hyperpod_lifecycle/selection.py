# SPDX-License-Identifier: Apache-2.0
"""Which plays a run with tags selects, from what Ansible says of them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from hyperpod_lifecycle.errors import InputError, Problem

#: Tags that Ansible gives a meaning of their own.
SPECIAL = frozenset({"all", "always", "never", "tagged", "untagged"})

#: What every role's tasks are tagged with, beside their concern.
PHASES = ("install", "configure", "service", "verify")


@dataclass(frozen=True)
class Play:
    """One play as Ansible sees it."""

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
        """Whether one of `tags` means something in it."""
        return bool((self.tags | self.task_tags | SPECIAL) & set(tags))

    def whole(self, tags: Collection[str], skip_tags: Collection[str]) -> bool:
        """Whether a run with these options does all of it."""
        if "always" in self.tags:
            return True
        left_out = (self.task_tags - self.tags - SPECIAL) & set(skip_tags)
        return not left_out and (not tags or bool((self.tags | {"all"}) & set(tags)))

    def selected(self, tags: Collection[str], skip_tags: Collection[str]) -> bool:
        """Whether a run with these options does more in it than its `always` tasks."""
        return (not tags or self.has(tags) or "always" in self.tags) and not self.tags & set(skip_tags)


def selection(plays: Collection[Play], tags: Iterable[str], skip_tags: Iterable[str]) -> tuple[list[str], list[str]]:
    """The tags to run and to skip, as Ansible needs them for what the user asks; InputError for what cannot be."""
    tags, skip_tags = list(tags), list(skip_tags)
    _check(plays, [*tags, *skip_tags])
    return _without_phases(plays, tags, skip_tags)


def _check(plays: Collection[Play], tags: Collection[str]) -> None:
    """A tag that nothing has would make a run that does nothing and succeeds."""
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
    """Leave out whole phases, and nothing that another phase needs as well.

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
            found = "cannot drop a phase when --tags mixes concerns and phases"
            raise InputError([Problem("command line", "--skip-tags", found, remedy)])
        left &= wanted
    elif wanted:
        skip |= {tag for play in plays if not play.has(wanted) and "always" not in play.tags for tag in play.tags}
    if not left:
        raise InputError([Problem("command line", "--skip-tags", "no phase is left", f"phases: {', '.join(PHASES)}")])
    run = left.union(*(play.tags for play in plays if not play.task_tags & phases))
    return sorted(run), sorted(skip)
