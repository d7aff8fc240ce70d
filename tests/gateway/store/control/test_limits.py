from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pytest
from pydantic import ValidationError

from gateway.database.errors import Invalid, NotFound
from gateway.limits.limit_kinds import LimitFigures
from gateway.limits.limiter import Limits
from gateway.store.changes import read_changes
from gateway.store.reports.usage_inventory import limits_at, limits_in, prices_in

ON_BOTH_DATABASES = True

FIGURES = LimitFigures(requests_per_minute=600, eur_per_month=99.999999)


def test_limits_are_kept_for_each_level_and_told(acme, database, events):
    record, _ = acme.create_key("acme", "support")
    for place in ({}, {"project": "support"}, {"key": record.id}):
        acme.set_limits("acme", FIGURES, **place)
        shown = limits_at(database, "acme", **place)
        assert (shown.requests_per_minute, shown.eur_per_month, shown.tokens_per_minute) == (600, 99.999999, None)
        assert (events[-1].action, events[-1].before, events[-1].after) == ("limits.changed", None, shown.digest())
    assert [(each.project, each.key) for each in limits_in(database, "acme")] == [
        (None, None),
        ("support", None),
        ("support", record.id),
    ]
    before = limits_at(database, "acme").digest()
    acme.set_limits("acme", LimitFigures())
    assert events[-1].before == before
    assert limits_at(database, "acme").requests_per_minute is None


def test_gateways_read_them_by_the_epoch(acme, database):
    acme.set_limits("acme", FIGURES, project="support")
    acme.set_price("small", input=Decimal("0.2"), output=Decimal("0.6"))
    with database.read() as session:
        changes = read_changes(session, "demo", 0)
        assert changes.limits == {("acme", "support", ""): Limits.of(rpm=600, eur_per_month=99.999999)}
        (price,) = changes.prices.values()
        assert (price.input, price.output, price.cached) == (200_000, 600_000, 200_000)
        assert not read_changes(session, "demo", changes.epoch).limits
    acme.set_limits("acme", LimitFigures(), project="support")
    with database.read() as session:
        assert read_changes(session, "demo", changes.epoch).limits == {("acme", "support", ""): Limits()}


@pytest.mark.parametrize("field", list(LimitFigures.model_fields))
@pytest.mark.parametrize("wrong", [-1, float("nan"), float("inf"), 10**13, "many"])
def test_a_limit_that_makes_no_sense_is_refused(field, wrong):
    with pytest.raises(ValidationError):
        LimitFigures(**{field: wrong})


@pytest.mark.parametrize("field", ["requests_per_minute", "tokens_per_minute", "concurrent_requests"])
@pytest.mark.parametrize("wrong", [0.5, 10.0, True])
def test_what_is_counted_in_whole_numbers_takes_no_fractions(field, wrong):
    with pytest.raises(ValidationError):
        LimitFigures(**{field: wrong})


def test_what_is_not_there_gets_no_limits(acme, database):
    acme.create_tenant("globex")
    record, _ = acme.create_key("acme", "support")
    for tenant, place in (("nobody", {}), ("acme", {"project": "x"}), ("globex", {"key": record.id})):
        with pytest.raises(NotFound):
            acme.set_limits(tenant, FIGURES, **place)
        with pytest.raises(NotFound):
            limits_at(database, tenant, **place)
    acme.create_project("acme", "other", purpose="x", legal_basis="contract")
    with pytest.raises(Invalid, match="not of project"):
        acme.set_limits("acme", FIGURES, key=record.id, project="other")


def test_a_keys_successor_is_bound_by_what_bound_the_key(acme, database):
    record, _ = acme.create_key("acme", "support")
    acme.set_limits("acme", FIGURES, key=record.id)
    successor, _ = acme.rotate_key("acme", record.id, grace=timedelta(0))
    assert limits_at(database, "acme", key=successor.id).requests_per_minute == 600
    with database.read() as session:
        assert ("acme", "support", successor.id) in read_changes(session, "demo", 0).limits


def test_a_price_gets_a_next_version_and_the_one_before_stays(acme, database, events):
    first = acme.set_price("small", input=Decimal(1), output=Decimal(2))
    later = datetime.now(UTC) + timedelta(days=7)
    second = acme.set_price("small", input=Decimal(1), output=Decimal(3), cached=Decimal("0.1"), valid_from=later)
    assert [first, second] == prices_in(database, "demo")
    assert [(p.number, p.output, p.cached) for p in (first, second)] == [(1, 2, 1), (2, 3, 0.1)]
    assert events[-1].action == "price.set"


@pytest.mark.parametrize("wrong", ["-1", "0.0000001", "1000001", "NaN", "Infinity"])
def test_a_price_that_makes_no_sense_is_refused(acme, wrong):
    with pytest.raises(Invalid, match="is not possible; give 0 to"):
        acme.set_price("small", input=Decimal(wrong), output=Decimal(1))


@pytest.mark.parametrize("when", [datetime(2020, 1, 1, tzinfo=UTC), datetime(2100, 1, 1)])
def test_a_price_cannot_change_what_was_used_already(acme, when):
    with pytest.raises(Invalid, match="in the past or has no zone"):
        acme.set_price("small", input=Decimal(1), output=Decimal(1), valid_from=when)
