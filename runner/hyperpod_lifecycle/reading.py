# SPDX-License-Identifier: Apache-2.0
"""What every reader of a JSON file shares: strict parsing, and problems that name file, key, finding and remedy.

Nothing here raises on bad input. A reader adds to :class:`Problems` until it has seen everything, then calls
:meth:`Problems.raise_any` once, so that a user meets all faults of both files in one run.
"""

from __future__ import annotations

import difflib
import json
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from .errors import InputError, Problem

#: Levels of objects and lists. Real files have six; the limit gives every Python the same answer to a nested bomb.
MAX_DEPTH = 64
#: Faults of one kind that are spelt out; 10,000 wrong addresses must not become 10,000 lines in CloudWatch.
LIKE_SHOWN = 10
#: Names that an error lists as known.
KNOWN_SHOWN = 20
#: Names among which a near one is looked for; each costs some microseconds.
NEAR_LOOKED_AT = 1000

#: What templates leave behind when nobody filled them in.
# An address in angle brackets, as in the comment of an ssh key, is no placeholder: hence no "@".
PLACEHOLDER = re.compile(r"<[^<>@]*>|\$\{[^}]*\}|^PLACEHOLDER")
_SURROGATE = re.compile("[\ud800-\udfff]")
_PLAIN_KEY = re.compile(r"[A-Za-z0-9_-]+")
_INDEX = re.compile(r"\[\d+\]")

#: Keys from the root of a document, as pydantic gives them.
Location = tuple[str | int, ...]


class Shape(BaseModel):
    """Base of the raw shapes: no conversion of types, unknown keys are kept so that they can be noted."""

    model_config = ConfigDict(extra="allow", strict=True, frozen=True)


ShapeT = TypeVar("ShapeT", bound=Shape)


class Problems:
    """Collects problems, one for each key: the first is the cause, later ones of that key only follow from it."""

    def __init__(self) -> None:
        self._kept: list[Problem] = []
        self._keys: set[tuple[str, str]] = set()
        self._kinds: Counter[tuple[str, str, str]] = Counter()

    def __len__(self) -> int:
        return len(self._keys)

    def add(self, file: str, key: str, found: str, remedy: str) -> None:
        """Record one fault: ``key`` is a JSON path, ``found`` what is there, ``remedy`` what is known or to be done."""
        if (file, key) in self._keys:
            return
        self._keys.add((file, key))
        kind = (file, any_index(key), remedy)
        self._kinds[kind] += 1
        if self._kinds[kind] <= LIKE_SHOWN:
            self._kept.append(Problem(file, key, found, remedy))

    def listed(self) -> list[Problem]:
        """Everything recorded; of many faults of one kind the first few and how many more there are."""
        more = (
            Problem(file, key, f"{count - LIKE_SHOWN} more of the same kind", remedy)
            for (file, key, remedy), count in self._kinds.items()
            if count > LIKE_SHOWN
        )
        return [*self._kept, *more]

    def raise_any(self) -> None:
        """Raise one :class:`InputError` with everything recorded; do nothing if nothing was."""
        if self._kept:
            raise InputError(self.listed())


def json_path(location: Iterable[str | int]) -> str:
    """``("worker_groups", 0, "partition_name")`` -> ``worker_groups[0].partition_name``; odd keys as ``["a b"]``."""
    path = ""
    for step in location:
        if isinstance(step, int):
            path += f"[{step}]"
        elif _PLAIN_KEY.fullmatch(step):
            path += f".{step}" if path else step
        else:
            path += f"[{show(step)}]"
    return path


def any_index(key: str) -> str:
    """``Instances[7].Label`` -> ``Instances[*].Label``: the same place in every element of a list."""
    return _INDEX.sub("[*]", key)


def show(value: object) -> str:
    """A found value for a message, short: scalars as JSON, containers by kind only (they may hold secrets)."""
    if isinstance(value, dict):
        return "an object"
    if isinstance(value, list):
        return "a list"
    if isinstance(value, str) and len(value) > 80:
        value = value[:77] + "..."
    if isinstance(value, int) and not isinstance(value, bool) and value.bit_length() > 256:
        return "a very long number"
    text = json.dumps(value, ensure_ascii=False)
    return text if text.isprintable() else json.dumps(value)


