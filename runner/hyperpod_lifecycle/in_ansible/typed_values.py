# SPDX-License-Identifier: GPL-3.0-or-later
"""Render, check and convert the user's settings with Ansible, against the argument specs of all roles.

Roles validate their own arguments too, but only after earlier roles have changed the node. And they validate a copy:
the string "no" is accepted as a bool, and the role gets the string.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ansible.template
from ansible.errors import AnsibleError
from ansible.module_utils.common.arg_spec import ArgumentSpecValidator
from ansible.template import Templar

from hyperpod_lifecycle.argument_specs import CONTRACT, Declared, Option
from hyperpod_lifecycle.errors import Problem
from hyperpod_lifecycle.setting_names import texts
from hyperpod_lifecycle.variable_files import origin

#: Keys of an option that do not apply to a single value.
_NOT_OF_THE_VALUE = ("required", "description", "default")


#: Since ansible-core 2.19 files with templates must be marked as trusted.
_TRUSTED = {"trusted_as_template": True} if hasattr(ansible.template, "trust_as_template") else {}


@dataclass
class TypedValues:
    """The values of the options that the user sets, and the problems of those that are invalid."""

    values: dict[str, Any] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    untyped: list[Problem] = field(default_factory=list)  #: values that are valid only after conversion


def typed_values(variables: Mapping[str, Any], options: Declared, roles: Path, loader: Any) -> TypedValues:
    """Render and convert those of `variables` that are options of a role in `roles`."""
    defaults = _defaults(roles, loader)
    templar = Templar(loader, variables={**defaults, **variables})
    made = TypedValues()
    for name, option in options.items():
        if option.role == CONTRACT or name not in variables:
            continue
        where = origin(name, variables)
        try:
            rendered = templar.template(variables[name])
            if isinstance(rendered, Sequence) and not isinstance(rendered, (str, list, tuple)):
                rendered = str(rendered)  # before 2.19 a text of ansible-vault is opened here, and not by the template
        except AnsibleError as error:
            found = "it cannot be rendered" + ("" if option.is_secret else f": {str(error).splitlines()[0]}")
            made.problems.append(Problem(where, name, found, "correct the expression"))
            continue
        if rendered is None:
            if defaults.get(name) is not None:
                remedy = f"give it one of type {option.type}, or delete the line"
                made.problems.append(Problem(where, name, "it has no value", remedy))
            continue
        value, faults = _convert(name, option, rendered)
        made.problems += [Problem(where, name + key, found, remedy) for key, found, remedy in faults]
        if not faults:
            made.values[name] = value
            if option.type == "bool" and not isinstance(rendered, bool):
                made.untyped.append(Problem(where, name, "it is not a boolean", f"write: {str(value).lower()}"))
    return made


def truth(value: Any) -> bool:
    """Return a rendered boolean setting as a bool."""
    return bool(_convert("switch", Option("", {"type": "bool"}), value)[0])


@functools.cache
def _defaults(roles: Path, loader: Any) -> Mapping[str, Any]:
    defaults: dict[str, Any] = {}
    for path in sorted(roles.glob("*/defaults/main.yml")):
        defaults |= templates(path, loader)
    return defaults


def templates(path: Path, loader: Any) -> dict[str, Any]:
    """Return a YAML file of the collection, read as a role reads it because the loader caches it."""
    return (loader.load_from_file(str(path), **_TRUSTED) or {}) if path.exists() else {}


def _convert(name: str, option: Option, rendered: Any) -> tuple[Any, list[tuple[str, str, str]]]:
    """Return the converted value and, if it is invalid, where in it, what was found and what to do."""
    spec = {key: item for key, item in option.spec.items() if key not in _NOT_OF_THE_VALUE}
    lost = list(_lost(option.spec, rendered))
    if lost:
        return None, lost
    result = ArgumentSpecValidator({name: spec}).validate({name: rendered})
    if result.error_messages:
        hidden = "its value does not fit (it is a secret, so it is not shown)"
        remedy = f"its type is {option.type}: see the role's meta/argument_specs.yml"
        return None, [("", hidden if option.is_secret else message, remedy) for message in result.error_messages]
    value = _without_final_slash(option.spec, _given(rendered, result.validated_parameters[name]))
    wrong = [
        (key, "its text does not fit" if option.is_secret else f"found {text}", option.form_at(key).remedy)
        for key, text in texts(value)
        if not option.form_at(key).fits(text)
    ]
    return value, wrong


def _lost(spec: Mapping[str, Any], value: Any, key: str = "") -> Iterator[tuple[str, str, str]]:
    """Yield the strings that YAML has parsed as another type (27.10, no), so that the original text is lost."""
    kind = spec.get("type", "str")
    if kind in ("str", "path"):
        if isinstance(value, bool) or not isinstance(value, (str, int, type(None))):
            found = {bool: "a boolean", float: "a number"}.get(type(value), f"a {type(value).__name__}")
            yield key, f"found {found}, expected a string", "quote it"
    elif kind == "list" and isinstance(value, (list, tuple)):
        element = {"type": spec.get("elements", "raw"), "options": spec.get("options", {})}
        for index, item in enumerate(value):
            yield from _lost(element, item, f"{key}[{index}]")
    elif kind == "dict" and isinstance(value, Mapping):
        for name, item in value.items():
            if name in spec.get("options", {}):
                yield from _lost(spec["options"][name], item, f"{key}.{name}")


def _given(rendered: Any, validated: Any) -> Any:
    """Return the validated value without suboptions that the validator has added as None."""
    if isinstance(rendered, Mapping) and isinstance(validated, dict):
        return {key: _given(rendered[key], item) for key, item in validated.items() if key in rendered}
    if isinstance(rendered, (list, tuple)) and isinstance(validated, list):
        return [_given(*pair) for pair in zip(rendered, validated, strict=True)]
    return validated


def _without_final_slash(spec: Mapping[str, Any], value: Any) -> Any:
    """Remove final slashes of paths, because tasks compare paths as strings."""
    kind = spec.get("type", "str")
    if kind == "path" and isinstance(value, str):
        return value.rstrip("/") or value[:1]
    if kind == "list" and isinstance(value, list):
        element = {"type": spec.get("elements", "raw"), "options": spec.get("options", {})}
        return [_without_final_slash(element, item) for item in value]
    if kind == "dict" and isinstance(value, dict):
        options = spec.get("options", {})
        return {name: _without_final_slash(options.get(name, {"type": "raw"}), item) for name, item in value.items()}
    return value
