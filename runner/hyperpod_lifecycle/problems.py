# SPDX-License-Identifier: Apache-2.0
"""Collect the problems of an input, one for each place, and format values for messages."""

from __future__ import annotations

import difflib
import json
import re
from collections import Counter
from collections.abc import Iterable, Sequence

from .errors import InputError, Problem

#: Maximum number of similar problems to list: 10,000 wrong addresses must not be 10,000 lines in CloudWatch.
LIKE_SHOWN = 10
#: Maximum number of known names to list.
KNOWN_SHOWN = 20
#: Maximum number of names to compare with a misspelt one; each takes some microseconds.
NEAR_LOOKED_AT = 1000

_PLAIN_KEY = re.compile(r"[A-Za-z0-9_-]+")
_INDEX = re.compile(r"\[\d+\]")


class Problems:
    """Problems, one for each key: the first one is the cause of later ones of the same key."""

    def __init__(self) -> None:
        self._kept: list[Problem] = []
        self._keys: set[tuple[str, str]] = set()
        self._kinds: Counter[tuple[str, str, str]] = Counter()

    def __len__(self) -> int:
        return len(self._keys)

    def add(self, file: str, key: str, found: str, remedy: str) -> None:
        """Add a problem: ``key`` is a JSON path, ``found`` what is wrong, ``remedy`` what to do."""
        if (file, key) in self._keys:
            return
        self._keys.add((file, key))
        kind = (file, any_index(key), remedy)
        self._kinds[kind] += 1
        if self._kinds[kind] <= LIKE_SHOWN:
            self._kept.append(Problem(file, key, found, remedy))

    def listed(self) -> list[Problem]:
        """Return all problems; of many similar ones, the first few and the number of others."""
        more = (
            Problem(file, key, f"{count - LIKE_SHOWN} more of the same kind", remedy)
            for (file, key, remedy), count in self._kinds.items()
            if count > LIKE_SHOWN
        )
        return [*self._kept, *more]

    def raise_any(self) -> None:
        """Raise one :class:`InputError` with all problems, if there are any."""
        if self._kept:
            raise InputError(self.listed())


def json_path(location: Iterable[str | int]) -> str:
    """Format ``("worker_groups", 0, "name")`` as ``worker_groups[0].name``; quote other keys, as in ``["a b"]``."""
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
    """Replace indices by ``*``: ``Instances[7].Label`` becomes ``Instances[*].Label``."""
    return _INDEX.sub("[*]", key)


def show(value: object) -> str:
    """Format a value for a message: scalars as short JSON, containers by kind only because they may hold secrets."""
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
    """Format names for a message, printable: ``a, b and 598 more``, or ``none``."""
    listed = list(names)
    text = ", ".join(name if name.isprintable() else show(name) for name in listed[:KNOWN_SHOWN]) or "none"
    rest = len(listed) - KNOWN_SHOWN
    return f"{text} and {rest} more" if rest > 0 else text


def nearest(name: str, names: Sequence[str]) -> str | None:
    """Return the known name that differs only by case or a few letters, or None."""
    same = [other for other in names if other.casefold() == name.strip().casefold()]
    near = same or difflib.get_close_matches(name, names[:NEAR_LOOKED_AT], n=1)
    return near[0] if near else None


def did_you_mean(near: str | None) -> str:
    """Return ``did you mean "brain"? `` with a final blank, or an empty string if `near` is None."""
    return "" if near is None else f"did you mean {show(near)}? "
