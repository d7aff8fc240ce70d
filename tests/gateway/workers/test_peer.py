"""Requests and replies between two processes, both ways."""

import asyncio
import socket

import pytest

from gateway.workers import peer as module
from gateway.workers.peer import Peer, PeerGone


async def pair(ours=None, theirs=None):
    one, two = socket.socketpair()
    return await Peer.over(one, ours or {}), await Peer.over(two, theirs or {})


async def echo(given):
    return given


async def test_both_ends_ask_and_answer_at_once():
    async def double(given):
        await asyncio.sleep(0)
        return 2 * given

    one, two = await pair({"double": double}, {"echo": echo})
    answers = await asyncio.gather(
        *(one.ask("echo", n) for n in range(100)), *(two.ask("double", n) for n in range(100))
    )
    assert answers == [*range(100), *range(0, 200, 2)]
    await one.close()
    await two.close()


async def test_a_handler_may_ask_back_before_it_answers():
    ends = []

    async def asks_back(given):
        return await ends[1].ask("echo", given)

    ends += await pair({"echo": echo}, {"asks back": asks_back})
    assert await ends[0].ask("asks back", "said") == "said"
    for end in ends:
        await end.close()


async def test_a_large_message_passes_and_one_that_is_too_large_ends_the_connection(monkeypatch):
    one, two = await pair({}, {"echo": echo})
    assert await one.ask("echo", "x" * 5_000_000) == "x" * 5_000_000
    monkeypatch.setattr(module, "MAX_BYTES", 100)
    with pytest.raises(PeerGone):
        await one.ask("echo", "x" * 101)
    await one.close()
    await two.close()


@pytest.mark.parametrize("name", ["fails", "unknown"])
async def test_a_handler_that_fails_says_so_without_its_words_and_the_connection_goes_on(name, caplog):
    async def fails(given):
        raise ValueError("carl@example.org")

    one, two = await pair({}, {"fails": fails, "echo": echo})
    with pytest.raises(RuntimeError) as error:
        await one.ask(name, "x")
    assert "carl" not in str(error.value)
    assert await one.ask("echo", 1) == 1
    assert name in caplog.text
    await one.close()
    await two.close()


async def test_what_waits_for_the_other_end_ends_with_it():
    async def never(given):
        await asyncio.Event().wait()

    one, two = await pair({}, {"never": never})
    waiting = asyncio.create_task(one.ask("never"))
    await asyncio.sleep(0.01)
    await two.close()
    with pytest.raises(PeerGone):
        await waiting
    assert one.gone.is_set()
    with pytest.raises(PeerGone):
        await one.ask("never")
    await one.close()
