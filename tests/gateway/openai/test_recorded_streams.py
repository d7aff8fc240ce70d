"""Recorded streams of many servers through one relay and one filter, cut anywhere."""

import asyncio
import json
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.openai.stream_filter import StreamRewriter
from gateway.request.answer.received import ReceivedAnswer
from gateway.request.answer.relay import StreamRelay
from policy.errors import RedactionBlocked
from tests.fakes.recorded_streams import MAIL, STREAMS, USAGE
from tests.gateway.openai.test_stream_filter import Assembled, make_filter
from tests.gateway.parts import call

each = pytest.mark.parametrize("stream", STREAMS, ids=lambda one: one.server)


def bytes_of(stream):
    events = [b"data: " + json.dumps(chunk).encode() + b"\n\n" for chunk in stream.chunks]
    return b"".join(events) + (b"data: [DONE]\n\n" if stream.done else b"")


async def relayed(stream, action, cuts=()):
    """What a client puts together, what was noted for meter and record, and the bytes."""
    received = ReceivedAnswer()
    relay = StreamRelay(call(stream=True), received, StreamRewriter(make_filter(action)) if action else None)
    data = bytes_of(stream)
    edges = [0, *sorted({cut % len(data) for cut in cuts}), len(data)]

    async def pieces():
        for start, end in pairwise(edges):
            yield data[start:end]

    sent = b"".join([piece async for piece in relay.pieces(pieces())])
    payloads = [block[6:] for block in sent.split(b"\n\n") if block]
    return Assembled(payloads), received, sent


@each
@given(cuts=st.lists(st.integers(0, 4000), max_size=6))
@settings(max_examples=4, deadline=None)
def test_the_client_puts_together_the_filtered_whole_whatever_server_it_was(stream, cuts):
    got, received, sent = asyncio.run(relayed(stream, "mask", cuts))
    said = {field: text for field, text in got.choices[0].items() if not field.startswith("name")}
    assert said == {field: text.replace(MAIL, "[EMAIL]") for field, text in stream.said.items()}
    fields = [field for field in got.order[0] if not field.startswith("name") and field != "reasoning_content"]
    assert fields == sorted(fields, key=list(dict.fromkeys(fields)).index)  # each is whole before the next begins
    assert got.ends == {0: stream.ends}
    assert received.finish_reasons == [stream.ends]
    if any(chunk.get("usage") for chunk in stream.chunks):
        assert received.usage.completion_tokens == USAGE["completion_tokens"]
    assert MAIL.encode() not in sent


@each
async def test_a_block_lets_nothing_of_it_pass(stream):
    with pytest.raises(RedactionBlocked):
        await relayed(stream, "block")


@each
async def test_without_a_filter_its_chunks_pass_as_they_are_but_for_usage(stream):
    received = ReceivedAnswer()
    relay = StreamRelay(call(stream=True), received, None)

    async def pieces():
        yield bytes_of(stream)

    sent = b"".join([piece async for piece in relay.pieces(pieces())])
    got = [json.loads(block[6:]) for block in sent.split(b"\n\n") if block]
    kept = [chunk for chunk in stream.chunks if chunk["choices"] or "usage" not in chunk]
    assert got == [{key: value for key, value in chunk.items() if key != "usage" or value is None} for chunk in kept]
