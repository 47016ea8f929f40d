# SPDX-License-Identifier: Apache-2.0
"""What stands where somebody should have filled in a value: the one definition for every input."""

from __future__ import annotations

import re

# An address in angle brackets, as in the comment of an ssh key, is no placeholder: hence no "@".
_MARK = re.compile(r"<[^<>@]*>|\$\{[^}]*\}|^PLACEHOLDER")
#: How tools print a value that is not there: `aws --output text`, jq, JavaScript, Go, a template without its variable.
_NOTHING = frozenset({"none", "null", "nil", "<nil>", "nan", "undefined", "tbd", "todo", "changeme"})


def mark(text: str) -> str | None:
    """The part of a text that a template left behind, such as ``<BUCKET>`` or ``${BUCKET}``."""
    found = _MARK.search(text)
    return found.group() if found else None


def placeholder(text: str) -> str | None:
    """The same, or the whole text if it only says that there is no value, such as ``None``.

    For keys that name one thing. In a free text, such as an option of a daemon, ``none`` can be meant.
    """
    return mark(text) or (text if text.strip().casefold() in _NOTHING else None)
