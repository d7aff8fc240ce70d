"""Each line is a call like any other: judged, redacted, limited, recorded and paid by what is in force at its turn."""

import asyncio
import json
from decimal import Decimal

import openai
import pytest

from gateway.installation.installation import Installation
from gateway.limits.limit_kinds import LimitFigures
from gateway.store.reports.usage_report import entries
from regions.identity.identity import BackendIdentity
from tests.fakes.backend import FakeBackend
from tests.fakes.lab import POLICY, chat
from tests.gateway.batches.conftest import (
    KEEPING,
    begin,
    client,
    gateway,
    keeping,
    line,
    lines_of,
    outcome,
    over,
    upload,
)
from tests.gateway.test_installation_identity import CONTROL, RECORD, fresh_database
from tests.gateway.test_rotation_on_two_hosts import domicile, second_host

BACKEND = "acme/eu-fr-par/acme-1"
MAIL, IBAN = "alice@example.org", "DE89 3704 0044 0532 0130 00"


def slow(delay_s=0.05, **more):
    return {BACKEND: FakeBackend(delay_s=delay_s, **more)}


async def some_are_done(sdk, batch, completed=8):
    async with asyncio.timeout(30):
        while (await sdk.batches.retrieve(batch.id)).request_counts.completed < completed:
            await asyncio.sleep(0.01)


async def test_where_the_policy_keeps_nothing_files_are_refused_by_name(tmp_path):
    async with (
        gateway(tmp_path, set_up=lambda made: made.tenant("acme", POLICY), backends=slow()) as made,
        client(made) as sdk,
    ):
        with pytest.raises(openai.PermissionDeniedError) as refused:
            await upload(sdk, line(1))
        assert refused.value.code == "retention.content"
        assert "set retention.content" in refused.value.message
        with made.control._database.engine.connect() as connection:
            assert connection.exec_driver_sql("SELECT count(*) FROM stored_file").scalar_one() == 0


async def test_where_the_record_may_not_be_kept_files_are_not_either(tmp_path):
    settings = {"sinks": {"record": "US"}}
    async with gateway(tmp_path, backends=slow(), **settings) as made, client(made) as sdk:
        with pytest.raises(openai.PermissionDeniedError) as refused:
            await upload(sdk, line(1))
        assert refused.value.code == "residency.store_in"


async def test_a_line_is_redacted_and_restored_as_an_interactive_call_is(tmp_path):
    echo = FakeBackend(say=lambda body: f"You said: {body['messages'][0]['content']}")
    async with gateway(tmp_path, backends={BACKEND: echo}) as made, client(made) as sdk:
        text = f"write to {MAIL} about {IBAN}"
        interactive = (await made.post(chat(text))).json
        _, found = await outcome(sdk, await begin(sdk, line(1, text), line(2, "sk-live-" + "a1B2" * 10)))
        answer = found["line-1"]["response"]["body"]
        assert answer["choices"] == interactive["choices"]
        assert MAIL in answer["choices"][0]["message"]["content"], "restored"
        assert MAIL not in echo.received
        assert IBAN not in echo.received


async def test_what_the_policy_blocks_fails_its_line_alone_and_is_on_record(tmp_path):
    policy = KEEPING.replace("email: pseudonymise", "email: block", 1)
    async with (
        gateway(tmp_path, set_up=lambda made: made.tenant("acme", policy), backends=slow(0)) as made,
        client(made) as sdk,
    ):
        batch, found = await outcome(sdk, await begin(sdk, line(1), line(2, f"to {MAIL}"), line(3)))
        refused = found["line-2"]["response"]
        assert (refused["status_code"], refused["body"]["error"]["code"]) == (422, "redaction_blocked")
        assert batch.request_counts.model_dump() == {"total": 3, "completed": 2, "failed": 1}
        [denied] = [event for event in made.events() if event["type"] == "inference.denied"]
        assert (denied["batch_id"], denied["batch_line"]) == (batch.id, 2)


async def test_a_revoked_key_governs_the_next_line(tmp_path):
    async with gateway(tmp_path, backends=slow()) as made, client(made) as sdk:
        batch = await begin(sdk, *(line(number) for number in range(200)))
        await some_are_done(sdk, batch)
        key_id = made.events()[-1].get("key_id") or next(e["key_id"] for e in made.events() if "key_id" in e)
        _, fresh = made.control.create_key("acme", "main")
        made.control.revoke_key("acme", key_id)
        made.keys["acme/main"] = fresh.token
        async with client(made) as again:
            batch, found = await outcome(again, batch)
        assert batch.status == "completed"
        assert 8 <= batch.request_counts.completed < 200
        codes = {
            each["response"]["body"]["error"]["code"]
            for each in found.values()
            if each["response"]["status_code"] != 200
        }
        assert codes == {"revoked_api_key"}
        assert len(made.backends["acme-1"].bodies) == batch.request_counts.completed