def known(names: Iterable[str]) -> str:
    """``a, b and 598 more`` for messages, always printable; ``none`` if there is nothing."""
    listed = list(names)
    text = ", ".join(name if name.isprintable() else show(name) for name in listed[:KNOWN_SHOWN]) or "none"
    rest = len(listed) - KNOWN_SHOWN
    return f"{text} and {rest} more" if rest > 0 else text


def nearest(name: str, names: Sequence[str]) -> str | None:
    """The known name that differs by case or a few letters only."""
    same = [other for other in names if other.casefold() == name.strip().casefold()]
    near = same or difflib.get_close_matches(name, names[:NEAR_LOOKED_AT], n=1)
    return near[0] if near else None


def did_you_mean(near: str | None) -> str:
    """``did you mean "brain"? `` with the blank, to put before what is known; nothing without a near name."""
    return "" if near is None else f"did you mean {show(near)}? "


class _Object(dict[str, Any]):
    """A JSON object in which keys came twice."""

    twice: tuple[str, ...] = ()


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    # A key that begins with "_" is a comment: nobody sees it, nobody checks it, and it may be repeated.
    pairs = [pair for pair in pairs if not pair[0].startswith("_")]
    plain = dict(pairs)
    if len(plain) == len(pairs):
        return plain
    marked = _Object(plain)
    marked.twice = tuple(key for key, count in Counter(key for key, _ in pairs).items() if count > 1)
    return marked


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def read_json(path: Path, problems: Problems, *, optional: bool = False, top: tuple[type, ...] = (dict,)) -> Any:
    """The document in ``path``: UTF-8 with or without BOM, any line ends, strict JSON, no key twice in an object.

    Keys beginning with ``_`` are comments and are dropped. Returns None after adding to ``problems``, and also where
    the file does not exist and is ``optional``. ``top`` says which types the document itself may have.
    """
    file = str(path)
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        if not optional:
            problems.add(file, "", "the file does not exist", "name the right file, or run where HyperPod has put it")
        return None
    except OSError as error:
        problems.add(file, "", f"cannot be read: {error.strerror}", "check the path and run as root")
        return None
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        utf16 = data[:2] in (b"\xff\xfe", b"\xfe\xff")
        where = _line_column(data[: error.start].decode("utf-8", "replace"))
        problems.add(
            file, where, "the text is UTF-16" if utf16 else "a byte that is not UTF-8", "save the file as UTF-8"
        )
        return None
    try:
        document = json.loads(text, object_pairs_hook=_object, parse_constant=_no_constant)
    except json.JSONDecodeError as error:
        problems.add(file, *_explain(text, error))
        return None
    except RecursionError:
        problems.add(file, "", f"nested deeper than {MAX_DEPTH} levels", "this is not a HyperPod file")
        return None
    except ValueError as error:  # NaN, Infinity, or a number of thousands of digits
        problems.add(file, "", f"is not JSON: {error}", "write a number or a string there")
        return None
    if not isinstance(document, top):
        expected = " or ".join("an object" if kind is dict else "a list" for kind in top)
        problems.add(file, "", f"the document is {show(document)}", f"{expected} is expected")
        return None
    return document if _check_values(file, document, problems) else None


def _line_column(before: str) -> str:
    line = before.count("\n") + 1
    return f"line {line} column {len(before) - (before.rfind(chr(10)) + 1) + 1}"


def _explain(text: str, error: json.JSONDecodeError) -> tuple[str, str, str]:
    """Position, finding and hint of a syntax error, alike on every Python (3.13 has its own words and places)."""
    position = error.pos
    before = text[:position].rstrip()
    here = text[position : position + 1]
    trailing = here in ("}", "]") and before.endswith(",")
    if trailing:
        position = len(before) - 1
    trailing = trailing or (here == "," and text[position + 1 :].lstrip()[:1] in ("}", "]"))
    where = _line_column(text[:position])
    if not text.strip():
        return where, "the file is empty", "write the JSON object that is expected there"
    if trailing:
        return where, "a comma after the last entry", "remove this comma (trailing comma); JSON allows none there"
    if text.startswith(("//", "/*", "#"), position):
        return where, "a comment", 'remove it; JSON has no comments, a key that begins with "_" can hold one'
    if here == "'":
        return where, "a single quote", 'JSON strings are written in double quotes (")'
    end = "the end of the file" if not here else show(here)
    if error.msg == "Expecting value":
        return where, f"{end} where a value is expected", "write the missing value"
    return where, f"{error.msg}, found {end}", "correct the JSON there"


