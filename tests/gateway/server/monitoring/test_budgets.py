"""Budgets in the metrics of a cell: how much there is, and how much of it the ledger has."""

import asyncio

from gateway.limits.limit_kinds import LimitFigures
from gateway.server.monitoring import budgets, cell_metrics
from tests.fakes.lab import POLICY, chat, lab
from tests.gateway.server.monitoring.test_backend_metrics import named, samples

PRICES = {"small": {"input_eur_per_million": 10000, "output_eur_per_million": 10000}}  # 0.12 EUR a call
OF_POLICY = POLICY + "limits: {eur_per_month: 40}\n"


def set_up(made):
    made.tenant("acme", OF_POLICY)
    made.project("acme", "other")
    made.tenant("globex")
    made.control.set_limits("acme", LimitFigures(eur_per_day=6))
    made.control.set_limits("globex", LimitFigures(requests_per_minute=60))


async def test_each_budget_of_a_tenant_or_a_project_is_told_with_what_is_used(tmp_path, monkeypatch):
    monkeypatch.setattr(budgets, "CACHE_S", 0.0)
    monkeypatch.setattr(cell_metrics, "CACHE_S", 0.0)
    async with lab(tmp_path, set_up=set_up, prices=PRICES) as made:
        for _ in range(2):
            assert (await made.post(chat("hello"))).status == 200
        async with asyncio.timeout(60):  # the ledger follows the record
            while True:
                found = samples((await made.get("/metrics/cell")).body.decode())
                if named(found, "domicile_budget_used", tenant="acme", project="") == [0.24]:
                    break
                await asyncio.sleep(0.2)
    assert named(found, "domicile_budget_used", tenant="acme", project="", limit="eur_per_day") == [0.24]
    assert named(found, "domicile_budget", tenant="acme", project="", limit="eur_per_day") == [6.0]
    assert named(found, "domicile_budget_used", project="main", limit="eur_per_month") == [0.24]
    assert named(found, "domicile_budget_used", project="other", limit="eur_per_month") == [0.0]
    assert named(found, "domicile_budget", project="main") == [40.0]
    assert not named(found, "domicile_budget", tenant="globex"), "a rate is no budget"
    assert named(found, "domicile_budgets_known") == [1.0]
