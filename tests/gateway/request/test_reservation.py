"""What a call may cost is held while it runs, and what it did cost is settled, however it ends."""

import asyncio

import pytest

from audit.log.receipt import Receipt
from backend.wire import Usage
from gateway.configuration.bounds import Bounds
from gateway.configuration.settings import Requests
from gateway.errors import (
    BudgetExceeded,
    InvalidRequest,
    LimitReached,
    PolicyDenied,
    RequestExceedsLimit,
    TooManyConcurrent,
)
from gateway.limits.limiter import Limiter, Limits
from gateway.limits.memory_store import MemoryLimitStore
from gateway.records.prices import PriceBook, configured
from gateway.request.answer.received import CHARACTERS_PER_TOKEN, ReceivedAnswer
from gateway.request.reservation import CallLimiter, rate_headers
from gateway.request.stages import Accepted
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
    prices = PriceBook(configured({"small": (0, 1e6)}))
    limiter = Limiter(MemoryLimitStore(clock))
    return CallLimiter(
        limiter, lambda model: prices.at(model, clock()), Bounds(Requests(default_max_tokens=DEFAULT_MAX_TOKENS))
    )


def limited(limits, **more):
    return principal(POLICY + f"limits: {limits}\n", **more)


def usage(tokens):
    return Usage(prompt_tokens=0, completion_tokens=tokens, total_tokens=tokens)


def reserve(meter, asked):
    return meter.reserve(asked.parsed, asked)


async def used(meter, asked, tokens):
    async with await reserve(meter, asked) as reserved:
        sent(asked, reserved, usage=usage(tokens))


def sent(asked, reserved, **received):
    """As after an attempt that received that much."""
    asked.reserved, asked.received = reserved, ReceivedAnswer(**received)
    asked.accepted = Accepted(asked.parsed, None, Receipt("acme", 0, bytes(32)))


async def test_without_limits_everything_passes(meter):
    for _ in range(100):
        await used(meter, exchange(who=principal()), 10**9)


async def test_requests_are_counted_whatever_becomes_of_them(meter, clock):
    who = limited("{rpm: 2}")
    for _ in range(2):
        with pytest.raises(RuntimeError):
            async with await reserve(meter, exchange(who=who)):
                raise RuntimeError
    with pytest.raises(LimitReached, match="The limit of 2 requests per minute of project main is reached") as refused:
        await reserve(meter, exchange(who=who))
    assert refused.value.code == "rate_limit_exceeded"
    clock.now += refused.value.retry_after_s
    await reserve(meter, exchange(who=who))


async def test_the_longest_answer_is_held_while_a_call_runs_and_given_back_after(meter):
    who = limited("{tpm: 1000}")
    async with await reserve(meter, exchange(who=who, max_tokens=900)) as _:
        with pytest.raises(LimitReached):
            await reserve(meter, exchange(who=who, max_tokens=200))
    await used(meter, exchange(who=who, max_tokens=900), 10)


async def test_what_was_used_counts_and_not_what_was_held(meter):
    who = limited("{tpm: 1000}")
    for _ in range(9):
        await used(meter, exchange(who=who, max_tokens=80), 1)
    await used(meter, exchange(who=who, max_tokens=900), 900)
    with pytest.raises(LimitReached):
        await reserve(meter, exchange(who=who, max_tokens=200))


async def test_more_used_than_held_is_owed(meter, clock):
    who = limited("{tpm: 1000}")
    await used(meter, exchange(who=who, max_tokens=10), 3000)
    with pytest.raises(LimitReached) as refused:
        await reserve(meter, exchange(who=who, max_tokens=10))
    assert refused.value.retry_after_s > 120


async def test_a_request_that_names_no_length_reserves_the_default_and_several_choices_that_often(meter):
    who = limited(f"{{tpm: {DEFAULT_MAX_TOKENS * 3}}}")
    async with await reserve(meter, exchange(who=who, n=2)):
        with pytest.raises(LimitReached):
            await reserve(meter, exchange(who=who))
    async with await reserve(meter, exchange(who=who)):
        await reserve(meter, exchange(who=who))


