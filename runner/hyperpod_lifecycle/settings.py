# SPDX-License-Identifier: Apache-2.0
"""The user's variables checked against every role's argument spec, before anything changes.

Ansible itself accepts a mistyped variable in silence: the role then runs with its default.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from hyperpod_lifecycle.errors import Problem
from hyperpod_lifecycle.reading import PLACEHOLDER


def known_variables(roles: Path) -> dict[str, frozenset[str]]:
    """Each role below `roles` and the variables its argument spec knows, over all entry points."""
    known: dict[str, frozenset[str]] = {}
    for spec in sorted(roles.glob("*/meta/argument_specs.yml")):
        entry_points = yaml.safe_load(spec.read_text(encoding="utf-8"))["argument_specs"].values()
        options = frozenset(name for entry in entry_points for name in entry.get("options", {}))
        known[spec.parents[1].name] = options
    return known


def problems(variables: Mapping[str, Any], known: Mapping[str, frozenset[str]], origin: str) -> list[Problem]:
    """Every variable that carries a role's prefix without being one of its options, and every placeholder.

    `origin` names where the variables come from, for the message.
    """
    found: list[Problem] = []
    everything = sorted(frozenset[str]().union(*known.values()))
    for name, value in variables.items():
        role = next((role for role in known if name.startswith(f"{role}_")), None)
        if name not in everything:
            if role is None:
                continue
            near = difflib.get_close_matches(name, everything, n=1)
            options = ", ".join(sorted(known[role])) or "none"
            hint = f"did you mean {near[0]}?" if near else f"the role {role} knows: {options}"
            found.append(Problem(origin, name, f"no role has this variable (value {value!r})", hint))
        found += (
            Problem(
                origin,
                name + key,
                f"a placeholder was left in: {text!r}",
                "put the real value there or delete the line",
            )
            for key, text in _texts(value)
            if PLACEHOLDER.search(text)
        )
    return found


def _texts(value: Any, key: str = "") -> Iterator[tuple[str, str]]:
    """Every string in a nested value, with its path."""
    if isinstance(value, str):
        yield key, value
    elif isinstance(value, Mapping):
        for name, item in value.items():
            yield from _texts(item, f"{key}.{name}")
    elif isinstance(value, (list, tuple)):
        for index, item in enumerate(value):
            yield from _texts(item, f"{key}[{index}]")
