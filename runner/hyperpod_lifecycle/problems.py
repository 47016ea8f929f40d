# SPDX-License-Identifier: Apache-2.0
"""Problems of an input as they are found: collected, each place once, in words that fit into any log."""

from __future__ import annotations

import difflib
import json
import re
from collections import Counter
from collections.abc import Iterable, Sequence

from .errors import InputError, Problem

#: Problems of one kind that are spelt out; 10,000 wrong addresses must not become 10,000 lines in CloudWatch.
LIKE_SHOWN = 10
#: Names that an error lists as known.
KNOWN_SHOWN = 20
#: Names among which a near one is looked for; each costs some microseconds.
NEAR_LOOKED_AT = 1000

_PLAIN_KEY = re.compile(r"[A-Za-z0-9_-]+")
_INDEX = re.compile(r"\[\d+\]")


class Problems:
    """Collects problems, one for each key: the first is the cause, later ones of that key only follow from it."""

    def __init__(self) -> None:
        self._kept: list[Problem] = []
        self._keys: set[tuple[str, str]] = set()
        self._kinds: Counter[tuple[str, str, str]] = Counter()

    def __len__(self) -> int:
        return len(self._keys)

    def add(self, file: str, key: str, found: str, remedy: str) -> None:
        """Record one: ``key`` is a JSON path, ``found`` what is there, ``remedy`` what is known or to be done."""
        if (file, key) in self._keys:
            return
        self._keys.add((file, key))
        kind = (file, any_index(key), remedy)
        self._kinds[kind] += 1
        if self._kinds[kind] <= LIKE_SHOWN:
            self._kept.append(Problem(file, key, found, remedy))

    def listed(self) -> list[Problem]:
        """Everything recorded; of many problems of one kind the first few and how many more there are."""
        more = (
            Problem(file, key, f"{count - LIKE_SHOWN} more of the same kind", remedy)
            for (file, key, remedy), count in self._kinds.items()
            if count > LIKE_SHOWN
        )
        return [*self._kept, *more]

    def raise_any(self) -> None:
        """Raise one :class:`InputError` with everything recorded; do nothing if nothing was."""
        if self._kept:
            raise InputError(self.listed())


def json_path(location: Iterable[str | int]) -> str:
    """``("worker_groups", 0, "partition_name")`` -> ``worker_groups[0].partition_name``; odd keys as ``["a b"]``."""
    path = ""
    for step in location:
        if isinstance(step, int):
            path += f"[{step}]"
        elif _PLAIN_KEY.fullmatch(step):
            path += f".{step}" if path else step
        else:
            path += f"[{show(step)}]"
    return path


def any_index(key: str) -> str:
    """``Instances[7].Label`` -> ``Instances[*].Label``: the same place in every element of a list."""
    return _INDEX.sub("[*]", key)


def show(value: object) -> str:
    """A found value for a message, short: scalars as JSON, containers by kind only (they may hold secrets)."""
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, list):
        return "a list"
    if isinstance(value, str) and len(value) > 80:
        value = value[:77] + "..."
    if isinstance(value, int) and not isinstance(value, bool) and value.bit_length() > 256:
        return "a very long number"
    text = json.dumps(value, ensure_ascii=False)
    return text if text.isprintable() else json.dumps(value)


def known(names: Iterable[str]) -> str:
    """``a, b and 598 more`` for messages, always printable; ``none`` if there is nothing."""
    listed = list(names)
    text = ", ".join(name if name.isprintable() else show(name) for name in listed[:KNOWN_SHOWN]) or "none"
    rest = len(listed) - KNOWN_SHOWN
    return f"{text} and {rest} more" if rest > 0 else text


def nearest(name: str, names: Sequence[str]) -> str | None:
    """The known name that differs by case or a few letters only."""
    same = [other for other in names if other.casefold() == name.strip().casefold()]
    near = same or difflib.get_close_matches(name, names[:NEAR_LOOKED_AT], n=1)
    return near[0] if near else None


def did_you_mean(near: str | None) -> str:
    """``did you mean "brain"? `` with the blank, to put before what is known; nothing without a near name."""
    return "" if near is None else f"did you mean {show(near)}? "
