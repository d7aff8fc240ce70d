import json
from pathlib import Path

import pytest
import rfc8785
from hypothesis import given, settings
from hypothesis import strategies as st

from audit.errors import CanonicalError
from audit.events.canonical import MAX_INTEGER, canonicalize, parse_canonical
from tests.audit.conftest import VECTORS

INPUTS = sorted((VECTORS / "jcs-rfc8785/input").glob("*.json"))

plain = st.recursive(
    st.none() | st.booleans() | st.integers(-MAX_INTEGER, MAX_INTEGER) | st.text(),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(st.characters(max_codepoint=127)), inner, max_size=4)
    ),
    max_leaves=20,
)
anything = st.recursive(
    plain | st.floats(-1e15, 1e15) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@pytest.mark.parametrize("file", INPUTS, ids=lambda file: file.stem)
def test_public_vectors_come_out_as_their_authors_say(file: Path) -> None:
    wanted = (VECTORS / "jcs-rfc8785/output" / file.name).read_bytes()
    assert canonicalize(json.loads(file.read_bytes())) == wanted


@settings(deadline=None)
@given(plain)
def test_the_fast_path_writes_what_the_reference_implementation_writes(value: object) -> None:
    assert canonicalize(value) == rfc8785.dumps(value)


@settings(deadline=None)
@given(anything)
def test_any_value_is_read_back_as_it_was_written(value: object) -> None:
    assert canonicalize(parse_canonical(canonicalize(value))) == canonicalize(value)


def test_names_beyond_the_basic_plane_sort_by_utf16_code_unit() -> None:
    assert canonicalize({"\ufb33": 1, "\U0001f600": 2}) == '{"\U0001f600":2,"\ufb33":1}'.encode()


@pytest.mark.parametrize(
    "value",
    [
        float("nan"),
        float("inf"),
        MAX_INTEGER + 1,
        -MAX_INTEGER - 1,
        "\ud800",
        {"\ud800": 1},
        {1: "a"},
        {"a": {2, 3}},
        b"x",
    ],
    ids=repr,
)
def test_a_value_without_a_canonical_form_is_refused(value: object) -> None:
    with pytest.raises(CanonicalError):
        canonicalize(value)


def test_a_value_nested_beyond_reason_is_refused() -> None:
    value: list[object] = []
    for _ in range(100_000):
        value = [value]
    with pytest.raises(CanonicalError):
        canonicalize(value)
    with pytest.raises(CanonicalError):
        parse_canonical(b"[" * 100_000 + b"]" * 100_000)


@pytest.mark.parametrize(
    "data",
    [
        b'{"a":1,"a":1}',
        b'{"b":1,"a":2}',
        b'{"a": 1}',
        b'{"a":1}\n',
        b'"\\u00e9"',
        b"1.0",
        b"1e2",
        b"NaN",
        b"",
        b"\xff",
        b"{",
    ],
    ids=repr,
)
def test_json_in_any_other_form_is_refused(data: bytes) -> None:
    with pytest.raises(CanonicalError):
        parse_canonical(data)
