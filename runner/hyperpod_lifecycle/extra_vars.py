# SPDX-License-Identifier: Apache-2.0
"""Parse settings given with `--extra-vars`."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import yaml

from hyperpod_lifecycle.argument_specs import Declared, Option
from hyperpod_lifecycle.errors import InputError, Problem


def parse(words: Iterable[str], options: Declared) -> dict[str, Any]:
    """Return the values of ``NAME=VALUE`` arguments as JSON data.

    Values are YAML, so ``false`` is a boolean; for options of type string, numbers are kept as written.
    Raises InputError without showing the value, which may be a secret.
    """
    found: dict[str, Any] = {}
    for position, word in enumerate(words, 1):
        name, equals, text = word.partition("=")
        if not (equals and name.isidentifier()):
            where = name if equals else f"number {position}"
            raise InputError([Problem("-e", where, "it is not NAME=VALUE", "write such as: -e slurm_log_size=100M")])
        if name.startswith("hyperpod_"):
            raise InputError([Problem("-e", name, "read-only: set by HyperPod's files", "leave it out")])
        try:
            found[name] = _value(text, options.get(name))
        except (yaml.YAMLError, ValueError, TypeError, LookupError, AttributeError, RecursionError):
            # Such as 2026-13-45, which looks like a date; PyYAML raises all of these.
            raise InputError([Problem("-e", name, "invalid YAML", "quote the value")]) from None
    return found


def _value(text: str, option: Option | None) -> Any:
    if option and option.type in ("str", "path") and text[:1] not in ("'", '"'):
        return text
    # A version such as 27.10 is kept as written.
    loader = yaml.BaseLoader if option and option.is_text else yaml.SafeLoader
    return json.loads(json.dumps(yaml.load(text, Loader=loader), default=str))  # noqa: S506 # both are safe


def shown(values: Mapping[str, Any], options: Declared) -> Iterator[str]:
    """Yield the arguments for the same settings, without the values of secrets and of unknown variables."""
    for name, value in values.items():
        public = name in options and not options[name].is_secret
        yield from ("-e", f"{name}={value if isinstance(value, str) else json.dumps(value)}" if public else f"{name}=…")