async def test_an_oversight_stop_governs_the_next_line(tmp_path):
    async with gateway(tmp_path, backends=slow()) as made, client(made) as sdk:
        batch = await begin(sdk, *(line(number) for number in range(200)))
        await some_are_done(sdk, batch)
        made.control.stop("acme", project="main", reason="judgement")
        batch, found = await outcome(sdk, batch)
        assert 8 <= batch.request_counts.completed < 200
        codes = {
            each["response"]["body"]["error"]["code"]
            for each in found.values()
            if each["response"]["status_code"] != 200
        }
        assert codes == {"oversight.stopped"}


async def test_a_changed_policy_governs_the_next_line_and_what_is_kept(tmp_path):
    async with gateway(tmp_path, backends=slow()) as made, client(made) as sdk:
        batch = await begin(sdk, *(line(number) for number in range(200)))
        await some_are_done(sdk, batch)
        made.control.activate_policy("acme", POLICY.replace("version: 1", "version: 2"))
        batch = await over(sdk, batch)
        assert (batch.output_file_id, batch.error_file_id) == (None, None), "the policy keeps nothing any more"
        assert 8 <= len(made.backends["acme-1"].bodies) < 200
        with made.control._database.engine.connect() as connection:
            assert connection.exec_driver_sql("SELECT count(*) FROM batch_result").scalar_one() == 0


async def test_lines_wait_for_limits_and_leave_a_part_to_interactive_calls(tmp_path):
    def limited(made):
        keeping(made)
        made.control.set_limits("acme", LimitFigures(requests_per_minute=40))

    async with gateway(tmp_path, set_up=limited, backends=slow(0)) as made, client(made) as sdk:
        batch = await begin(sdk, *(line(number) for number in range(35)))
        await some_are_done(sdk, batch, 28)
        statuses = [(await made.post(chat("hi"))).status for _ in range(4)]
        assert statuses == [200] * 4, "a batch does not use a limit up"
        batch, _ = await outcome(sdk, batch)
        assert batch.request_counts.model_dump() == {"total": 35, "completed": 35, "failed": 0}


async def test_a_line_is_paid_at_the_price_of_batches(tmp_path):
    def priced(made):
        keeping(made)
        made.control.set_price("small", input=Decimal(10), output=Decimal(20), batch_discount=50)

    async with gateway(tmp_path, set_up=priced, backends=slow(0)) as made, client(made) as sdk:
        assert (await made.post(chat("hi"))).status == 200
        await over(sdk, await begin(sdk, line(1)))
    database = Installation.open(made.data).database()
    paid = [row.nano_eur for row in entries(database, tenant="acme")]
    database.close()
    assert sorted(paid) == [85_000, 170_000]


async def test_lines_go_to_the_cheapest_backend_behind_interactive_calls(tmp_path):
    backends = {"acme/eu-fr-par/dear": FakeBackend(), "acme/eu-fr-par/cheap": FakeBackend()}
    async with gateway(tmp_path, backends=backends) as made, client(made) as sdk:
        for name, cost in (("dear", Decimal(9)), ("cheap", Decimal(1))):
            place = BackendIdentity("eu-1", "acme", "eu-fr-par", name)
            fake = backends[f"acme/eu-fr-par/{name}"]
            made.control.register_backend(place, url=fake.url, models=[fake.model], eur_per_million=cost)
        await made.taken_over()
        await over(sdk, await begin(sdk, *(line(number, f"{number}") for number in range(20))))
        assert len(backends["acme/eu-fr-par/dear"].bodies) == 0
        bodies = backends["acme/eu-fr-par/cheap"].bodies
        assert [body["priority"] for body in bodies] == [2] * 20
        await made.post(chat("hi"))
        assert "priority" not in (backends["acme/eu-fr-par/cheap"].bodies + backends["acme/eu-fr-par/dear"].bodies)[-1]


@pytest.mark.parametrize("status", [500, 400])
async def test_a_server_that_fails_is_asked_again_and_then_that_is_the_result(tmp_path, status):
    backend = FakeBackend(status=status, error={"message": "no", "type": "x"})
    async with gateway(tmp_path, backends={BACKEND: backend}) as made, client(made) as sdk:
        batch, found = await outcome(sdk, await begin(sdk, line(1)))
        assert batch.status == "completed"
        assert found["line-1"]["response"]["status_code"] in (status, 502, 503)
        assert len(backend.bodies) == (1 if status == 400 else len(backend.bodies))


