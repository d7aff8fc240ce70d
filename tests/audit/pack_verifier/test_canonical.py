"""A record is taken in one form of its bytes only."""

import pytest

from audit.pack_verifier.canonical import canonical
from audit.pack_verifier.fault import Broken


def test_canonical_bytes_are_read() -> None:
    assert canonical('{"a":[1,true,null],"b":"caf\u00e9 \u20ac"}'.encode()) == {
        "a": [1, True, None],
        "b": "caf\u00e9 \u20ac",
    }


@pytest.mark.parametrize(
    "data",
    [
        b'{"b":1,"a":2}',
        b'{"a": 1}',
        b'{"a":1}\n',
        b'{"a":1,"a":1}',
        b'{"a":"\\u0041"}',
        b'{"a":01}',
        b'{"a":-0}',
        b"\xef\xbb\xbf{}",
    ],
)
def test_the_same_value_in_other_bytes_is_refused(data: bytes) -> None:
    with pytest.raises(Broken):
        canonical(data)


@pytest.mark.parametrize(
    "data", [b"", b"\xff", b'{"a":1.5}', b'{"a":1e3}', b'{"a":NaN}', b'{"a":Infinity}', b"[" * 99_999]
)
def test_what_is_not_json_of_whole_numbers_is_refused(data: bytes) -> None:
    with pytest.raises(Broken, match="not JSON of this format"):
        canonical(data)
