"""A stream passed on by its texts alone says the same as one whose every chunk is parsed and rewritten."""

import asyncio
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic_core import to_json

from gateway.openai.repeated_chunk import RepeatedChunk
from gateway.openai.shape import DELTA, choices_of
from gateway.openai.stream_filter import StreamRewriter
from gateway.request.answer.received import ReceivedAnswer
from gateway.request.answer.relay import StreamRelay
from policy.errors import RedactionError
from policy.redact.actions.plan import RedactionPlan
from policy.redact.actions.pseudonyms import Pseudonyms
from policy.redact.redactor import Redactor
from tests.gateway.parts import call

REDACTOR = Redactor(RedactionPlan({"email": "pseudonymise"}, {"email": "mask", "iban": "mask"}))
HEAD = {"id": "x", "object": "chat.completion.chunk", "created": 1, "model": "small"}


def chunk(choice, *, spaced=False, ascii_only=True, **more):
    separators = (", ", ": ") if spaced else (",", ":")
    return json.dumps({**HEAD, **more, "choices": [choice]}, separators=separators, ensure_ascii=ascii_only).encode()


def says(text, field="content", index=0, **more):
    return {"index": index, "delta": {field: text}, "finish_reason": None, **more}


PIECES = st.sampled_from(
    ["Hel", "lo ", " write", " to carl@", "example.org", ".", "\n\n", 'a "b" \\', "Grö", "日本 ", "{}", ""]
)
CHOICES = st.one_of(
    PIECES.map(says),
    PIECES.map(says),
    PIECES.map(says),
    st.builds(says, PIECES, st.sampled_from(["content", "reasoning", "refusal"]), st.integers(0, 1)),
    st.builds(says, PIECES, logprobs=st.sampled_from([None, {"content": []}])),
    st.builds(
        lambda text: {"index": 0, "delta": {"role": "assistant", "content": text}, "finish_reason": None}, PIECES
    ),
    st.builds(lambda text: {"index": 0, "delta": {"content": text}, "finish_reason": "stop"}, PIECES),
    PIECES.map(lambda text: {"index": 0, "text": text}),
)
CHUNKS = st.lists(
    st.builds(chunk, CHOICES, spaced=st.booleans(), ascii_only=st.booleans(), usage=st.none()), min_size=1, max_size=24
)


def rewriter():
    table = Pseudonyms("k7f3ab")
    return StreamRewriter(lambda escaped: REDACTOR.stream_filter(table, json_escaped=escaped))


def one_by_one(payloads, *, filtered):
    """Every chunk parsed and rewritten by itself; the sent ones, parsed, and what was counted."""
    whole = rewriter() if filtered else None
    sent, template = [], None
    for payload in payloads:
        body = json.loads(payload)
        choices_of(body, DELTA)
        template = template or {name: body[name] for name in HEAD}
        sent += map(to_json, whole.rewrite(body)) if whole else [payload]
    sent += map(to_json, whole.end(template)) if whole else []
    return [json.loads(each) for each in sent]


def relayed(payloads, *, filtered):
    received = ReceivedAnswer()
    relay = StreamRelay(call(stream=True), received, rewriter() if filtered else None)

    async def source():
        for payload in payloads:
            yield b"data: " + payload + b"\n\n"
        yield b"data: [DONE]\n\n"

    async def collected():
        return b"".join([piece async for piece in relay.pieces(source())])

    events = asyncio.run(collected()).split(b"\n\n")
    return [json.loads(each[6:]) for each in events if each], received


@settings(max_examples=150, deadline=None)
@given(CHUNKS, st.booleans())
def test_repeated_chunks_say_what_they_say_one_by_one(payloads, filtered):
    try:
        expected = one_by_one(payloads, filtered=filtered)
    except RedactionError as refusal:  # an interrupted text went on into what is masked, and some of it was sent
        with pytest.raises(RedactionError, match=str(refusal)):
            relayed(payloads, filtered=filtered)
        return
    sent, received = relayed(payloads, filtered=filtered)
    assert sent == expected
    assert received.chunks_out == len(payloads)
    said = [json.loads(each)["choices"][0] for each in payloads]
    texts = [
        text for each in said for text in (*each.get("delta", {}).values(), each.get("text")) if text != "assistant"
    ]
    assert received.characters_out == sum(len(text or "") for text in texts)


def event(choice, **more):
    return b"data: " + chunk(choice, **more)


def test_a_chunk_is_repeated_only_where_its_text_alone_differs():
    known = RepeatedChunk.of(chunk(says("Hello")))
    assert known.text_in(event(says(' a "b"\n'))) == ' a "b"\n'
    assert json.loads(known.with_text("é\n").removeprefix(b"data: ")) == json.loads(chunk(says("é\n")))
    assert known.with_text("é\n").endswith(b"}\n\n")
    other = [
        says("x", "reasoning"), says("x", index=1), says("x", finish_reason="stop"), says(["x"]), says(None), says(""),
        {"index": 0, "delta": {"content": "x", "role": "assistant"}, "finish_reason": None},
        {"index": 0, "delta": {"content": "x"}, "finish_reason": None, "logprobs": {}},
    ]  # fmt: skip
    for choice in other:
        assert known.text_in(event(choice)) is None, choice
    assert known.text_in(event(says("x"), usage={"prompt_tokens": 1})) is None
    # What is between the two ends must be one string, however it is put there.
    before, after = known.before, known.after
    for between in (b'"x","role":"y"', b'"x"},"x":{"y":"z"', b"1", b"", b'"', b'"\n"', b'"x" "y"', b'"\xff"'):
        assert known.text_in(before + between + after) is None, between
    assert known.texts_in([event(says("a")), event(says("b"))]) == ["a", "b"]
    for odd in (before + b'"x"\n' + after, before + b'\n"x"' + after, event(says("")), b""):
        assert known.texts_in([event(says("a")), odd]) is None, odd


@pytest.mark.parametrize(
    "payload",
    [
        chunk(says("x"), usage={"prompt_tokens": 1}), chunk(says("x"), error="no"), chunk(says(""), usage=None),
        chunk({"index": 0, "delta": {}}), chunk({"index": 0, "delta": {"tool_calls": []}}), chunk({"index": -1}),
        chunk({"index": 0, "delta": {"content": "x"}, "text": "y"}), chunk({"index": True, "text": "y"}),
        chunk({"index": 0, "text": "y", "message": {}}), b"[]", b'{"choices":[]}', b'{"choices":{}}',
    ],
)  # fmt: skip
def test_what_says_more_than_one_text_is_not_repeated(payload):
    assert RepeatedChunk.of(payload) is None


@pytest.mark.parametrize(
    "payload",
    [
        b'{"choices":[{"index":0,"delta":{"content":"a","content":"b"}}]}',
        b'{"choices":[{"index":0,"delta":{"con\\u0074ent":"a","content":"b"}}]}',
        b'{"choices":[{"index":0,"delta":{"content":"a"},"delta":{"content":"b"}}]}',
        b'{"choices":[],"choices":[{"index":0,"delta":{"content":"b"}}]}',
        b'{"id":"a","id":"b","choices":[{"index":0,"delta":{"content":"b"}}]}',
    ],
)
def test_a_chunk_with_a_member_twice_is_not_repeated(payload):
    """Parsers differ in which one they take, and the bytes around a text are sent as they came."""
    assert RepeatedChunk.of(payload) is None