async def test_a_call_larger_than_the_whole_limit_is_told_that_waiting_does_not_help(meter):
    with pytest.raises(LimitReached, match=r"may use 50\d\d, more than the limit of 1000 tokens per minute") as refused:
        await reserve(meter, exchange(who=limited("{tpm: 1000}"), max_tokens=5000))
    assert (refused.value.code, refused.value.headers()) == (
        "request_exceeds_limit",
        [(b"x-should-retry", b"false")],
    )


async def test_a_call_cut_short_costs_the_prompt_and_what_was_sent_and_one_that_never_left_costs_nothing(meter):
    who = limited("{tpm: 1000}")
    for _ in range(50):
        async with await reserve(meter, exchange(who=who, max_tokens=900)):
            pass  # refused before its intent
    asked = exchange(who=who, max_tokens=900)
    async with await reserve(meter, asked) as reserved:
        sent(asked, reserved, chunks_out=500)
    spent = 500 + len(asked.parsed.call.raw) // CHARACTERS_PER_TOKEN
    left = 1000 - spent
    just_too_much = exchange(who=who, max_tokens=left)
    with pytest.raises(LimitReached):
        await reserve(meter, just_too_much)
    await reserve(
        meter, exchange(who=who, max_tokens=1000 - spent - len(just_too_much.parsed.call.raw) // CHARACTERS_PER_TOKEN)
    )


async def test_a_client_that_leaves_gives_back_what_was_held_for_it(meter):
    who = limited("{tpm: 1000}")
    started = asyncio.Event()

    async def call():
        async with await reserve(meter, exchange(who=who, max_tokens=900)):
            started.set()
            await asyncio.sleep(10)

    task = asyncio.ensure_future(call())
    await started.wait()
    task.cancel()
    await asyncio.wait([task])
    await reserve(meter, exchange(who=who, max_tokens=900))


async def test_projects_and_tenants_do_not_use_up_each_others_limits(meter):
    for who in ({"project": "main"}, {"project": "other"}, {"tenant": "globex"}):
        await used(meter, exchange(who=limited("{rpm: 1}", **who)), 1)
    with pytest.raises(LimitReached):
        await reserve(meter, exchange(who=limited("{rpm: 1}")))


async def test_money_is_counted_by_the_models_price(meter):
    who = limited("{eur_per_month: 100}")
    await used(meter, exchange(who=who, max_tokens=60), 60)
    with pytest.raises(BudgetExceeded, match="100 euros per month of project main") as refused:
        await reserve(meter, exchange(who=who, max_tokens=60))
    assert refused.value.code == "budget_exceeded"
    await used(meter, exchange(who=who, max_tokens=40), 40)


async def test_a_budget_over_a_model_without_a_price_is_refused_not_ignored(meter):
    with pytest.raises(PolicyDenied) as refused:
        await reserve(meter, exchange(who=limited("{eur_per_month: 100}"), model="unpriced"))
    assert refused.value.reasons[0].rule == "limits.eur_per_month"


def bound(configured, **more):
    return principal(configured=configured, **more)


async def test_a_key_its_project_and_its_tenant_bind_at_once(meter):
    wide = Limits.of(rpm=100)
    for level in [("acme", "", ""), ("acme", "main", ""), ("acme", "main", "7GA3GXAA")]:
        who = bound({**dict.fromkeys([("acme", "", ""), ("acme", "main", "")], wide), level: Limits.of(rpm=0)})
        with pytest.raises(
            RequestExceedsLimit, match=f"of {'key' if level[2] else 'project' if level[1] else 'tenant'}"
        ):
            await reserve(meter, exchange(who=who))


async def test_of_what_the_policy_and_an_administrator_set_for_a_project_the_lower_binds(meter):
    for policy, set_ in ((2, 5), (5, 2)):
        who = limited(
            f"{{rpm: {policy}}}",
            configured={("acme", f"p{policy}", ""): Limits.of(rpm=set_)},
            project=f"p{policy}",
        )
        await used(meter, exchange(who=who), 1)
        await used(meter, exchange(who=who), 1)
        with pytest.raises(LimitReached):
            await reserve(meter, exchange(who=who))


async def test_too_many_at_once_has_a_code_of_its_own(meter):
    who = bound({("acme", "", ""): Limits.of(concurrent=1)})
    async with await reserve(meter, exchange(who=who)):
        with pytest.raises(TooManyConcurrent) as refused:
            await reserve(meter, exchange(who=who))
    assert refused.value.code == "concurrency_limit_exceeded"
    assert (b"retry-after", b"1") in refused.value.headers()
    await reserve(meter, exchange(who=who))


async def test_the_headers_are_of_the_level_that_has_the_least_left_on_answers_and_refusals(meter, clock):
    who = bound({("acme", "", ""): Limits.of(rpm=100, tpm=1000), ("acme", "main", ""): Limits.of(rpm=2)})
    asked = exchange(who=who, max_tokens=500)
    held = 500 + len(asked.parsed.call.raw) // 3
    async with await reserve(meter, asked) as reserved:
        assert dict(reserved.rates) == {
            b"x-ratelimit-limit-requests": b"2",
            b"x-ratelimit-remaining-requests": b"1",
            b"x-ratelimit-reset-requests": b"30s",
            b"x-ratelimit-limit-tokens": b"1000",
            b"x-ratelimit-remaining-tokens": b"%d" % (1000 - held),
            b"x-ratelimit-reset-tokens": b"%gs" % (held * 0.06),
        }
        sent(asked, reserved, usage=usage(0))
    await used(meter, exchange(who=who, max_tokens=1), 0)
    with pytest.raises(LimitReached) as late:
        await reserve(meter, exchange(who=who))
    assert dict(late.value.rates)[b"x-ratelimit-remaining-requests"] == b"0"
    assert dict(late.value.rates)[b"x-ratelimit-reset-requests"] == b"1m0s"


async def test_without_rates_there_are_no_rate_headers(meter):
    asked = exchange(who=bound({("acme", "", ""): Limits.of(concurrent=5)}))
    async with await reserve(meter, asked) as reserved:
        assert reserved.rates == []
    assert rate_headers((), ()) == []


@pytest.mark.parametrize("said", [-5, 10**30])
async def test_what_a_backend_says_beyond_all_reason_neither_refunds_nor_breaks_the_count(meter, said):
    who = limited("{tpm: 1000}")
    await used(meter, exchange(who=who, max_tokens=10), said)
    if said < 0:
        await used(meter, exchange(who=who, max_tokens=900), 0)
    else:
        with pytest.raises(LimitReached):
            await reserve(meter, exchange(who=who, max_tokens=1))


@pytest.mark.parametrize("limits", ["{tpm: 1000}", "{eur_per_month: 5}"])
async def test_an_answer_that_has_no_end_cannot_be_held_and_is_refused_by_name(meter, limits):
    body = {"model": "small", "messages": [{"role": "user", "content": "x"}], "ignore_eos": True}
    with pytest.raises(InvalidRequest, match="set max_tokens") as refused:
        await reserve(meter, exchange(body, who=limited(limits)))
    assert refused.value.param == "ignore_eos"
    await reserve(meter, exchange({**body, "max_tokens": 5}, who=limited(limits)))


@pytest.mark.parametrize("limits", ["{rpm: 10}", "{}"])
async def test_where_no_tokens_are_limited_an_answer_may_run_to_the_end_of_the_context(meter, limits):
    body = {"model": "small", "messages": [{"role": "user", "content": "x"}], "ignore_eos": True}
    await reserve(meter, exchange(body, who=limited(limits)))


async def test_a_least_length_above_the_limit_is_refused_as_a_greatest_length_is(meter):
    body = {"model": "small", "messages": [{"role": "user", "content": "x"}], "min_tokens": 5000}
    with pytest.raises(RequestExceedsLimit):
        await reserve(meter, exchange(body, who=limited("{tpm: 1000}")))
