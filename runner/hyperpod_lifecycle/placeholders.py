# SPDX-License-Identifier: Apache-2.0
"""Detect placeholders, which somebody should have replaced by a value, in any input."""

from __future__ import annotations

import re

# Without "@": an e-mail address in angle brackets, as in the comment of an ssh key, is not a placeholder.
_MARK = re.compile(r"<[^<>@]*>|\$\{[^}]*\}|^PLACEHOLDER")
#: How tools print a missing value: `aws --output text`, jq, JavaScript, Go, templates.
_NOTHING = frozenset({"none", "null", "nil", "<nil>", "nan", "undefined", "tbd", "todo", "changeme"})


def mark(text: str) -> str | None:
    """Return the first template mark in a text, such as ``<BUCKET>`` or ``${BUCKET}``, or None."""
    found = _MARK.search(text)
    return found.group() if found else None


def placeholder(text: str) -> str | None:
    """Return the first template mark, or the whole text if it means a missing value, such as ``None``; else None.

    For keys that name one thing. In other texts, such as a daemon's option, ``none`` can be a value.
    """
    return mark(text) or (text if text.strip().casefold() in _NOTHING else None)
