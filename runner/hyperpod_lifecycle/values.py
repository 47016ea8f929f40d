# SPDX-License-Identifier: GPL-3.0-or-later
"""The values of the user's variables, rendered and checked against every role's argument spec by Ansible itself.

Each role checks its own arguments too, but only when its turn comes: by then earlier roles have changed the node.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleError
from ansible.module_utils.common.arg_spec import ArgumentSpecValidator
from ansible.template import Templar

from hyperpod_lifecycle.errors import Problem
from hyperpod_lifecycle.settings import option_specs, origin, patterns

#: Its variables are the inventory plugin's, and its own argument spec comes first.
CONTRACT = "platform"


def wrong_values(variables: Mapping[str, Any], roles: Path, loader: Any) -> list[Problem]:
    """Every variable of a role in `roles` whose value is missing, cannot be rendered, or is not of its type."""
    defaults: dict[str, Any] = {}
    for path in sorted(roles.glob("*/defaults/main.yml")):
        defaults |= loader.load_from_file(str(path)) or {}
    templar = Templar(loader, variables={**defaults, **variables})
    looks = patterns(roles)
    return [
        Problem(origin(name, variables), name, found, remedy)
        for role, options in option_specs(roles).items()
        if role != CONTRACT
        for name, option in options.items()
        if name in variables
        for found, remedy in _faults(name, option, variables[name], templar, defaults.get(name), looks.get(name))
    ]


def _faults(
    name: str, option: Mapping[str, Any], raw: Any, templar: Any, default: Any, look: Mapping[str, str] | None
) -> Iterator[tuple[str, str]]:
    kind = str(option.get("type", "str"))
    spec = {key: item for key, item in option.items() if key not in ("required", "description", "default")}
    try:
        value = templar.template(raw)
        messages = [] if value is None else ArgumentSpecValidator({name: spec}).validate({name: value}).error_messages
    except AnsibleError as error:
        yield f"it cannot be rendered: {str(error).splitlines()[0]}", "correct the expression"
        return
    if value is None and default is not None:
        yield "it has no value", f"give it one of type {kind}, or delete the line"
    for message in messages:
        said = "its value does not fit (it is a secret, so it is not shown)" if option.get("no_log") else message
        yield said, f"its type is {kind}: see the role's meta/argument_specs.yml"
    if look and not messages and not re.fullmatch(look["pattern"], str(value)):
        yield f"found {value}", look["remedy"]
