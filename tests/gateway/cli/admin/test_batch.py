"""`domicile batch` beside a running gateway."""

import json

from tests.fakes.backend import FakeBackend
from tests.gateway.batches.conftest import begin, client, gateway, line, over
from tests.gateway.test_rotation_on_two_hosts import domicile


async def test_batches_are_listed_shown_and_cancelled_beside_the_gateway(tmp_path):
    backends = {"acme/eu-fr-par/acme-1": FakeBackend(delay_s=0.1)}
    async with gateway(tmp_path, backends=backends) as made, client(made) as sdk:
        data = ("--data", made.data)
        assert json.loads(await domicile("batch", "list", "--json", *data)) == []
        batch = await begin(sdk, *(line(number, "Zeppelin") for number in range(300)))
        [listed] = json.loads(await domicile("batch", "list", "acme", "--json", *data))
        assert (listed["id"], listed["tenant"], listed["project"], listed["endpoint"]) == (
            batch.id, "acme", "main", "/v1/chat/completions"
        )  # fmt: skip
        assert json.loads(await domicile("batch", "list", "globex", "--json", *data)) == []
        said = await domicile("batch", "show", batch.id, *data)
        assert batch.id in said
        assert "Zeppelin" not in said
        said = json.loads(await domicile("batch", "cancel", batch.id, "--json", *data))
        assert said["status"] == "cancelling"
        ended = await over(sdk, batch)
        assert ended.status == "cancelled"
        said = await domicile("batch", "cancel", batch.id, *data, code=1)
        assert "is cancelled and cannot be cancelled;" in said
        assert "there is no such batch;" in await domicile("batch", "show", "batch_no", *data, code=1)
        shown = json.loads(await domicile("batch", "show", batch.id, "--json", *data))
        assert shown["completed"] == ended.request_counts.completed
        cancelled = [event for event in made.events() if event["type"] == "batch.cancelled"]
        assert [(event["actor"], event["batch_id"]) for event in cancelled] == [("cli", batch.id)]
