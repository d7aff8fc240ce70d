"""One request's events, as the engine's steps bring them."""

import asyncio

import pytest

from backend.engine.core.progress import Finish, Progress
from backend.process.call import Call


def call_of(*ids: int) -> Call:
    return Call(lambda _: None, ids)


async def test_tokens_behind_a_stop_string_in_the_same_step_are_dropped_and_the_other_choice_goes_on() -> None:
    call = call_of(10, 11)
    for id, token in ((10, 1), (11, 2), (10, 3), (10, 4), (11, 5)):
        call.deliver(Progress(id, token, None, 0))
    index, progress = await call.next_event()
    assert (index, progress.token) == (0, 1)
    call.stop(0)
    assert [(i, p.token) for i, p in [await call.next_event(), await call.next_event()]] == [(1, 2), (1, 5)]
    call.deliver(Progress(10, 6, Finish.LENGTH, 0))
    assert not call.done
    call.deliver(Progress(11, 7, Finish.LENGTH, 0))
    assert (await call.next_event())[1].token == 7
    assert call.done


async def test_an_error_behind_dropped_tokens_is_still_raised() -> None:
    call = call_of(1)
    call.deliver(Progress(1, 1, None, 0))
    call.fail(ValueError("gone"))
    call.stop(0)
    with pytest.raises(ValueError, match="gone"):
        await asyncio.wait_for(call.next_event(), 1)
