import json

import pytest

from gateway.errors import InvalidRequest
from gateway.openai.endpoint import CHAT, COMPLETIONS, parse_call

GOOD = {"model": "m", "messages": [{"role": "user", "content": "my secret is 4711"}]}


def refusal(body, endpoint=CHAT):
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    with pytest.raises(InvalidRequest) as caught:
        parse_call(endpoint, raw)
    return caught.value


def test_a_good_call_keeps_fields_nobody_here_knows():
    call = parse_call(CHAT, json.dumps({**GOOD, "guided_json": {"type": "object"}, "top_k": 5}).encode())
    assert call.body["guided_json"] == {"type": "object"}
    assert (call.model, call.stream, call.most_tokens(7)) == ("m", False, 7)


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"messages": "hello"}, "messages"),
        ({"messages": []}, "messages"),
        ({"messages": [{"content": "x"}]}, "messages.0.role"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages.0.content"),
        ({"temperature": 9}, "temperature"),
        ({"temperature": "hot"}, "temperature"),
        ({"stream": "yes"}, "stream"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"n": 0}, "n"),
        ({"model": ""}, "model"),
        ({"stop": ["a"] * 17}, "stop"),
    ],
)
def test_a_wrong_field_is_named(change, param):
    error = refusal({**GOOD, **change})
    assert error.param == param
    assert error.http_status == 400
    assert "4711" not in error.message


@pytest.mark.parametrize(
    "raw",
    [b"", b"{", b'{"model": "m", "messages": [', b"\xff\xfe", b'{"model":"\xff"}', b"[]", b"null", b'"x"', b"nul"],
)
def test_what_is_not_a_json_object_is_refused(raw):
    assert refusal(raw).http_status == 400


def test_a_lone_surrogate_is_refused_and_never_replaced():
    refusal(b'{"model":"m","messages":[{"role":"user","content":"\\ud800"}]}')


def test_a_missing_field_is_named():
    assert refusal({"model": "m"}).param == "messages"
    assert refusal({"model": "m"}, COMPLETIONS).param == "prompt"


def test_nesting_without_end_is_refused_not_a_crash():
    deep = b'{"model":"m","messages":[{"role":"user","content":"x"}],"x":' + b"[" * 100_000 + b"]" * 100_000 + b"}"
    refusal(deep)


def test_the_leading_text_is_the_start_of_the_prompt():
    assert parse_call(CHAT, json.dumps(GOOD).encode()).leading_text == "usermy secret is 4711"
    assert parse_call(COMPLETIONS, b'{"model":"m","prompt":"Once"}').leading_text == "Once"
