"""What large answers hold of a gateway's memory is bounded for all together, and comes back however they ended."""

import asyncio
from contextlib import suppress

import pytest

from gateway.errors import AnswerMemoryFull, BackendFailed, BackendTimeout
from gateway.request.answer.received import ReceivedAnswer
from gateway.request.answer.relay import StreamRelay
from gateway.upstream.answer_memory import SMALL, AnswerMemory, AnswerShare
from gateway.upstream.client import BackendAnswer
from tests.gateway.parts import call

MB = 1 << 20


class Response:
    """A body of `count` megabytes, that ends as `end` says."""

    def __init__(self, count, end=None):
        self.count, self.end = count, end

    async def pieces(self, *_):
        for _ in range(self.count):
            yield b"x" * MB
            await asyncio.sleep(0)
        if self.end is not None:
            raise self.end


def test_answers_of_up_to_a_megabyte_are_not_counted():
    memory = AnswerMemory()
    AnswerShare(memory, "acme").holds(SMALL)
    assert memory.held == 0


def test_an_answer_that_finds_no_memory_is_refused_with_what_to_do_and_keeps_what_it_had():
    memory = AnswerMemory(8 * MB, 8 * MB)
    first, second = AnswerShare(memory, "acme"), AnswerShare(memory, "beta")
    first.holds(5 * MB)
    second.holds(3 * MB)
    with pytest.raises(AnswerMemoryFull, match="; ask for shorter answers") as refused:
        second.holds(4 * MB)
    assert refused.value.http_status == 503 and memory.held == 8 * MB
    first.give_back()
    second.holds(4 * MB)
    assert memory.held == 4 * MB == memory.of_tenant("beta") and memory.of_tenant("acme") == 0


def test_one_tenant_cannot_take_all_of_it():
    memory = AnswerMemory(8 * MB, 4 * MB)
    AnswerShare(memory, "acme").holds(4 * MB)
    with pytest.raises(AnswerMemoryFull):
        AnswerShare(memory, "acme").holds(2 * MB)
    AnswerShare(memory, "beta").holds(4 * MB)


def test_what_is_given_back_twice_is_free_once():
    memory = AnswerMemory()
    one, other = AnswerShare(memory, "acme"), AnswerShare(memory, "acme")
    one.holds(3 * MB)
    other.holds(2 * MB)
    one.give_back()
    one.give_back()
    assert memory.held == 2 * MB


async def test_endless_whole_answers_at_once_hold_no_more_than_the_bound():
    memory, most = AnswerMemory(16 * MB, 16 * MB), 0

    async def read():
        nonlocal most
        share = AnswerShare(memory, "acme")
        try:
            await BackendAnswer(Response(100), 1.0).body(64 * MB, share)
        finally:
            most = max(most, memory.held)
            share.give_back()

    ended = await asyncio.gather(*(read() for _ in range(20)), return_exceptions=True)
    assert {type(each) for each in ended} <= {AnswerMemoryFull, BackendFailed}
    assert AnswerMemoryFull in {type(each) for each in ended}
    assert MB < most <= 16 * MB and memory.held == 0


@pytest.mark.parametrize("end", [None, BackendFailed("cut"), BackendTimeout("silent"), asyncio.CancelledError()])
async def test_a_received_answer_gives_all_back_however_it_ended(end):
    memory = AnswerMemory()
    received = ReceivedAnswer(share=AnswerShare(memory, "acme"))
    with suppress(BackendFailed, BackendTimeout, asyncio.CancelledError):
        await BackendAnswer(Response(3, end), 1.0).body(64 * MB, received.share)
    assert memory.held == 3 * MB
    received.give_back()
    assert memory.held == 0


async def streamed(memory, pieces):
    """Relay one stream of `pieces`, and yield after each."""
    received = ReceivedAnswer(share=AnswerShare(memory, "acme"))

    async def source():
        for piece in pieces:
            yield piece

    async for _ in StreamRelay(call(stream=True), received, None).pieces(source()):
        yield received


async def test_large_events_of_streams_are_counted_together():
    memory = AnswerMemory(6 * MB, 6 * MB)
    streams = [streamed(memory, [b"data: " + b"x" * (MB + MB // 2), b"x" * MB, b"x"]) for _ in range(3)]
    for stream in streams * 2:
        await anext(stream)
    assert 4 * MB < memory.held <= 6 * MB
    with pytest.raises(AnswerMemoryFull):
        for stream in streams:
            await anext(stream)


async def test_an_event_that_is_complete_is_no_longer_held():
    memory = AnswerMemory()
    large = b'data: {"choices": [], "x": "' + b"x" * 3 * MB
    stream = streamed(memory, [large, b'"}\n\n', b"data: "])
    await anext(stream)
    await anext(stream)
    assert memory.held > 3 * MB  # the client has not taken it
    with suppress(BackendFailed, StopAsyncIteration):
        await anext(stream)
    assert memory.held == 0


def test_an_answer_without_a_share_gives_nothing_back():
    assert ReceivedAnswer().give_back() is None
