# SPDX-License-Identifier: Apache-2.0
"""Variables with a role's prefix that no role has, and placeholders that were left in.

Ansible itself accepts a mistyped variable in silence: the role then runs with its default.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from typing import Any

from hyperpod_lifecycle.argument_specs import Declared, Option
from hyperpod_lifecycle.errors import Problem
from hyperpod_lifecycle.placeholders import mark
from hyperpod_lifecycle.variable_files import origin


def problems(variables: Mapping[str, Any], options: Declared) -> list[Problem]:
    """Every variable that carries a role's prefix without being one of its options, and every placeholder.

    Values are not shown: a mistyped name may well hold a secret.
    """
    found: list[Problem] = []
    roles = {option.role for option in options.values()}
    for name, value in variables.items():
        role = next((role for role in roles if name.startswith(f"{role}_")), None)
        if name not in options:
            if role is None:
                continue
            near = difflib.get_close_matches(name, options, n=1)
            its_own = ", ".join(sorted(each for each, option in options.items() if option.role == role))
            hint = f"did you mean {near[0]}?" if near else f"the role {role} knows: {its_own}"
            found.append(Problem(origin(name, variables), name, "no role has this variable", hint))
        if options.get(name, Option("")).form.placeholders:
            continue
        found += (
            Problem(
                origin(name, variables),
                name + key,
                f"a placeholder was left in: {left}",
                "put the real value there or delete the line",
            )
            for key, text in texts(value)
            if (left := mark(text))
        )
    return found


def texts(value: Any, key: str = "") -> Iterator[tuple[str, str]]:
    """Every string in a nested value, with its path."""
    if isinstance(value, str):
        yield key, value
    elif isinstance(value, Mapping):
        for name, item in value.items():
            yield from texts(item, f"{key}.{name}")
    elif isinstance(value, (list, tuple)):
        for index, item in enumerate(value):
            yield from texts(item, f"{key}[{index}]")
