"""Energy from the backend's answer to the reports, through the record and the ledger."""

import asyncio
import csv
import io

import pytest

from gateway.cli.admin import cost_what_if
from gateway.cli.admin.cost_what_if import Card, on_cards
from gateway.database.tables.fleet import UptimeRow
from gateway.database.tables.usage import LedgerRow
from gateway.installation.installation import Installation
from gateway.store.reports.cost_report import cost
from gateway.store.reports.energy import NOT_MEASURED, energy
from gateway.store.reports.usage_csv import csv_lines
from gateway.store.reports.usage_report import entries, usage
from regions.fleet.deployment import Deployment
from tests.fakes.backend import USAGE, FakeBackend
from tests.fakes.lab import chat, lab
from tests.fakes.ledger_sums import sum_up

ON_BOTH_DATABASES = True
DAY = "2026-11-28"
TOKENS = USAGE["prompt_tokens"] + USAGE["completion_tokens"]


async def recorded(made, count):
    """Rows of the ledger, once it has so many that are over."""
    database = made.control._database
    async with asyncio.timeout(20):
        while len(rows := list(entries(database))) < count:
            await asyncio.sleep(0.05)
    return rows


@pytest.mark.parametrize("stream", [False, True])
async def test_what_a_backend_measured_stands_in_the_record_and_in_the_ledger(tmp_path, stream):
    backends = {"acme/eu-fr-par/acme-1": FakeBackend(joules=12.5)}
    async with lab(tmp_path, backends=backends) as made:
        answer = await made.post(
            chat("hi", stream=stream, **({"stream_options": {"include_usage": True}} if stream else {}))
        )
        told = answer.events[-2]["usage"] if stream else answer.json["usage"]
        assert told["energy_joules"] == 12.5
        (row,) = await recorded(made, 1)
        assert row.energy_mj == 12_500
        assert outcome(made)["energy_mj"] == 12_500
        (line,) = usage(made.control._database)
    assert (line.measured, line.energy_kwh) == (1, 12.5 / 3.6e6)
    assert line.joules_per_1000_tokens == pytest.approx(12.5 / TOKENS * 1000)


@pytest.mark.parametrize("said", [None, -1, 1e10, True, "much", [1], {}], ids=str)
async def test_what_was_not_measured_is_unknown_and_not_zero_and_no_reason_to_refuse(tmp_path, said):
    backends = {"acme/eu-fr-par/acme-1": FakeBackend(joules=said)}
    async with lab(tmp_path, backends=backends) as made:
        for stream in (False, True):
            assert (await made.post(chat("hi", stream=stream))).text == "The capital is Paris."
        assert [row.energy_mj for row in await recorded(made, 2)] == [None, None]
        assert "energy_mj" not in outcome(made)
        (line,) = usage(made.control._database)
    assert (line.measured, line.energy_kwh, line.joules_per_1000_tokens) == (0, None, None)


async def test_whatever_a_backend_says_of_energy_the_bill_is_the_same(tmp_path):
    bills = []
    for number, joules in enumerate([None, 0, 1e9]):
        backends = {"acme/eu-fr-par/acme-1": FakeBackend(joules=joules)}
        prices = {"small": {"input_eur_per_million": 1, "output_eur_per_million": 2}}
        async with lab(tmp_path / str(number), backends=backends, prices=prices) as made:
            await made.post(chat("hi"))
            (row,) = await recorded(made, 1)
            bills.append((row.nano_eur, row.tokens_in, row.tokens_out))
    assert bills[0] == bills[1] == bills[2]
    assert bills[0][0] > 0


def outcome(made):
    return [event for event in made.events() if event["type"] == "inference.completed"][-1]


def call(request, backend, joules, *, tenant="acme", tokens=1000, model="small"):
    return LedgerRow(
        tenant=tenant,
        request_id=request,
        project="p",
        key_id="k",
        model=model,
        region="eu-fr-par",
        backend=backend,
        accepted_at=0.0,
        outcome="completed",
        day=DAY,
        tokens_in=tokens - 100,
        tokens_cached=0,
        tokens_out=100,
        estimated=False,
        backend_ms=10,
        price=None,
        nano_eur=None,
        energy_mj=None if joules is None else round(joules * 1000),
    )


def up(replica, gpu, *, tenant="acme", deployment="small"):
    return UptimeRow(
        replica=replica,
        day=DAY,
        tenant=tenant,
        deployment=deployment,
        model="small",
        region="eu-fr-par",
        gpu=gpu,
        micro_eur_per_hour=2_500_000,
        up_ms=3_600_000,
        busy_ms=1000,
    )


@pytest.fixture
def filled(database, control):
    for tenant in ("acme", "globex"):
        control.create_tenant(tenant)
    with database.write() as session:
        session.add_all(
            [
                up("small-1", "h100"), up("small-2", "cpu"), up("big-1", "h100", tenant="globex", deployment="big"),
                call("a", "small-1", 400.0), call("b", "small-1", 200.0, tokens=2000), call("c", "small-1", None),
                call("d", "small-2", None), call("e", "big-1", 3_600_000.0, tenant="globex"),
            ]
        )  # fmt: skip
    sum_up(database)
    return database


def test_a_group_has_the_energy_of_its_measured_calls_over_their_tokens(filled):
    lines = {line.gpu: line for line in cost(filled, tenant="acme", by=("gpu",))}
    assert (lines["h100"].measured, lines["h100"].requests) == (2, 3)
    assert lines["h100"].energy_kwh == pytest.approx(600 / 3.6e6)
    assert lines["h100"].joules_per_1000_tokens == pytest.approx(600 / 3)
    assert (lines["cpu"].measured, lines["cpu"].energy_kwh, lines["cpu"].joules_per_1000_tokens) == (0, None, None)


def test_energy_is_each_tenant_s_own_and_adds_up(filled):
    by_tenant = {line.tenant: line for line in usage(filled, by=("tenant",))}
    assert by_tenant["globex"].energy_kwh == 1.0
    (whole,) = usage(filled)
    assert whole.energy_kwh == pytest.approx(sum(line.energy_kwh for line in by_tenant.values()))
    assert whole.measured == 3


def test_where_nothing_was_measured_a_table_has_an_empty_field(filled):
    (row,) = csv.DictReader(
        io.StringIO("".join(csv_lines(cost(filled, by=("gpu",), tenant="acme")[:1], type(cost(filled)[0]))))
    )
    assert (row["gpu"], row["energy_kwh"], row["joules_per_1000_tokens"]) == ("cpu", "", "")


def test_calls_without_a_token_have_energy_and_no_rate():
    assert energy(1, 3_600_000_000, 0) == (1, 1.0, None)
    assert energy(0, 0, 0) == NOT_MEASURED


def test_what_if_tells_the_energy_of_a_card_that_the_tenant_s_calls_did_run_on(filled, control, tmp_path, monkeypatch):
    control.create_deployment(
        Deployment(tenant="acme", id="small", model="small", weights="m.gguf", regions=("eu-fr-par",), gpu="l40s")
    )
    monkeypatch.setattr(cost_what_if, "plan", lambda weights, card, *, calls: {"refusal": None, "tokens_per_s": 1000.0})
    installation = Installation.create(tmp_path / "other", "demo")
    cards = [Card("h100", 3.6), Card("l40s", 1.8)]
    h100, l40s = on_cards(filled, installation, "acme", cards)
    assert h100.joules_per_1000_tokens == pytest.approx(200.0), "acme's two calls, not globex's"
    assert (l40s.joules_per_1000_tokens, l40s.eur_per_million_tokens) == (None, pytest.approx(0.5))
