from datetime import date

import pytest

from gateway.database.errors import Invalid, NotFound
from gateway.database.tables.fleet import UptimeRow
from gateway.database.tables.usage import LedgerRow
from gateway.store.reports.cost_report import cost, cost_dimensions, eur_per_million
from gateway.store.reports.usage_report import Span
from tests.fakes.ledger_sums import sum_up

ON_BOTH_DATABASES = True
HOUR = 3_600_000


def up(replica, day, up_ms, busy_ms=0, *, tenant="acme", deployment="small", micro=2_500_000):
    return UptimeRow(
        replica=replica,
        day=day,
        tenant=tenant,
        deployment=deployment,
        model="small",
        region="eu-fr-par",
        gpu="h100",
        micro_eur_per_hour=micro,
        up_ms=up_ms,
        busy_ms=busy_ms,
    )


def call(request_id, backend, day, tokens_in, tokens_out, *, tenant="acme", nano=None):
    return LedgerRow(
        tenant=tenant,
        request_id=request_id,
        project="p",
        key_id="k",
        model="small",
        region="eu-fr-par",
        backend=backend,
        accepted_at=0.0,
        outcome="completed",
        day=day,
        tokens_in=tokens_in,
        tokens_cached=0,
        tokens_out=tokens_out,
        estimated=False,
        backend_ms=10,
        price=None,
        nano_eur=nano,
    )


@pytest.fixture
def filled(database, control):
    control.create_tenant("acme")
    control.create_tenant("globex")
    with database.write() as session:
        session.add_all(
            [
                up("small-1", "2026-11-27", HOUR, HOUR // 4),
                up("small-1", "2026-11-28", HOUR, HOUR // 2),
                up("small-2", "2026-11-28", 2 * HOUR, 0, micro=5_000_000),
                up("big-1", "2026-11-28", HOUR, HOUR, tenant="globex", deployment="big"),
                call("a", "small-1", "2026-11-27", 1_000_000, 800_000),
                call("b", "small-1", "2026-11-28", 900_000, 900_000, nano=7_000_000_000),
                call("c", "elsewhere", "2026-11-28", 5, 5),
                call("d", "small-1", "2026-11-28", 5, 5, tenant="globex"),
            ]
        )
    sum_up(database)
    return database


def test_an_hour_costs_what_an_hour_costs(filled):
    (line,) = cost(filled, tenant="acme")
    assert (line.up_seconds, line.eur) == (4 * 3600, 2 * 2.5 + 2 * 5.0)
    assert line.idle_share == pytest.approx(1 - 0.75 / 4)
    assert (line.requests, line.tokens_in, line.tokens_out, line.token_eur) == (2, 1_900_000, 1_700_000, 7.0)


def test_a_million_tokens_cost_the_hourly_price_over_tokens_an_hour(filled):
    (line,) = cost(filled, tenant="acme", span=Span(until=date(2026, 11, 27)))
    assert line.tokens_per_second == 500
    assert line.eur_per_million_tokens == pytest.approx(2.5 / (500 * 3600 / 1e6)) == eur_per_million(2.5, 500)


def test_it_adds_up_however_it_is_grouped(filled):
    (whole,) = cost(filled)
    for by in (("tenant",), ("deployment", "day"), ("replica",), ("gpu", "region", "model", "day")):
        lines = cost(filled, by=by)
        assert sum(line.nano_eur for line in lines) == whole.nano_eur
        assert sum(line.requests for line in lines) == whole.requests
        assert sum(line.up_seconds for line in lines) == whole.up_seconds
    assert [line.tenant for line in cost(filled, by=("tenant",))] == ["acme", "globex"]


def test_idle_replicas_have_no_cost_per_token(filled):
    lines = {line.replica: line for line in cost(filled, by=("replica",), tenant="acme")}
    assert lines["small-2"].eur_per_million_tokens is None
    assert lines["small-2"].idle_share == 1.0


def test_of_another_tenant_nothing_is_told(filled):
    assert {line.tenant for line in cost(filled, tenant="globex", by=("tenant",))} == {"globex"}
    with pytest.raises(NotFound):
        cost(filled, tenant="nobody")


def test_without_replicas_there_is_no_line(database):
    assert cost(database) == []


def test_the_dearest_card_for_a_whole_day_is_counted_exactly(database, control):
    with database.write() as session:
        session.add(up("x", "2026-11-28", 24 * HOUR, micro=10**12))
    assert cost(database)[0].nano_eur == 24 * 10**15


def test_what_it_cannot_be_told_by_is_named():
    with pytest.raises(Invalid, match="cannot be grouped by 'colour'; name one of"):
        cost_dimensions("tenant,colour")
