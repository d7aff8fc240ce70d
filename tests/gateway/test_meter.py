"""What a call may cost is held while it runs, and what it did cost is settled, however it ends."""

import asyncio

import pytest

from audit.receipt import Receipt
from backend.wire import Usage
from gateway.errors import LimitReached, PolicyDenied
from gateway.limits import Limiter, MemoryLimitStore
from gateway.meter import CHARACTERS_PER_TOKEN, Meter
from gateway.settings import Price
from tests.fakes.lab import POLICY
from tests.gateway.parts import exchange, principal

DEFAULT_MAX_TOKENS = 100


class Clock:
    def __init__(self):
        self.now = 1_800_000_000.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def meter(clock):
    limiter = Limiter(MemoryLimitStore(), now=clock)
    return Meter(limiter, {"small": Price(input_eur_per_million=0, output_eur_per_million=1e6)}, DEFAULT_MAX_TOKENS)


def limited(limits, **more):
    return principal(POLICY + f"limits: {limits}\n", **more)


def usage(tokens):
    return Usage(prompt_tokens=0, completion_tokens=tokens, total_tokens=tokens)


async def used(meter, asked, tokens):
    async with await meter.reserve(asked):
        asked.usage = usage(tokens)


async def test_without_limits_everything_passes(meter):
    for _ in range(100):
        await used(meter, exchange(who=principal()), 10**9)


async def test_requests_are_counted_whatever_becomes_of_them(meter, clock):
    who = limited("{rpm: 2}")
    for _ in range(2):
        with pytest.raises(RuntimeError):
            async with await meter.reserve(exchange(who=who)):
                raise RuntimeError
    with pytest.raises(LimitReached, match="The limit on requests is reached") as refused:
        await meter.reserve(exchange(who=who))
    assert refused.value.code == "rate_limit_exceeded"
    clock.now += refused.value.retry_after_s
    await meter.reserve(exchange(who=who))


async def test_the_longest_answer_is_held_while_a_call_runs_and_given_back_after(meter):
    who = limited("{tpm: 1000}")
    async with await meter.reserve(exchange(who=who, max_tokens=900)) as _:
        with pytest.raises(LimitReached):
            await meter.reserve(exchange(who=who, max_tokens=200))
    await used(meter, exchange(who=who, max_tokens=900), 10)


async def test_what_was_used_counts_and_not_what_was_held(meter):
    who = limited("{tpm: 1000}")
    for _ in range(9):
        await used(meter, exchange(who=who, max_tokens=80), 1)
    await used(meter, exchange(who=who, max_tokens=900), 900)
    with pytest.raises(LimitReached):
        await meter.reserve(exchange(who=who, max_tokens=200))


async def test_more_used_than_held_is_owed(meter, clock):
    who = limited("{tpm: 1000}")
    await used(meter, exchange(who=who, max_tokens=10), 3000)
    with pytest.raises(LimitReached) as refused:
        await meter.reserve(exchange(who=who, max_tokens=10))
    assert refused.value.retry_after_s > 120


async def test_a_request_that_names_no_length_reserves_the_default_and_several_choices_that_often(meter):
    who = limited(f"{{tpm: {DEFAULT_MAX_TOKENS * 3}}}")
    async with await meter.reserve(exchange(who=who, n=2)):
        with pytest.raises(LimitReached):
            await meter.reserve(exchange(who=who))
    async with await meter.reserve(exchange(who=who)):
        await meter.reserve(exchange(who=who))


async def test_a_call_larger_than_the_whole_limit_is_told_that_waiting_does_not_help(meter):
    with pytest.raises(LimitReached, match="exceeds the whole limit") as refused:
        await meter.reserve(exchange(who=limited("{tpm: 1000}"), max_tokens=5000))
    assert (refused.value.code, refused.value.headers()) == ("request_exceeds_limit", [])


async def test_a_call_cut_short_costs_the_prompt_and_what_was_sent_and_one_that_never_left_costs_nothing(meter):
    who = limited("{tpm: 1000}")
    for _ in range(50):
        async with await meter.reserve(exchange(who=who, max_tokens=900)):
            pass  # refused before its intent
    asked = exchange(who=who, max_tokens=900)
    async with await meter.reserve(asked):
        asked.intent, asked.chunks_out = Receipt("acme", 0, bytes(32)), 500
    spent = 500 + len(asked.call.raw) // CHARACTERS_PER_TOKEN
    left = 1000 - spent
    just_too_much = exchange(who=who, max_tokens=left)
    with pytest.raises(LimitReached):
        await meter.reserve(just_too_much)
    await meter.reserve(
        exchange(who=who, max_tokens=1000 - spent - len(just_too_much.call.raw) // CHARACTERS_PER_TOKEN)
    )


async def test_a_client_that_leaves_gives_back_what_was_held_for_it(meter):
    who = limited("{tpm: 1000}")
    started = asyncio.Event()

    async def call():
        async with await meter.reserve(exchange(who=who, max_tokens=900)):
            started.set()
            await asyncio.sleep(10)

    task = asyncio.ensure_future(call())
    await started.wait()
    task.cancel()
    await asyncio.wait([task])
    await meter.reserve(exchange(who=who, max_tokens=900))


async def test_projects_and_tenants_do_not_use_up_each_others_limits(meter):
    for who in ({"project": "main"}, {"project": "other"}, {"tenant": "globex"}):
        await used(meter, exchange(who=limited("{rpm: 1}", **who)), 1)
    with pytest.raises(LimitReached):
        await meter.reserve(exchange(who=limited("{rpm: 1}")))


async def test_money_is_counted_by_the_models_price(meter):
    who = limited("{eur_per_month: 100}")
    await used(meter, exchange(who=who, max_tokens=60), 60)
    with pytest.raises(LimitReached, match="money"):
        await meter.reserve(exchange(who=who, max_tokens=60))
    await used(meter, exchange(who=who, max_tokens=40), 40)


async def test_a_budget_over_a_model_without_a_price_is_refused_not_ignored(meter):
    with pytest.raises(PolicyDenied) as refused:
        await meter.reserve(exchange(who=limited("{eur_per_month: 100}"), model="unpriced"))
    assert refused.value.reasons[0].rule == "limits.eur_per_month"
