# SPDX-License-Identifier: Apache-2.0
"""Whatever lies in the files: a Cluster, or one InputError that names file, key, finding and remedy. Nothing else."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hyperpod_lifecycle.cluster import Cluster, load
from hyperpod_lifecycle.create_cluster import read_create_cluster
from hyperpod_lifecycle.errors import InputError

CASES = Path(__file__).parent / "cases"
CONFIG = (CASES / "07-resource_config-api-driven-INFERRED.json").read_bytes()
PARAMETERS = (
    (CASES / "04-lustre-and-openzfs.provisioning_parameters.json")
    .read_bytes()
    .replace(b'"workload', b'"login_group": "door", "slurm_configurations": {"slurm_sns_arn": ""}, "workload')
)
REQUEST = (CASES / "08-create_cluster-api-driven.json").read_bytes()

T = TypeVar("T")

# The folder is shared by the examples of one test, each of which writes both files anew.
many = settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])

scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text()
    | st.sampled_from(
        ["", " ", "<X>", "${X}", "brain", "Brain", "\ud800", "a\nb", "slurm", "Compute", "::1", "10.20.0.5"]
    )
)
values = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3)
)


def outcome(reader: Callable[[], T]) -> T | InputError:
    """What a reader returns, or its InputError, which must be fit for any log; any other exception ends the test."""
    try:
        return reader()
    except InputError as error:
        caught = error
    assert caught.problems
    for problem in caught.problems:
        assert Path(problem.file).suffix == ".json"
        assert problem.found
        assert problem.remedy
        assert str(problem).isprintable()
        str(problem).encode()
    return caught


def read(folder: Path, config: bytes, parameters: bytes | None) -> Cluster | InputError:
    """What ``load`` makes of these two documents."""
    files = folder / "resource_config.json", folder / "provisioning_parameters.json"
    files[0].write_bytes(config)
    files[1].unlink(missing_ok=True)
    if parameters is not None:
        files[1].write_bytes(parameters)
    result = outcome(lambda: load(*files))
    if isinstance(result, Cluster):
        assert all(result.node_by_name(instance.name).instance is instance for instance in result.instances)
        assert all(note.isprintable() for note in result.notes)
    return result


def places(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield at
    steps = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for step, item in steps:
        yield from places(item, (*at, step))


def put(document: Any, place: tuple[Any, ...], value: Any) -> Any:
    if not place:
        return value
    document = copy.deepcopy(document)
    parent = document
    for step in place[:-1]:
        parent = parent[step]
    parent[place[-1]] = value
    return document


def mutated(original: bytes) -> st.SearchStrategy[bytes]:
    """The document with any JSON value in any one place."""
    document = json.loads(original)
    changed = st.builds(put, st.just(document), st.sampled_from(list(places(document))), values)
    return changed.map(lambda value: json.dumps(value).encode())


def mangled(original: bytes) -> st.SearchStrategy[bytes]:
    """The document with any bytes in place of any few."""
    start = st.integers(0, len(original))

    def cut(at: int, length: int, new: bytes) -> bytes:
        return original[:at] + new + original[at + length :]

    fragments = st.binary(max_size=4) | st.sampled_from(
        [b",", b"//", b"}", b"]", b'"', b"NaN", b"\\ud800", b"9" * 5000]
    )
    return st.builds(cut, start, st.integers(0, 12), fragments)


def test_the_unharmed_documents_are_good(tmp_path: Path) -> None:
    assert isinstance(read(tmp_path, CONFIG, PARAMETERS), Cluster)
    assert isinstance(read(tmp_path, CONFIG, None), Cluster)


@many
@given(document=mutated(CONFIG), both=st.booleans())
def test_any_value_in_resource_config(tmp_path: Path, document: bytes, both: bool) -> None:
    read(tmp_path, document, PARAMETERS if both else None)


@many
@given(document=mutated(PARAMETERS))
def test_any_value_in_parameters(tmp_path: Path, document: bytes) -> None:
    read(tmp_path, CONFIG, document)


@many
@given(config=mangled(CONFIG), parameters=mangled(PARAMETERS))
def test_mangled_bytes(tmp_path: Path, config: bytes, parameters: bytes) -> None:
    read(tmp_path, config, parameters)


@many
@given(config=st.binary(), parameters=values.map(lambda value: json.dumps(value).encode()))
def test_other_documents(tmp_path: Path, config: bytes, parameters: bytes) -> None:
    assert isinstance(read(tmp_path, config, parameters), InputError)


@many
@given(document=mutated(REQUEST) | mangled(REQUEST))
def test_mangled_request(tmp_path: Path, document: bytes) -> None:
    file = tmp_path / "create_cluster.json"
    file.write_bytes(document)
    assert outcome(lambda: read_create_cluster(file))


@many
@given(length=st.integers(0, len(PARAMETERS.rstrip()) - 1))
def test_truncated(tmp_path: Path, length: int) -> None:
    error = read(tmp_path, CONFIG, PARAMETERS[:length])
    assert isinstance(error, InputError)
    (problem,) = error.problems
    assert problem.key.startswith("line ")


@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
@pytest.mark.parametrize("end", [b"\n", b"\r\n"])
def test_byte_order_mark_and_line_ends_are_accepted(tmp_path: Path, mark: bytes, end: bytes) -> None:
    config, parameters = (mark + document.replace(b"\n", end) for document in (CONFIG, PARAMETERS))
    assert isinstance(read(tmp_path, config, parameters), Cluster)


@pytest.mark.parametrize("end", [b"\n", b"\r\n"])
def test_line_and_column_do_not_depend_on_line_ends(tmp_path: Path, end: bytes) -> None:
    broken = (CASES / "11-broken" / "trailing-comma.json").read_bytes().replace(b"\n", end)
    error = read(tmp_path, CONFIG, b"\xef\xbb\xbf" + broken)
    assert isinstance(error, InputError)
    assert [problem.key for problem in error.problems] == ["line 3 column 30"]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (b'{"a": 1, "b": {"c": 1, "c": 2}}', "more than once"),
        (b'{"version": "1", "version": "1"}', "more than once"),
        (b'{"version": "\xff"}', "not UTF-8"),
        ('{"version": "1"}'.encode("utf-16"), "UTF-16"),
        (b"[" * 100_000, "nested deeper"),
        (b'{"a": ' * 100_000, "nested deeper"),
        (b'{"a": ' * 100 + b"1" + b"}" * 100, "nested deeper"),
        (b'{"a": NaN}', "NaN is not JSON"),
        (b'{"a": ' + b"9" * 10_000 + b"}", "not JSON"),
        (b'{"a": "\\ud800"}', "surrogate"),
        (b'{"\\udfff": 1}', "surrogate"),
        (b"", "the file is empty"),
        (b" \n", "the file is empty"),
        (b"{'a': 1}", "a single quote"),
        (b'{"a": [1, ]}', "a comma after the last entry"),
        (b'{"a": 1 /* one */}', "a comment"),
        (b"{} {}", "Extra data"),
        (b"[]", "the document is a list"),
        (b"null", "the document is null"),
    ],
    ids=lambda value: value[:20] if isinstance(value, str) else "",
)
def test_what_is_wrong_is_said(tmp_path: Path, text: bytes, found: str) -> None:
    error = read(tmp_path, CONFIG, text)
    assert isinstance(error, InputError)
    assert found in error.problems[0].found
