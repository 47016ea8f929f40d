# SPDX-License-Identifier: Apache-2.0
"""Read JSON files strictly and validate them with a schema; problems have file, key, finding and remedy.

Nothing here raises on invalid input. A reader collects :class:`~hyperpod_lifecycle.problems.Problems` and raises once,
so that the user sees all problems of all files at once.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path
from typing import Annotated, Any, NoReturn, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, ValidationError
from pydantic_core import PydanticCustomError

from .placeholders import mark, placeholder
from .problems import Problems, any_index, json_path, show

#: Maximum nesting. Real files have six levels; the limit makes all Python versions reject deeper files alike.
MAX_DEPTH = 64

_SURROGATE = re.compile("[\ud800-\udfff]")

#: Keys from the root of a document, as in pydantic.
Location = tuple[str | int, ...]


class Schema(BaseModel):
    """Base of the schemas of files: types are not converted, unknown keys are kept so that a note can name them."""

    model_config = ConfigDict(extra="allow", strict=True, frozen=True)


SchemaT = TypeVar("SchemaT", bound=Schema)


def _filled_in(value: object) -> object:
    if isinstance(value, str) and placeholder(value):
        raise PydanticCustomError("placeholder", "fill in the real value")
    return value


#: A string that names something; placeholders and texts such as ``None`` are invalid.
Text = Annotated[str, BeforeValidator(_filled_in)]


class _Object(dict[str, Any]):
    """A JSON object with duplicate keys."""

    twice: tuple[str, ...] = ()


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    # Keys that begin with "_" are comments: they are not checked and may be repeated.
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
    """Return the document in ``path``: strict JSON in UTF-8, with or without BOM, without duplicate keys.

    Keys beginning with ``_`` are comments and are dropped. Returns None after adding to ``problems``, and also if the
    file does not exist and is ``optional``. ``top`` has the valid types of the document.
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
    """Return position, finding and remedy of a syntax error, independent of the Python version."""
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
    """Check every key and string; return False if the document cannot be used. Placeholders alone do not prevent it."""
    usable = True
    # A location is a chain of (parent, step), rendered only if needed. Iterative, because the input sets the depth.
    stack: list[tuple[object, Any, int]] = [(document, None, 1)]
    while stack:
        value, chain, depth = stack.pop()
        if isinstance(value, str):
            if mark(value):
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
    schema: type[SchemaT], document: dict[str, Any], file: str, problems: Problems, at: Location = ()
) -> tuple[SchemaT | None, frozenset[str]]:
    """Return ``document`` as an instance of ``schema``, and its top-level keys with invalid values.

    Invalid keys are reported and omitted from the result, so that the others can be checked; if a required one is
    among them, the result is None. ``at`` is the location of the document in its file.
    """
    try:
        return schema.model_validate(document), frozenset()
    except ValidationError as error:
        faults = error.errors(include_url=False)
    for fault in faults:
        key = json_path((*at, *fault["loc"]))
        if fault["type"] == "missing":
            problems.add(file, key, "is missing", "add it")
        elif fault["type"] == "placeholder":
            problems.add(file, key, f"the placeholder {show(fault['input'])}", fault["msg"])
        else:
            expected = _EXPECTED.get(fault["type"])
            remedy = f"{expected} is expected" if expected else fault["msg"]
            problems.add(file, key, f"found {show(fault['input'])}", remedy)
    wrong = frozenset(str(fault["loc"][0]) for fault in faults)
    try:
        return schema.model_validate({key: value for key, value in document.items() if key not in wrong}), wrong
    except ValidationError:  # a required key is invalid, which is reported above
        return None, wrong


def unknown_keys(model: Schema) -> list[str]:
    """Return unknown keys, such as ``InstanceGroups[*].Instances[*].Rack``, once each, in the order of the file."""
    found: dict[Location, None] = {}
    _gather(model, (), found)
    return list(dict.fromkeys(any_index(json_path(location)) for location in found))


def _gather(model: Schema, at: Location, found: dict[Location, None]) -> None:
    # The schema limits the recursion.
    for key in model.model_extra or ():
        place = (*at, key)
        found[place] = None
    for name, field in type(model).model_fields.items():
        value = getattr(model, name)
        place = (*at, field.alias or name)
        if isinstance(value, Schema):
            _gather(value, place, found)
        elif isinstance(value, list) and value and isinstance(value[0], Schema):
            # All elements get the same index: 10,000 nodes with a new key are one note.
            for item in value:
                _gather(item, (*place, 0), found)
