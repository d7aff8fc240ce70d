"""What servers say is wrong with a request, each in its own shape, told in OpenAI's."""

import pytest

from gateway.openai.refusal import refusal


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        (b"<html>", None),
        (b"[1]", None),
        (b"{}", None),
        (b'{"error": {"type": "x"}}', None),
        (b'{"error": {"message": {"a": 1}}}', None),
        (b'{"detail": {"a": 1}}', None),
        (b'{"detail": []}', None),
        (b'{"error": {"message": "m", "code": true, "param": 3}}', ("m", "invalid_request_error", None, None)),
        (b'{"error": {"message": "m", "code": "Any Words"}}', ("m", "invalid_request_error", None, None)),
        (b'{"error": {"message": "m", "code": 400}}', ("m", "invalid_request_error", None, None)),
        (b'{"error": {"message": "m", "code": "busy", "type": "t"}}', ("m", "t", None, "busy")),
        (
            b'{"detail": [{"loc": ["body", "n"], "msg": "too many", "input": "SECRET"}]}',
            ("body.n: too many", "invalid_request_error", None, None),
        ),
    ],
)
def test_what_is_no_refusal_is_none_and_no_value_is_quoted(raw, said):
    found = refusal(raw)
    assert (found and tuple(found[name] for name in ("message", "type", "param", "code"))) == said
