"""How far batches are, in metrics."""

import asyncio

from tests.fakes.backend import FakeBackend
from tests.gateway.batches.conftest import begin, client, gateway, line, over
from tests.gateway.request.test_telemetry import scrape

METRICS = {  # as docs/api.md lists them
    "domicile_batch_lines_total": {"tenant", "outcome"},
    "domicile_batches_ended_total": {"tenant", "status"},
    "domicile_batch_lines_waiting": {"tenant"},
}


async def test_lines_and_batches_are_counted_by_outcome(tmp_path):
    backend = FakeBackend(delay_s=0.2)
    async with gateway(tmp_path, backends={"acme/eu-fr-par/acme-1": backend}) as made, client(made) as sdk:
        batch = await begin(sdk, *(line(number) for number in range(80)), line(80, model="no"))
        async with asyncio.timeout(30):
            while not any(value for _, value in (await scrape(made)).get("domicile_batch_lines_waiting", ())):
                await asyncio.sleep(0.05)
        await over(sdk, batch)
        await over(sdk, await begin(sdk, line(1), line(1)))
        seen = await scrape(made)
    assert {name: set(seen[name][0][0]) for name in METRICS} == METRICS
    lines = {labels["outcome"]: value for labels, value in seen["domicile_batch_lines_total"]}
    assert lines == {"output": 80, "error": 1}
    ended = {labels["status"]: value for labels, value in seen["domicile_batches_ended_total"]}
    assert ended == {"completed": 1, "failed": 1}
