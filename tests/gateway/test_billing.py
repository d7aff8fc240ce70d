"""What must not happen to limits and budgets: each was reported in public of some gateway."""

import asyncio
from decimal import Decimal

import pytest

from gateway.limits.limit_kinds import LimitFigures
from tests.fakes.backend import USAGE, FakeBackend
from tests.fakes.lab import chat, lab

TOKENS = USAGE["total_tokens"]
ANSWER = USAGE["completion_tokens"]


def limited(**figures):
    """Tenant acme under these limits; an answer's token costs one euro."""

    def set_up(made):
        made.tenant("acme")
        made.control.set_price("small", input=Decimal(0), output=Decimal(10**6))
        made.control.set_limits("acme", LimitFigures(**figures))

    return set_up


def ask(made, **more):
    return made.post(chat("hi", **{"max_tokens": ANSWER, **more}))


async def left(made):
    """Tokens a minute that are left, as the last answer says, but for what is held for it."""
    return int((await ask(made)).headers["x-ratelimit-remaining-tokens"])


async def test_a_budget_is_no_advice_the_first_call_beyond_it_is_stopped(tmp_path):
    async with lab(tmp_path, set_up=limited(eur_per_month=2 * ANSWER)) as made:
        answers = [await ask(made) for _ in range(4)]
    assert [answer.status for answer in answers] == [200, 200, 429, 429]
    assert answers[-1].error["code"] == "budget_exceeded"
    assert int(answers[-1].headers["retry-after"]) > 0


async def test_calls_in_parallel_do_not_slip_through_a_budget_together(tmp_path):
    backend = {"acme/eu-fr-par/acme-1": FakeBackend(delay_s=0.05)}
    async with lab(tmp_path, set_up=limited(eur_per_day=ANSWER), backends=backend) as made:
        answers = await asyncio.gather(*(ask(made) for _ in range(20)))
        assert sorted(answer.status for answer in answers) == [200] + [429] * 19
        assert len(made.backends["acme-1"].bodies) == 1


async def test_a_budget_is_counted_once_and_not_twice(tmp_path):
    async with lab(tmp_path, set_up=limited(eur_per_month=10 * ANSWER)) as made:
        statuses = [(await ask(made, stream=number % 2 == 0)).status for number in range(11)]
    assert statuses == [200] * 10 + [429]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("wants_usage", [False, True])
async def test_tokens_of_a_stream_count_as_those_of_a_whole_answer_whether_usage_is_asked_for_or_not(
    tmp_path, stream, wants_usage
):
    options = {"stream_options": {"include_usage": True}} if stream and wants_usage else {}
    async with lab(tmp_path, set_up=limited(tokens_per_minute=10**6)) as made:
        before = await left(made)
        for _ in range(20):
            assert (await ask(made, stream=stream, **options)).status == 200
        counted = before - await left(made)
        drained = 10**6 / 60 * 5
        assert counted <= 21 * TOKENS
        assert counted >= 21 * TOKENS - drained


@pytest.mark.parametrize("wrong", [{"status": 500}, {"status": 400, "error": {"message": "too long"}}, {"status": 429}])
async def test_a_call_that_the_backend_did_not_answer_costs_nothing(tmp_path, wrong):
    backend = FakeBackend(**{"error": {"message": "no"}, **wrong})
    backends = {"acme/eu-fr-par/acme-1": backend}
    async with lab(tmp_path, set_up=limited(eur_per_month=ANSWER, concurrent_requests=1), backends=backends) as made:
        for _ in range(5):
            assert (await ask(made)).status >= 400
        assert all("tokens_in" not in event for event in made.events() if event["type"] == "inference.aborted")
        backend.status = 200
        async with asyncio.timeout(20):
            while (answer := await ask(made)).status == 503:  # until it is known to be well again
                await asyncio.sleep(0.1)
        assert answer.status == 200


async def test_a_stream_that_breaks_off_is_paid_as_far_as_it_came(tmp_path):
    backends = {"acme/eu-fr-par/acme-1": FakeBackend(die_after=2, pieces=8)}
    async with lab(tmp_path, set_up=limited(eur_per_month=100), backends=backends) as made:
        await ask(made, stream=True, max_tokens=50)
        event = made.acts()[-1]
        assert (event["type"], event["tokens_estimated"]) == ("inference.aborted", True)
        assert 0 < event["tokens_out"] <= 8


async def test_a_client_that_leaves_gives_its_place_to_the_next_at_once(tmp_path):
    backends = {"acme/eu-fr-par/acme-1": FakeBackend(delay_s=0.3, pieces=100)}
    async with lab(tmp_path, set_up=limited(concurrent_requests=1), backends=backends) as made:
        headers = {"authorization": f"Bearer {made.key()}"}
        url = f"{made.base}/v1/chat/completions"
        async with made.http.post(url, json=chat("hi", stream=True), headers=headers) as answer:
            await answer.content.readany()
            refused = await ask(made)
            assert (refused.status, refused.error["code"]) == (429, "concurrency_limit_exceeded")
        while made.types()[-1] != "inference.aborted":
            await asyncio.sleep(0.01)
        made.backends["acme-1"].delay_s = 0
        assert (await ask(made)).status == 200


async def test_what_a_call_reserved_and_did_not_use_is_not_lost(tmp_path):
    async with lab(tmp_path, set_up=limited(eur_per_month=10 * ANSWER)) as made:
        statuses = [(await ask(made, max_tokens=5 * ANSWER)).status for _ in range(7)]
    assert statuses == [200] * 6 + [429], "the seventh may not use 25 of the 20 that are left"


async def test_a_budget_over_a_model_without_a_price_is_refused_and_not_ignored(tmp_path):
    def set_up(made):
        made.tenant("acme")
        made.control.set_limits("acme", LimitFigures(eur_per_day=1))

    async with lab(tmp_path, set_up=set_up) as made:
        answer = await ask(made)
        assert (answer.status, answer.error["code"]) == (403, "limits.eur_per_day")
        assert made.backends["acme-1"].bodies == []


async def test_a_store_of_limits_that_is_away_means_503_and_never_no_limit(tmp_path, monkeypatch):
    monkeypatch.setenv("DOMICILE_REDIS_URL", f"unix://{tmp_path}/nobody")
    async with lab(tmp_path, set_up=limited(requests_per_minute=100)) as made:
        answer = await ask(made)
        assert (answer.status, answer.error["code"]) == (503, "limits_unavailable")
        assert answer.headers["retry-after"] == "2"
        assert made.backends["acme-1"].bodies == []


async def test_no_tenant_learns_of_anothers_limits_or_uses_them_up(tmp_path):
    def set_up(made):
        limited(requests_per_minute=1)(made)
        made.tenant("globex")

    backends = {"acme/eu-fr-par/acme-1": FakeBackend(), "globex/eu-fr-par/globex-1": FakeBackend()}
    async with lab(tmp_path, set_up=set_up, backends=backends) as made:
        assert [(await ask(made)).status for _ in range(2)] == [200, 429]
        for _ in range(3):
            answer = await made.post(chat("hi"), key="globex/main")
            assert answer.status == 200
            assert not any(name.lower().startswith("x-ratelimit") for name in answer.headers)
