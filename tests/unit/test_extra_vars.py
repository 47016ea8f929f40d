# SPDX-License-Identifier: Apache-2.0
"""Settings of the command line are read by the type of their option, and shown only if they are ours and no secret."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hyperpod_lifecycle.argument_specs import Option
from hyperpod_lifecycle.errors import InputError
from hyperpod_lifecycle.extra_vars import parse, shown

OPTIONS = {
    "own_version": Option("own", {"type": "str"}),
    "own_versions": Option("own", {"type": "list", "elements": "str"}),
    "own_count": Option("own", {"type": "int"}),
    "own_dict": Option("own", {"type": "dict"}),
    "own_secret": Option("own", {"type": "str", "no_log": True}),
    "own_accounts": Option("own", {"type": "list", "elements": "dict", "options": {"key": {"no_log": True}}}),
}


@pytest.mark.parametrize(
    ("word", "value"),
    [
        ("a_enabled=false", False),
        ("a_list=[1, x]", [1, "x"]),
        ("a_text=x=y", "x=y"),
        ("a_empty=", None),
        ("a_day=2026-01-02", "2026-01-02"),
        ("own_version=27.10", "27.10"),
        ("own_version='27.10'", "27.10"),
        ("own_version=2026-13-45", "2026-13-45"),
        ("own_version=no", "no"),
        ("own_version=*.log: [x", "*.log: [x"),
        ("own_version=", ""),
        ("own_versions=[27.10, no]", ["27.10", "no"]),
        ("own_count=3", 3),
        ("own_dict={a: true}", {"a": True}),
    ],
)
def test_a_value_is_read_by_the_type_of_its_option(word: str, value: Any) -> None:
    assert list(parse([word], OPTIONS).values()) == [value]


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("hunter2", "-e: number 1: it is not NAME=VALUE"),
        ("=hunter2", "it is not NAME=VALUE"),
        ("a-b=hunter2", "-e: a-b: it is not NAME=VALUE"),
        ("a=[hunter2", "-e: a: invalid YAML"),
        ("hyperpod_node_type=hunter2", "-e: hyperpod_node_type: read-only"),
        ("a=*hunter2", "-e: a: invalid YAML"),
        ("a=2026-13-45", "-e: a: invalid YAML"),
        ("a={2026-01-01: 1}", "-e: a: invalid YAML"),
        ("a=!!bool hunter2", "-e: a: invalid YAML"),
        ('a=!!int ""', "-e: a: invalid YAML"),
        ("a=!!timestamp a", "-e: a: invalid YAML"),
        ("a=!!python/object:hunter2", "-e: a: invalid YAML"),
        ("a=" + "[" * 2000, "-e: a: invalid YAML"),
    ],
)
def test_what_is_no_setting_is_refused_without_showing_it(word: str, expected: str) -> None:
    with pytest.raises(InputError, match=expected) as refused:
        parse([word], OPTIONS)
    assert "hunter2" not in str(refused.value)


@given(
    st.lists(
        st.text()
        | st.sampled_from(["a=", "own_version=", "own_count=", "own_versions="]).flatmap(
            lambda name: st.text().map(lambda text: name + text)
        )
    )
)
def test_any_words_are_settings_or_wrong_input(words: list[str]) -> None:
    try:
        values = parse(words, OPTIONS)
    except InputError:
        return
    assert len(list(shown(values, OPTIONS))) == 2 * len(values)


def test_only_values_of_our_options_that_are_no_secrets_are_shown() -> None:
    values = {
        "own_version": "27.10",
        "own_count": 3,
        "own_secret": "hunter2",
        "own_accounts": [],
        "my_token": "hunter2",
    }
    assert list(shown(values, OPTIONS)) == [
        *("-e", "own_version=27.10"),
        *("-e", "own_count=3"),
        *("-e", "own_secret=…"),
        *("-e", "own_accounts=…"),
        *("-e", "my_token=…"),
    ]
