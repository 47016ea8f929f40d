# SPDX-License-Identifier: Apache-2.0
"""The user's variables checked against every role's argument spec, before anything changes.

Ansible itself accepts a mistyped variable in silence: the role then runs with its default.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from hyperpod_lifecycle.errors import InputError, Problem
from hyperpod_lifecycle.placeholders import mark

#: What an inventory directory may hold for Ansible besides the source itself.
VARIABLE_FOLDERS = ("group_vars", "host_vars")


def option_specs(roles: Path) -> dict[str, dict[str, Any]]:
    """Each role below `roles` and the options of its argument spec, over all entry points."""
    found: dict[str, dict[str, Any]] = {}
    for spec in sorted(roles.glob("*/meta/argument_specs.yml")):
        entry_points = yaml.safe_load(spec.read_text(encoding="utf-8"))["argument_specs"].values()
        found[spec.parents[1].name] = {
            name: option for entry in entry_points for name, option in entry.get("options", {}).items()
        }
    return found


def known_variables(roles: Path) -> dict[str, frozenset[str]]:
    """Each role below `roles` and the variables its argument spec knows."""
    return {role: frozenset(options) for role, options in option_specs(roles).items()}


def origin(name: str, variables: Mapping[str, Any]) -> str:
    """The files of the inventory that set `name`, for a message; `variables` are Ansible's for the host."""
    folder = Path(str(variables.get("inventory_dir") or ""))
    line = re.compile(rf"^[\"']?{re.escape(name)}[\"']?[ \t]*:", re.MULTILINE)
    found = [
        str(path) for path in variable_files(folder) if line.search(path.read_text(encoding="utf-8", errors="replace"))
    ]
    return " and ".join(found) or "-e or the inventory"


def variable_files(inventory: Path) -> list[Path]:
    """The user's variables, as Ansible looks for them; under the user's own name where a run has linked the folder."""
    folders = (inventory / name for name in VARIABLE_FOLDERS)
    named = (folder.readlink() if folder.is_symlink() else folder for folder in folders)
    found = (path for folder in named for path in sorted((inventory / folder).rglob("*")))
    return [path for path in found if path.is_file() and path.suffix in ("", ".yml", ".yaml", ".json")]


def parse_extra_vars(words: Iterable[str]) -> dict[str, Any]:
    """``NAME=VALUE`` words of the command line; a value is YAML, so that ``false`` is no string, and fit for JSON."""
    found: dict[str, Any] = {}
    for word in words:
        name, equals, text = word.partition("=")
        try:
            value = json.loads(json.dumps(yaml.safe_load(text), default=str))
        except yaml.YAMLError as error:
            raise InputError([Problem("-e", name, "its value is no YAML", "quote it")]) from error
        if not (equals and name.isidentifier()):
            raise InputError([Problem("-e", word, "it is not NAME=VALUE", "write such as: -e slurm_log_size=100M")])
        if name.startswith("hyperpod_"):
            raise InputError([Problem("-e", name, "the platform's files say this, and nobody else", "leave it out")])
        found[name] = value
    return found


def patterns(roles: Path) -> dict[str, dict[str, str]]:
    """What the texts of some variables must look like: pattern and remedy, from every role's meta/patterns.yml."""
    found: dict[str, dict[str, str]] = {}
    for path in sorted(roles.glob("*/meta/patterns.yml")):
        found |= yaml.safe_load(path.read_text(encoding="utf-8"))
    return found


def problems(variables: Mapping[str, Any], known: Mapping[str, frozenset[str]]) -> list[Problem]:
    """Every variable that carries a role's prefix without being one of its options, and every placeholder.

    Values are not shown: a mistyped name may well hold a secret.
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
            found.append(Problem(origin(name, variables), name, "no role has this variable", hint))
        found += (
            Problem(
                origin(name, variables),
                name + key,
                f"a placeholder was left in: {left}",
                "put the real value there or delete the line",
            )
            for key, text in _texts(value)
            if (left := mark(text))
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
