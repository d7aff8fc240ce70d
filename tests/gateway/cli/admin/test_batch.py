"""`domicile batch` beside a running gateway."""

import asyncio
import json
from datetime import UTC, datetime, timedelta

from typer.testing import CliRunner

from gateway.cli.app import app
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


async def test_over_the_admin_api_a_batch_is_listed_shown_and_cancelled_by_who_may(tmp_path):
    backends = {f"{tenant}/eu-fr-par/{tenant}-1": FakeBackend(delay_s=0.1) for tenant in ("acme", "globex")}
    async with gateway(tmp_path, backends=backends) as made, client(made) as sdk:

        async def elsewhere(*words, token, code=0):
            environment = {"DOMICILE_URL": made.base, "XDG_CONFIG_HOME": str(tmp_path / token), "COLUMNS": "200"}
            if not (tmp_path / token).exists():
                said = await asyncio.to_thread(
                    CliRunner().invoke,
                    app,
                    ["login", "--url", made.base, "--token-file", "-"],
                    input=token,
                    env=environment,
                )
                assert said.exit_code == 0, said.output
            said = await asyncio.to_thread(CliRunner().invoke, app, ["batch", *words, "--json"], env=environment)
            assert said.exit_code == code, said.output
            return json.loads(said.stdout) if code == 0 else said.stderr

        def token(tenant, role):
            person = made.control.create_person(tenant, role, [role])
            until = datetime.now(UTC) + timedelta(days=1)
            return made.control.create_token(tenant, person.id, expires_at=until)[1].token

        staff, manager, developer, stranger = [
            await asyncio.to_thread(token, *whose)
            for whose in (
                (None, "operator"),
                ("acme", "tenant-admin"),
                ("acme", "developer"),
                ("globex", "tenant-admin"),
            )
        ]
        batch = await begin(sdk, *(line(number, "Zeppelin") for number in range(300)))
        for who in (staff, manager, developer):
            [listed] = await elsewhere("list", token=who)
            assert (listed["id"], listed["tenant"]) == (batch.id, "acme")
            assert "Zeppelin" not in json.dumps(listed)
            assert (await elsewhere("show", batch.id, token=who))["endpoint"] == "/v1/chat/completions"
        assert await elsewhere("list", token=stranger) == []
        assert "there is no such batch" in await elsewhere("show", batch.id, token=stranger, code=1)
        assert "there is no such batch" in await elsewhere("cancel", batch.id, token=stranger, code=1)
        assert "projects.manage" in await elsewhere("cancel", batch.id, token=developer, code=1)
        assert "at most 200" in await elsewhere("list", "--limit", "201", token=staff, code=1)
        assert (await elsewhere("cancel", batch.id, token=manager))["status"] == "cancelling"
        assert (await over(sdk, batch)).status == "cancelled"
        assert "is cancelled and cannot be cancelled;" in await elsewhere("cancel", batch.id, token=manager, code=1)
        cancelled = [event for event in made.events() if event["type"] == "batch.cancelled"]
        assert [event["batch_id"] for event in cancelled] == [batch.id]
        assert cancelled[0]["actor"].startswith("key:"), "the record names who did it by the token"
