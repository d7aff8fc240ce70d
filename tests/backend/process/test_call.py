"""One request's events, as the engine's steps bring them."""

import asyncio

import pytest

from backend.engine.core.progress import Finish, Progress
from backend.process.call import Call, ClientGone


def call_of(*ids: int) -> Call:
    return Call(lambda _: None, ids)


async def tokens(call: Call) -> list[tuple[int, int | None]]:
    """Those of the events that are there: choice and token."""
    return [(index, progress.token) for index, progress in await asyncio.wait_for(call.next_events(), 1)]


async def test_tokens_behind_a_stop_string_in_the_same_step_are_dropped_and_the_other_choice_goes_on() -> None:
    call = call_of(10, 11)
    for id, token in ((10, 1), (11, 2), (10, 3), (10, 4), (11, 5)):
        call.deliver(Progress(id, token, None, 0))
    call.at_once = 1
    assert await tokens(call) == [(0, 1)]
    call.stop(0)
    call.at_once = 8
    assert await tokens(call) == [(1, 2), (1, 5)]
    call.deliver(Progress(10, 6, Finish.LENGTH, 0))
    assert not call.done
    call.deliver(Progress(11, 7, Finish.LENGTH, 0))
    assert await tokens(call) == [(1, 7)]
    assert call.done


async def test_one_event_at_a_time_in_order_and_then_the_error() -> None:
    call = call_of(1)
    for token in range(2):
        call.deliver(Progress(1, token, None, 0))
    call.fail(ValueError("gone"))
    assert [(await call.next_event())[1].token for _ in range(2)] == [0, 1]
    with pytest.raises(ValueError, match="gone"):
        await asyncio.wait_for(call.next_event(), 1)


async def test_an_error_behind_dropped_tokens_is_still_raised() -> None:
    call = call_of(1)
    call.deliver(Progress(1, 1, None, 0))
    call.fail(ValueError("gone"))
    call.stop(0)
    with pytest.raises(ValueError, match="gone"):
        await asyncio.wait_for(call.next_events(), 1)


async def test_a_response_that_is_behind_gets_what_it_missed_in_order_and_no_more_than_so_many_at_once() -> None:
    call = call_of(1, 2)
    call.at_once = 3
    for token in range(4):
        call.deliver(Progress(1 + token % 2, token, None, 0))
    assert await tokens(call) == [(0, 0), (1, 1), (0, 2)]
    assert await tokens(call) == [(1, 3)]


async def test_one_that_waits_is_woken_once_for_all_that_a_step_brings() -> None:
    call = call_of(1, 2)
    waiting = asyncio.create_task(call.next_events())
    await asyncio.sleep(0)
    call.deliver(Progress(1, 5, None, 0))
    call.deliver(Progress(2, 6, None, 0))
    assert [progress.token for _, progress in await asyncio.wait_for(waiting, 1)] == [5, 6]


async def test_what_came_before_an_error_is_taken_before_it_is_raised() -> None:
    call = call_of(1)
    call.deliver(Progress(1, 1, None, 0))
    call.leave()
    assert await tokens(call) == [(0, 1)]
    with pytest.raises(ClientGone):
        await call.next_events()


async def test_one_that_gave_up_waiting_loses_no_event() -> None:
    call = call_of(1)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(call.next_events(), 0.01)
    call.deliver(Progress(1, 1, None, 0))
    assert await tokens(call) == [(0, 1)]