def _check_values(file: str, document: object, problems: Problems) -> bool:
    """Look at every key and string once; False if the document is of no use (placeholders do not make it so)."""
    usable = True
    # A location is a chain of (parent, step); most are never rendered. No recursion: depth is the input's choice.
    stack: list[tuple[object, Any, int]] = [(document, None, 1)]
    while stack:
        value, chain, depth = stack.pop()
        if isinstance(value, str):
            if PLACEHOLDER.search(value):
                problems.add(file, _render(chain), f"the placeholder {show(value)}", "fill in the real value")
            elif not value.isascii() and _SURROGATE.search(value):
                usable = False
                problems.add(file, _render(chain), "half of a surrogate pair (\\ud800 to \\udfff)", "write a character")
        elif isinstance(value, (dict, list)):
            if depth > MAX_DEPTH:
                usable = False
                problems.add(file, "", f"nested deeper than {MAX_DEPTH} levels", "this is not a HyperPod file")
                continue
            if isinstance(value, list):
                stack.extend((value[index], (chain, index), depth + 1) for index in reversed(range(len(value))))
                continue
            if isinstance(value, _Object):
                usable = False
                for key in value.twice:
                    problems.add(file, _render((chain, key)), "the key is there more than once", "keep one of them")
            for key, item in reversed(value.items()):
                if not key.isascii() and _SURROGATE.search(key):
                    usable = False
                    problems.add(file, _render(chain), "a key with half of a surrogate pair", "rename this key")
                else:
                    stack.append((item, (chain, key), depth + 1))
    return usable


def _render(chain: Any) -> str:
    steps: list[str | int] = []
    while chain is not None:
        chain, step = chain
        steps.append(step)
    return json_path(reversed(steps))


_EXPECTED = {
    "string_type": "a string",
    "list_type": "a list",
    "dict_type": "an object",
    "model_type": "an object",
    "model_attributes_type": "an object",
    "int_type": "a whole number",
}


def parse(
    shape: type[ShapeT], document: dict[str, Any], file: str, problems: Problems, at: Location = ()
) -> tuple[ShapeT | None, frozenset[str]]:
    """``document`` as a ``shape``, and the top-level keys whose values were wrong.

    Wrong keys are reported and left out of the result, so that the remaining ones can still be checked; where that
    leaves a required key missing, the result is None. ``at`` is where the document sits in its file.
    """
    try:
        return shape.model_validate(document), frozenset()
    except ValidationError as error:
        faults = error.errors(include_url=False)
    for fault in faults:
        key = json_path((*at, *fault["loc"]))
        if fault["type"] == "missing":
            problems.add(file, key, "is missing", "add it")
        else:
            expected = _EXPECTED.get(fault["type"])
            remedy = f"{expected} is expected" if expected else fault["msg"]
            problems.add(file, key, f"found {show(fault['input'])}", remedy)
    wrong = frozenset(str(fault["loc"][0]) for fault in faults)
    try:
        return shape.model_validate({key: value for key, value in document.items() if key not in wrong}), wrong
    except ValidationError:  # a required key is among the wrong ones; that is reported above
        return None, wrong


def unknown_keys(model: Shape) -> list[str]:
    """Keys that no shape knows, each place once (``InstanceGroups[*].Instances[*].Rack``), in the order of the file."""
    found: dict[Location, None] = {}
    _gather(model, (), found)
    return list(dict.fromkeys(any_index(json_path(location)) for location in found))


def _gather(model: Shape, at: Location, found: dict[Location, None]) -> None:
    # Recursion is bounded by the shapes, not by the input.
    for key in model.model_extra or ():
        place = (*at, key)
        found[place] = None
    for name, field in type(model).model_fields.items():
        value = getattr(model, name)
        place = (*at, field.alias or name)
        if isinstance(value, Shape):
            _gather(value, place, found)
        elif isinstance(value, list) and value and isinstance(value[0], Shape):
            # Every element counts as the first one: 10,000 nodes with a new key are one note.
            for item in value:
                _gather(item, (*place, 0), found)