async def test_a_person_is_erased_from_the_files_of_a_batch_with_what_the_calls_kept(tmp_path):
    async with gateway(tmp_path, backends=slow(0)) as made, client(made) as sdk:
        batch = await begin(sdk, line(1, "of alice", user="alice"), line(2, "of bob", user="bob"), line(3, "of nobody"))
        batch = await over(sdk, batch)
        assert len(await lines_of(sdk, batch.output_file_id)) == 3
        said = await domicile("audit", "erase", "acme", "--subject", "alice", "--yes", "--data", made.data)
        assert "keys" in said
        left = {each["custom_id"] for each in await lines_of(sdk, batch.output_file_id)}
        assert left == {"line-2", "line-3"}
        content = (await sdk.files.content(batch.input_file_id)).text
        assert "of alice" not in content
        assert "of bob" in content
        again = await sdk.batches.create(
            input_file_id=batch.input_file_id, endpoint="/v1/chat/completions", completion_window="24h"
        )
        again = await over(sdk, again)
        assert again.request_counts.model_dump() == {"total": 3, "completed": 2, "failed": 1}
        [gone] = await lines_of(sdk, again.error_file_id)
        assert (gone["custom_id"], gone["error"]["code"], gone["error"]["line"]) == (None, "content_erased", 1)


async def test_a_held_file_is_neither_deleted_nor_does_it_expire(tmp_path):
    async with gateway(tmp_path, backends=slow(0)) as made, client(made) as sdk:
        file = await upload(sdk, line(1, user="alice"))
        await domicile("audit", "hold", "place", "acme", "--subject", "alice", "--data", made.data)
        with pytest.raises(openai.ConflictError):
            await sdk.files.delete(file.id)
        assert (await sdk.files.retrieve(file.id)).id == file.id


async def test_nothing_of_a_line_is_readable_in_the_databases(tmp_path):
    async with gateway(tmp_path, backends={BACKEND: FakeBackend(say="Montevideo")}) as made, client(made) as sdk:
        file = await sdk.files.create(
            file=("zanzibar.jsonl", json.dumps(line(1, "Zeppelin")).encode()), purpose="batch"
        )
        batch = await sdk.batches.create(
            input_file_id=file.id,
            endpoint="/v1/chat/completions",
            completion_window="24h",
            metadata={"note": "Timbuktu"},
        )
        assert (await over(sdk, batch)).request_counts.completed == 1
    said = b"".join(path.read_bytes() for path in made.data.rglob("*") if path.is_file())
    for word in (b"Zeppelin", b"Montevideo", b"zanzibar", b"Timbuktu", b"line-1"):
        assert word not in said, word


async def test_a_host_without_the_keys_neither_reads_nor_spoils_what_another_host_keeps(
    tmp_path, monkeypatch, postgresql_url
):
    """Two hosts share the control database and the record; each has a value store of its own."""
    for variable in (CONTROL, RECORD):
        monkeypatch.setenv(variable, fresh_database(postgresql_url))
    two = tmp_path / "two"
    async with gateway(tmp_path, backends=slow()) as made, client(made) as sdk:
        await domicile("init", "--data", made.data, "--export-keys", tmp_path / "set")
        async with second_host(two, tmp_path / "set") as other, client(made, base=other) as there:
            batch = await begin(sdk, *(line(number, user="alice") for number in range(60)))
            assert (await there.batches.retrieve(batch.id)).id == batch.id
            with pytest.raises(openai.InternalServerError) as refused:
                await there.files.content(batch.input_file_id)
            assert "database.values_url" in refused.value.message
            elsewhere = await begin(there, line(1))
            batch = await over(sdk, batch)
            assert batch.request_counts.model_dump() == {"total": 60, "completed": 60, "failed": 0}
            assert len(await lines_of(sdk, batch.output_file_id)) == 60
            assert (await over(there, elsewhere)).request_counts.completed == 1


async def test_an_erased_tenants_batch_fails_and_goes(tmp_path):
    async with gateway(tmp_path, backends=slow()) as made, client(made) as sdk:
        batch = await begin(sdk, *(line(number) for number in range(200)))
        await some_are_done(sdk, batch)
        await domicile("audit", "erase", "acme", "--all", "--yes", "--data", made.data)
        async with asyncio.timeout(20):
            while len(made.backends["acme-1"].bodies) == 200 or made.gateway.batches.worker._tenants:
                await asyncio.sleep(0.05)
        assert len(made.backends["acme-1"].bodies) < 200
