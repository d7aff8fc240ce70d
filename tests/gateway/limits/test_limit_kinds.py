"""A kind of limit is one declaration; a new one of a known mechanism works in every store and in the database."""

from datetime import UTC, datetime
from functools import partial
from types import SimpleNamespace
from typing import Annotated

import pytest

from gateway.database.errors import StoreError
from gateway.database.tables.usage import LimitSettingRow
from gateway.limits import limit_kinds
from gateway.limits.bucket import Budget
from gateway.limits.limit_kinds import KINDS, Count, LimitFigures, LimitKind, kinds_of
from gateway.limits.limiter import NOTHING, Cost, Counter, Limiter, LimitExceeded, Limits
from gateway.limits.memory_store import MemoryLimitStore
from gateway.limits.postgres_store import PostgresLimitStore
from gateway.limits.redis_store import RedisLimitStore
from policy.document.document import Limits as PolicyLimits

DAY = partial(Budget, span="day")


class MoreFigures(LimitFigures):
    """With two kinds that the product does not have."""

    requests_per_day: Annotated[Count | None, LimitKind("rpd", "requests_day", "requests per day", "requests", DAY)] = (
        None
    )
    tokens_per_day: Annotated[Count | None, LimitKind("tpd", "tokens_day", "tokens per day", "tokens", DAY)] = None


REQUESTS, TOKENS = kinds_of(MoreFigures)[-2:]


@pytest.fixture
def clock():
    now = [datetime(2026, 3, 15, 12, tzinfo=UTC).timestamp()]
    return now


@pytest.fixture(params=["memory", "redis", "postgresql"])
async def limiter(clock, request):
    if request.param == "memory":
        store = MemoryLimitStore(lambda: clock[0])
    elif request.param == "postgresql":
        store = PostgresLimitStore(request.getfixturevalue("postgresql"), lambda: clock[0])
    else:
        store = RedisLimitStore(request.getfixturevalue("redis_url"), lambda: clock[0])
    yield Limiter(store)
    await store.close()


def of(kind, amount):
    return [Counter(f"acme:{kind.bucket}", kind, kind.quota(amount), "tenant acme")]


async def test_a_new_kind_that_counts_requests_of_a_day_opens_again_at_midnight(limiter, clock):
    for _ in range(2):
        await limiter.settle(await limiter.reserve(of(REQUESTS, 2), Cost(tokens=10)), NOTHING)
    with pytest.raises(LimitExceeded, match="2 requests per day of tenant acme is reached") as refused:
        await limiter.reserve(of(REQUESTS, 2), NOTHING)
    assert refused.value.retry_after == pytest.approx(12 * 3600)
    clock[0] += 12 * 3600
    await limiter.reserve(of(REQUESTS, 2), NOTHING)


async def test_a_new_kind_that_counts_tokens_of_a_day_is_held_and_settled(limiter, clock):
    held = await limiter.reserve(of(TOKENS, 100), Cost(tokens=90))
    with pytest.raises(LimitExceeded) as refused:
        await limiter.reserve(of(TOKENS, 100), Cost(tokens=20))
    assert refused.value.held
    await limiter.settle(held, Cost(tokens=70))
    await limiter.settle(await limiter.reserve(of(TOKENS, 100), Cost(tokens=30)), Cost(tokens=30))
    with pytest.raises(LimitExceeded) as refused:
        await limiter.reserve(of(TOKENS, 100), Cost(tokens=1))
    assert (refused.value.held, refused.value.retry_after) == (False, pytest.approx(12 * 3600))


def test_a_new_kind_is_stored_without_a_column_of_its_own(monkeypatch):
    monkeypatch.setattr(limit_kinds, "KINDS", kinds_of(MoreFigures))
    said = MoreFigures(requests_per_minute=5, eur_per_day=0.5, tokens_per_day=7)
    row = LimitSettingRow(tenant="acme", project="", key="", **limit_kinds.stored(said))
    assert (row.requests_per_minute, row.micro_eur_per_day, row.others) == (5, 500_000, {"tokens_per_day": 7})
    assert MoreFigures(**limit_kinds.figures(row)) == said


def test_kinds_that_have_a_column_of_their_own_need_no_other():
    said = LimitFigures(tokens_per_minute=0, concurrent_requests=3, eur_per_month=1.25)
    columns = limit_kinds.stored(said)
    assert columns["others"] is None
    assert LimitFigures(**limit_kinds.figures(SimpleNamespace(**columns))) == said


def test_a_stored_limit_of_a_kind_that_this_release_does_not_know_is_an_error_and_never_ignored():
    columns = limit_kinds.stored(LimitFigures()) | {"others": {"tokens_per_day": 7}}
    with pytest.raises(StoreError, match="tokens_per_day; use the release"):
        limit_kinds.figures(SimpleNamespace(**columns))


def test_names_fields_and_buckets_of_kinds_are_unique():
    for part in ("name", "field", "bucket", "unit"):
        assert len({getattr(kind, part) for kind in KINDS}) == len(KINDS)


def test_each_limit_that_a_policy_may_set_is_of_a_kind():
    assert PolicyLimits.model_fields.keys() <= {kind.name for kind in KINDS}


def test_a_name_that_no_kind_has_is_refused():
    with pytest.raises(KeyError):
        Limits.of(tokens=5)


def test_of_two_limits_the_lower_binds_and_one_alone_stays():
    one, other = Limits.of(rpm=5, tpm=10), Limits.of(rpm=7, eur_per_day=1)
    low = one.lower(other)
    assert {kind.name: quota.capacity for kind, quota in low.quotas.items()} == {"rpm": 5, "tpm": 10, "eur_per_day": 1}
    assert other.lower(one) == low
