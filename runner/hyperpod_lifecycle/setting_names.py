# SPDX-License-Identifier: Apache-2.0
"""Find unknown variables with a role's prefix, and placeholders in values.

Ansible ignores a mistyped variable: the role then runs with its default.
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
    """Return a problem for each variable with a role's prefix that is not an option, and for each placeholder.

    Values are not shown, because a mistyped variable may be a secret.
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
    """Yield the path and text of every string in a nested value."""
    if isinstance(value, str):
        yield key, value
    elif isinstance(value, Mapping):
        for name, item in value.items():
            yield from texts(item, f"{key}.{name}")
    elif isinstance(value, (list, tuple)):
        for index, item in enumerate(value):
            yield from texts(item, f"{key}[{index}]")
