"""Responses in the background: queued, answered once behind interactive calls, polled, cancelled; on two databases."""

import asyncio
import sqlite3

import openai
import pytest
from openai.types.responses import Response

from gateway.records.control import Scopes
from tests.conformance.test_openai_python import strictly
from tests.fakes.backend import FakeBackend
from tests.fakes.lab import POLICY
from tests.gateway.batches.conftest import KEEPING, client, gateway
from tests.gateway.responses.conftest import MAIL, WAITING, backends, over
from tests.gateway.test_installation_identity import CONTROL, RECORD, fresh_database


def acts(made, kind):
    return [event for event in made.acts() if event["type"] == kind]


async def test_a_response_is_queued_answered_and_polled(kept):
    queued = await kept.sdk.responses.create(
        model="small", input=f"write to {MAIL}", background=True, instructions="Be short", metadata={"a": "b"}
    )
    assert (queued.status, queued.background, queued.store, queued.output) == ("queued", True, True, [])
    done = await over(kept.sdk, queued)
    strictly(Response, done)
    assert (done.id, done.status, done.output_text) == (queued.id, "completed", f"You said write to {MAIL}")
    assert (done.created_at, done.metadata, done.instructions) == (queued.created_at, {"a": "b"}, "Be short")
    assert done.usage.total_tokens == 12 and done.output[0].id.startswith("msg_" + queued.id.removeprefix("resp_"))
    assert MAIL not in kept.backends["acme-1"].received
    (accepted,) = acts(kept, "inference.accepted")
    assert (accepted["batch_id"], accepted["batch_line"], accepted["endpoint"]) == (queued.id, 1, "/v1/responses")
    kinds = [event["type"] for event in kept.acts()]
    assert kinds.index("response.queued") < kinds.index("inference.accepted") < kinds.index("response.ended")
    again = await kept.sdk.responses.create(model="small", input="and?", previous_response_id=done.id, background=True)
    assert (await over(kept.sdk, again)).previous_response_id == done.id
    assert len(kept.backends["acme-1"].bodies[-1]["messages"]) == 3, "without the instructions of before"
    assert [item.role async for item in kept.sdk.responses.input_items.list(again.id)] == ["user", "assistant", "user"]
    assert (await kept.sdk.batches.list()).data == [], "it is no batch of the project's"


async def test_conversations_and_the_queue_are_in_postgresql_too(tmp_path, monkeypatch, postgresql_url):
    for variable in (CONTROL, RECORD, "DOMICILE_VALUES_DATABASE_URL"):
        monkeypatch.setenv(variable, fresh_database(postgresql_url))
    async with gateway(tmp_path, backends=backends("acme")) as made, client(made) as sdk:
        first = await sdk.responses.create(model="small", input=f"I am {MAIL}")
        queued = await sdk.responses.create(
            model="small", input="and?", background=True, previous_response_id=first.id, safety_identifier="alice"
        )
        assert (await over(sdk, queued)).output_text == "You said and?"
        cancelled = await sdk.responses.cancel(queued.id)
        assert cancelled.status == "completed"
        await sdk.responses.delete(first.id)
        with pytest.raises(openai.NotFoundError):
            await sdk.responses.create(model="small", input="x", previous_response_id=queued.id)
        responses = made.gateway.responses
        now = responses.responses.now
        object.__setattr__(responses.responses, "now", lambda: now() + 8 * 86_400)
        assert await responses.retention.expire() == 1


async def test_an_end_is_final_and_a_cancelled_one_is_not_answered(tmp_path):
    slow = backends("acme", delay_s=3.0)
    async with gateway(tmp_path, backends=slow, batches={"concurrent_lines": 1}) as made, client(made) as sdk:
        running, waiting, deleted = [
            await sdk.responses.create(model="small", input="x" * 60, background=True) for _ in range(3)
        ]
        async with asyncio.timeout(20):
            while (await sdk.responses.retrieve(running.id)).status != "in_progress":
                await asyncio.sleep(0.02)
        with pytest.raises(openai.ConflictError):
            await sdk.responses.delete(deleted.id)
        with pytest.raises(openai.BadRequestError) as refused:
            await sdk.responses.create(model="small", input="x", previous_response_id=running.id)
        assert refused.value.param == "previous_response_id"
        for each in (waiting, running, deleted, waiting):
            assert (await sdk.responses.cancel(each.id)).status == "cancelled"
        async with asyncio.timeout(20):
            while not acts(made, "inference.aborted"):
                await asyncio.sleep(0.02)
        assert acts(made, "inference.aborted")[0]["reason"] == "client_disconnected"
        made.backends["acme-1"].delay_s = 0.0
        last = await sdk.responses.create(model="small", input="last", background=True)
        assert (await over(sdk, last)).status == "completed"
        assert (await sdk.responses.cancel(last.id)).status == "completed", "it stays as it is"
        assert [(await sdk.responses.retrieve(each.id)).status for each in (running, waiting)] == ["cancelled"] * 2
        assert len(made.backends["acme-1"].bodies) == 2, "the running one and the last one"
        assert len(acts(made, "response.cancelled")) == 3
        await sdk.responses.delete(deleted.id)
        with pytest.raises(openai.NotFoundError):
            await sdk.responses.retrieve(deleted.id)


