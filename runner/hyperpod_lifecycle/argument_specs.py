# SPDX-License-Identifier: Apache-2.0
"""The options of every role, from `meta/argument_specs.yml` and `meta/patterns.yml`."""

from __future__ import annotations

import functools
import importlib.util
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

COLLECTION = "hyperpod.lifecycle"

#: The role whose variables the inventory plugin sets from HyperPod's files; users cannot set them.
CONTRACT = "platform"


@dataclass(frozen=True)
class Form:
    """The format of an option's strings, from `meta/patterns.yml`; argument specs cannot express it."""

    pattern: str | Sequence[str] = ".*"  #: one pattern, or several of which one must match
    remedy: str = ""
    placeholders: bool = False  #: whether ``${…}`` and the like are part of the syntax

    def fits(self, text: str) -> bool:
        patterns = [self.pattern] if isinstance(self.pattern, str) else self.pattern
        return any(re.fullmatch(pattern, text, re.DOTALL) for pattern in patterns)


@dataclass(frozen=True)
class Option:
    """One option of one role."""

    role: str
    spec: Mapping[str, Any] = field(default_factory=dict)  #: as in the argument spec
    form: Form = Form()
    parts: Mapping[str, Form] = field(default_factory=dict)  #: formats by name of suboption

    def form_at(self, key: str) -> Form:
        """Return the format of the string at a key such as ``[0].mount_path``: the suboption's or the option's."""
        names = re.findall(r"\.(\w+)", key)
        return self.parts.get(names[-1], self.form) if names else self.form

    @property
    def type(self) -> str:
        return str(self.spec.get("type", "str"))

    @property
    def is_text(self) -> bool:
        """Whether the value is a string or a list of strings."""
        return (self.spec.get("elements", "str") if self.type == "list" else self.type) in ("str", "path")

    @property
    def is_secret(self) -> bool:
        """Whether the value, or a part of it, must not be shown."""
        return _is_secret(self.spec)


Declared = Mapping[str, Option]


@functools.cache
def declared(roles: Path) -> Declared:
    """Return every option of the roles in the directory `roles`, by name."""
    found: dict[str, Option] = {}
    for path in sorted(roles.glob("*/meta/argument_specs.yml")):
        role = path.parents[1].name
        patterns = path.with_name("patterns.yml")
        forms = _load(patterns) if patterns.is_file() else {}
        for entry_point in _load(path)["argument_specs"].values():
            for name, spec in entry_point.get("options", {}).items():
                parts = {
                    key.rpartition(".")[2]: Form(**form) for key, form in forms.items() if key.startswith(f"{name}.")
                }
                found[name] = Option(role, spec, Form(**forms.get(name, {})), parts)
    return found


def roles_of_the_collection() -> Path:
    """Return the collection's directory of roles; raise ImportError if the collection is not on Python's path."""
    found = importlib.util.find_spec(f"ansible_collections.{COLLECTION}")
    if found is None or not found.submodule_search_locations:
        raise ImportError(f"the collection {COLLECTION} is not installed with this package")
    return Path(next(iter(found.submodule_search_locations))) / "roles"


def _load(path: Path) -> Any:
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # ten times as fast as safe_load
    return yaml.load(path.read_bytes(), Loader=loader)  # noqa: S506 # both are safe


def _is_secret(spec: Mapping[str, Any]) -> bool:
    return bool(spec.get("no_log")) or any(map(_is_secret, spec.get("options", {}).values()))