async def test_what_cannot_be_answered_is_refused_at_once_and_what_fails_later_says_why(tmp_path):
    def set_up(made):
        made.tenant("acme", KEEPING.replace("email: pseudonymise", "email: block"))
        _, key = made.control.create_key("acme", "main", scopes=Scopes(endpoints=("chat/completions",)))
        made.keys["chats"] = key.token

    failing = {"acme/eu-fr-par/acme-1": FakeBackend(status=400, error={"message": "too long", "code": "context"})}
    async with gateway(tmp_path, set_up=set_up, backends=failing) as made, client(made) as sdk:
        for asked, status, param in [
            ({"input": MAIL}, 422, None), ({"model": "none"}, 404, "model"), ({"input": 7}, 400, "input"),
        ]:  # fmt: skip
            answer = await made.post({"model": "small", "input": "x", "background": True, **asked}, "/v1/responses")
            assert (answer.status, answer.error["param"]) == (status, param)
        body = {"model": "small", "input": "x", "background": True}
        assert (await made.post(body, "/v1/responses", key="chats")).status == 403
        assert acts(made, "response.queued") == []
        failed = await over(sdk, await sdk.responses.create(**body))
        strictly(Response, failed)
        assert (failed.status, failed.error.code, failed.error.message) == ("failed", "invalid_prompt", "too long")
        assert [event["status"] for event in acts(made, "response.ended")] == ["failed"]


async def test_a_policy_that_stops_keeping_fails_what_waits_and_a_revoked_key_too(tmp_path):
    slow = backends("acme", delay_s=1.0)
    async with gateway(tmp_path, backends=slow, batches={"concurrent_lines": 1}) as made, client(made) as sdk:
        first, second = [await sdk.responses.create(model="small", input="x" * 30, background=True) for _ in range(2)]
        made.control.activate_policy("acme", POLICY)
        await made.taken_over()
        done = await over(sdk, second)
        assert (done.status, "retention.content" in done.error.message) == ("failed", True)
        assert (await over(sdk, first)).status in ("completed", "failed")


async def test_as_many_wait_as_the_gateway_allows(tmp_path):
    few = {"max_waiting": 2, "concurrent_lines": 0}
    async with gateway(tmp_path, backends=backends("acme"), batches=few) as made, client(made) as sdk:
        for _ in range(2):
            await sdk.responses.create(model="small", input="x", background=True)
        with pytest.raises(openai.RateLimitError) as refused:
            await sdk.responses.create(model="small", input="x", background=True)
        assert refused.value.code == "too_many_responses"
        assert len(acts(made, "response.queued")) == 2


async def test_the_person_of_the_header_is_the_person_of_the_call(kept):
    queued = await kept.post(
        {"model": "small", "input": "x", "background": True}, "/v1/responses", headers={"x-domicile-subject": "Zoë"}
    )
    async with asyncio.timeout(20):
        while (await kept.sdk.responses.retrieve(queued.json["id"])).status in WAITING:
            await asyncio.sleep(0.05)
    with sqlite3.connect(kept.data / "audit" / "side.db") as side:
        keys = side.execute("SELECT count(*) FROM data_key WHERE subject IS NOT NULL").fetchone()[0]
    assert keys == 1, "the response and what is kept of its call are under one key"


async def test_a_line_of_a_batch_is_not_queued_again(kept):
    from tests.gateway.batches.conftest import begin, outcome

    lines = [
        {"custom_id": name, "method": "POST", "url": "/v1/responses", "body": {"model": "small", "input": "x", **more}}
        for name, more in {"plain": {}, "kept": {"store": True}, "later": {"background": True}}.items()
    ]
    _, found = await outcome(kept.sdk, await begin(kept.sdk, *lines, endpoint="/v1/responses"))
    assert found["later"]["response"]["body"]["error"]["param"] == "background"
    plain, stored = (found[name]["response"]["body"] for name in ("plain", "kept"))
    assert (plain["store"], stored["store"]) == (False, True)
    assert (await kept.sdk.responses.retrieve(stored["id"])).status == "completed"
    with pytest.raises(openai.NotFoundError):
        await kept.sdk.responses.retrieve(plain["id"])


async def test_what_was_not_answered_in_a_day_fails(tmp_path):
    slow = backends("acme", delay_s=1.0)
    async with gateway(tmp_path, backends=slow, batches={"concurrent_lines": 1}) as made, client(made) as sdk:
        first, late = [await sdk.responses.create(model="small", input="x" * 30, background=True) for _ in range(2)]
        async with asyncio.timeout(20):
            while (await sdk.responses.retrieve(first.id)).status != "in_progress":
                await asyncio.sleep(0.02)
        responses = made.gateway.responses.responses
        now = responses.now
        object.__setattr__(responses, "now", lambda: now() + 90_000)
        done = await over(sdk, late)
        assert (done.status, done.error.code) == ("failed", "server_error")
        assert "24 hours" in done.error.message
        assert (await over(sdk, first)).status == "completed"
        assert len(made.backends["acme-1"].bodies) == 1


async def test_interactive_calls_wait_for_none_of_the_background(tmp_path):
    slow = backends("acme", delay_s=0.3)
    async with gateway(tmp_path, backends=slow) as made, client(made) as sdk:
        many = [await sdk.responses.create(model="small", input="x", background=True) for _ in range(12)]
        assert (await sdk.responses.create(model="small", input="now")).output_text == "You said now"
        waiting = [each for each in many if (await sdk.responses.retrieve(each.id)).status in WAITING]
        assert waiting
        assert [(await over(sdk, each)).status for each in many] == ["completed"] * 12
        assert len(made.backends["acme-1"].bodies) == 13
