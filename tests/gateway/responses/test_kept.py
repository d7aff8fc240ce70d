"""Responses that are kept: read, listed, gone on with, deleted, as the official SDK does it."""

import json
import sqlite3
from contextlib import closing

import openai
import pytest
from openai.types.responses import Response, ResponseItem
from pydantic import TypeAdapter

from gateway.database.errors import DatabaseUnavailable
from gateway.errors import AuditUnavailable
from tests.conformance.test_openai_python import strictly
from tests.fakes.backend import FakeBackend
from tests.fakes.lab import POLICY, lab
from tests.fakes.tool_user import ToolUser
from tests.gateway.apis.recorded import events
from tests.gateway.batches.conftest import KEEPING, client, gateway, keeping
from tests.gateway.responses.conftest import MAIL, backends

ITEM = TypeAdapter(ResponseItem)
LOOK = {
    "type": "function", "name": "look", "strict": True,
    "parameters": {"type": "object", "properties": {"about": {"type": "string"}}, "required": ["about"]},
}  # fmt: skip


async def items_of(sdk, response, **query):
    return [item async for item in sdk.responses.input_items.list(response.id, **query)]


async def streamed(sdk, **asked):
    async with sdk.responses.stream(**asked) as events:
        return await events.get_final_response()


@pytest.mark.parametrize("stream", [False, True])
async def test_what_an_sdk_sends_by_default_is_kept_and_read_again(kept, stream):
    asked = {"model": "small", "instructions": "Be short", "input": f"write to {MAIL}", "metadata": {"a": "b"}}
    first = await (streamed(kept.sdk, **asked) if stream else kept.sdk.responses.create(**asked))
    assert (first.store, first.output_text) == (True, f"You said write to {MAIL}")
    again = await kept.sdk.responses.retrieve(first.id)
    strictly(Response, again)
    assert again.to_dict() == first.to_dict() if not stream else again.output_text == first.output_text
    (item,) = await items_of(kept.sdk, first)
    assert ITEM.validate_json(item.to_json(), strict=False)
    assert (item.type, item.role, item.content[0].text) == ("message", "user", f"write to {MAIL}")
    assert MAIL not in kept.backends["acme-1"].received
    completed = next(event for event in kept.events() if event["type"] == "inference.completed")
    assert completed["response_id"] == first.id
    reads = [event for event in kept.events() if event["type"] == "response.read"]
    assert [(event["response_id"], event["status"]) for event in reads] == [(first.id, "completed")] * 2
    assert reads[0]["actor"].startswith("key:")


async def test_a_conversation_goes_on_by_the_id_of_the_last_response(kept):
    sdk, backend = kept.sdk, kept.backends["acme-1"]
    first = await sdk.responses.create(model="small", instructions="Be short", input=f"I am {MAIL}")
    second = await sdk.responses.create(model="small", input="And now?", previous_response_id=first.id)
    third = await streamed(sdk, model="small", previous_response_id=second.id, input=[{"role": "user", "content": "?"}])
    sent = backend.bodies[-1]["messages"]
    assert [message["role"] for message in sent] == ["user", "assistant", "user", "assistant", "user"]
    assert (sent[2]["content"], sent[3]["content"], sent[4]["content"]) == ("And now?", "You said And now?", "?")
    assert MAIL not in backend.received
    assert sent[0]["content"] in sent[1]["content"], "one value, one placeholder in a conversation of one call"
    assert (second.previous_response_id, third.previous_response_id) == (first.id, second.id)
    assert (await sdk.responses.retrieve(third.id)).output_text == "You said ?"
    listed = await items_of(sdk, third, order="asc")
    assert [item.role for item in listed] == ["user", "assistant", "user", "assistant", "user"]
    assert len({item.id for item in listed}) == 5
    assert [item.id for item in await items_of(sdk, third, limit=2)] == [item.id for item in listed][::-1]
    page = await sdk.responses.input_items.list(third.id, limit=2, order="asc", after=listed[1].id)
    assert ([item.id for item in page.data], page.has_more) == ([item.id for item in listed[2:4]], True)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_tool_runs_with_only_its_result_sent(tmp_path, stream):
    async with gateway(tmp_path, backends={"acme/eu-fr-par/acme-1": ToolUser()}) as made, client(made) as sdk:

        async def turn(**asked):
            asked = {"model": "small", "tools": [LOOK], **asked}
            return await (streamed(sdk, **asked) if stream else sdk.responses.create(**asked))

        first = await turn(input=f"Look up {MAIL}", include=["reasoning.encrypted_content"])
        call = first.output[-1]
        result = {"type": "function_call_output", "call_id": call.call_id, "output": f"{MAIL} is out"}
        second = await turn(previous_response_id=first.id, input=[result])
        assert second.output_text == f"It says: {MAIL} is out"
        sent = made.backends["acme-1"].bodies[-1]["messages"]
        assert [message["role"] for message in sent] == ["user", "assistant", "tool"]
        assert sent[1]["reasoning_content"] == "I should look."
        listed = await items_of(sdk, second, order="asc")
        assert [item.type for item in listed] == ["message", "reasoning", "function_call", "function_call_output"]
        for item in listed:
            ITEM.validate_json(item.to_json(), strict=False)


async def test_an_item_is_named_instead_of_sent_again(kept):
    first = await kept.sdk.responses.create(model="small", input="one")
    reference = {"type": "item_reference", "id": first.output[0].id}
    asked = [{"role": "user", "content": "one"}, reference, {"role": "user", "content": MAIL}]
    second = await kept.sdk.responses.create(model="small", input=asked)
    sent = kept.backends["acme-1"].bodies[-1]["messages"]
    assert [message["content"] for message in sent[:2]] == ["one", "You said one"]
    (_, _, own) = await items_of(kept.sdk, second, order="asc")
    third = await kept.sdk.responses.create(model="small", input=[{"type": "item_reference", "id": own.id}])
    assert third.output_text == f"You said {MAIL}"
    for missing in ("msg_1", first.output[0].id.replace("msg", "rs")[:-1] + "9", "msg_" + "0" * 36):
        with pytest.raises(openai.NotFoundError) as refused:
            await kept.sdk.responses.create(model="small", input=[asked[0], {"type": "item_reference", "id": missing}])
        assert (refused.value.code, refused.value.param) == ("not_found", "input.1.id")
        assert "store: false" in refused.value.message


async def test_a_deleted_response_is_gone_and_so_is_what_rests_on_it(kept):
    sdk = kept.sdk
    first = await sdk.responses.create(model="small", input="one")
    second = await sdk.responses.create(model="small", input="two", previous_response_id=first.id)
    await sdk.responses.delete(first.id)
    for call in (sdk.responses.retrieve, sdk.responses.delete, sdk.responses.cancel, sdk.responses.input_items.list):
        with pytest.raises(openai.NotFoundError) as refused:
            await call(first.id)
        assert (refused.value.code, refused.value.param) == ("not_found", "id")
    for broken in (first, second):
        with pytest.raises(openai.NotFoundError) as refused:
            await sdk.responses.create(model="small", input="three", previous_response_id=broken.id)
        assert (refused.value.code, refused.value.param) == ("previous_response_not_found", "previous_response_id")
    assert [item.content[0].text for item in await items_of(sdk, second)] == ["two"]
    assert "response.deleted" in kept.types()
    assert len(kept.backends["acme-1"].bodies) == 2, "nothing was sent for what was refused"


async def test_ids_of_other_projects_and_tenants_are_as_unknown_ones(kept):
    mine = await kept.sdk.responses.create(model="small", input=MAIL)
    unknown = "resp_" + "0" * 32
    async with client(kept, "acme/other") as other, client(kept, "globex/main") as stranger:
        told = set()
        for sdk in (other, stranger, kept.sdk):
            for id_ in (mine.id, unknown) if sdk is not kept.sdk else (unknown, "resp_1", "x" * 300):
                for call in (
                    sdk.responses.retrieve, sdk.responses.delete, sdk.responses.cancel, sdk.responses.input_items.list,
                ):  # fmt: skip
                    with pytest.raises(openai.NotFoundError) as refused:
                        await call(id_)
                    told.add(str(refused.value))
        assert len(told) == 1
        told = set()
        for sdk, id_ in ((other, mine.id), (stranger, mine.id), (kept.sdk, unknown), (kept.sdk, "conv_1")):
            with pytest.raises(openai.NotFoundError) as refused:
                await sdk.responses.create(model="small", input="x", previous_response_id=id_)
            told.add(str(refused.value))
            item = {"type": "item_reference", "id": mine.output[0].id if id_ == mine.id else "msg_2"}
            with pytest.raises(openai.NotFoundError):
                await sdk.responses.create(model="small", input=[item])
        assert len(told) == 1
    assert not [event for event in kept.acts() if event["type"] == "response.read"]
    assert (await kept.sdk.responses.retrieve(mine.id)).id == mine.id


@pytest.mark.parametrize("stream", [False, True])
async def test_a_policy_that_keeps_nothing_refuses_by_name_and_answers_all_else(tmp_path, stream):
    async with lab(tmp_path, backends=backends("acme")) as made, client(made) as sdk:
        for asked in ({"store": True, "stream": stream}, {"background": True}):
            with pytest.raises(openai.PermissionDeniedError) as refused:
                await sdk.responses.create(model="small", input="x", **asked)
            assert refused.value.code == "retention.content"
            assert "store: false" in refused.value.message and "retention.content" in refused.value.message
        assert made.backends["acme-1"].bodies == []
        assert [event["type"] for event in made.acts()].count("inference.denied") == 2
        for asked in ({}, {"store": False}):
            whole = {"model": "small", "input": "x", **asked}
            answer = await (streamed(sdk, **whole) if stream else sdk.responses.create(**whole))
            assert (answer.store, answer.output_text) == (False, "You said x")
            with pytest.raises(openai.NotFoundError):
                await sdk.responses.retrieve(answer.id)
            with pytest.raises(openai.NotFoundError):
                await sdk.responses.create(model="small", input="x", previous_response_id=answer.id)


async def test_store_false_keeps_nothing_and_can_go_on_with_what_is_kept(kept):
    first = await kept.sdk.responses.create(model="small", input="one")
    last = await kept.sdk.responses.create(model="small", input="two", previous_response_id=first.id, store=False)
    assert (last.store, len(kept.backends["acme-1"].bodies[-1]["messages"])) == (False, 3)
    with pytest.raises(openai.NotFoundError):
        await kept.sdk.responses.retrieve(last.id)
    completed = [event for event in kept.events() if event["type"] == "inference.completed"]
    assert [event.get("response_id") for event in completed] == [first.id, None]


async def test_a_policy_that_tightened_meanwhile_applies_to_the_turns_before(kept):
    sdk = kept.sdk
    first = await sdk.responses.create(model="small", input=f"I am {MAIL}")
    kept.control.activate_policy("acme", KEEPING.replace("email: pseudonymise", "email: block"))
    await kept.taken_over()
    with pytest.raises(openai.UnprocessableEntityError) as refused:
        await sdk.responses.create(model="small", input="and?", previous_response_id=first.id)
    assert refused.value.code == "redaction_blocked"
    assert refused.value.body["findings"][0] == {"label": "email", "position": "previous_response_id"}
    assert MAIL not in refused.value.message
    kept.control.activate_policy("acme", POLICY)
    await kept.taken_over()
    with pytest.raises(openai.PermissionDeniedError) as refused:
        await sdk.responses.create(model="small", input="and?", previous_response_id=first.id)
    assert refused.value.code == "retention.content"
    assert len(kept.backends["acme-1"].bodies) == 1
    assert (await sdk.responses.retrieve(first.id)).output_text == f"You said I am {MAIL}", "kept as when it was made"


async def test_what_is_wrong_with_a_body_is_named_where_the_client_wrote_it(kept):
    first = await kept.sdk.responses.create(model="small", input="one")
    image = {"role": "user", "content": [{"type": "input_image", "image_url": "data:,"}]}
    for wrong, param in [
        ({"input": [{"role": "king", "content": "x"}]}, "input.0.role"),
        ({"input": [{"role": "user", "content": "x"}, {"role": "user", "content": 7}]}, "input.1.content"),
        ({"input": [image]}, "input.0.content.0"),
        ({"input": 7}, "input"),
        ({"input": []}, "input"),
        ({"input": "x", "temperature": 9}, "temperature"),
        ({"input": "x", "unheard": 9}, "unheard"),
        ({"input": "x", "previous_response_id": 7}, "previous_response_id"),
        ({"input": "x", "previous_response_id": "not an id!"}, "previous_response_id"),
        ({"input": [{"type": "item_reference"}]}, "input.0.id"),
        ({"input": [{"type": "item_reference", "id": 7}]}, "input.0.id"),
        ({"input": "x", "store": "yes"}, "store"),
        ({"input": "x", "background": 1}, "background"),
        ({"input": "x", "background": True, "store": False}, "store"),
        ({"input": "x", "background": True, "stream": True}, "stream"),
        ({"input": "x", "conversation": "conv_1"}, "conversation"),
    ]:
        body = {"model": "small", "previous_response_id": first.id, **wrong}
        answer = await kept.post(body, "/v1/responses")
        assert answer.status in (400, 422), (wrong, answer.body)
        assert answer.error["param"] == param, wrong
    assert len(kept.backends["acme-1"].bodies) == 1


QUERIES = {
    "?stream=true": "stream", "?starting_after=3": "starting_after", "?include[]=all": "include",
    "/input_items?limit=0": "limit", "/input_items?limit=101": "limit", "/input_items?limit=x": "limit",
    "/input_items?order=up": "order", "/input_items?after=msg_1": "after", "/input_items?include=x": "include",
}  # fmt: skip


async def test_a_query_that_is_wrong_is_refused_by_its_name(kept):
    first = await kept.sdk.responses.create(model="small", input="one")
    for query, param in QUERIES.items():
        answer = await kept.get(f"/v1/responses/{first.id}{query}")
        assert (answer.status, answer.error["param"]) == (404 if param == "after" else 400, param)
    assert (
        await kept.get(f"/v1/responses/{first.id}?stream=false&include[]=reasoning.encrypted_content")
    ).status == 200


async def test_a_response_that_was_not_in_the_background_is_not_cancelled(kept):
    first = await kept.sdk.responses.create(model="small", input="one")
    with pytest.raises(openai.BadRequestError, match="background: true"):
        await kept.sdk.responses.cancel(first.id)


async def test_keys_that_are_not_for_responses_and_stopped_projects_read_nothing(tmp_path):
    def set_up(made):
        from gateway.records.control import Scopes

        keeping(made)
        _, key = made.control.create_key("acme", "main", scopes=Scopes(endpoints=("chat/completions",)))
        made.keys["chats"] = key.token

    async with gateway(tmp_path, set_up=set_up, backends=backends()) as made, client(made) as sdk:
        first = await sdk.responses.create(model="small", input="one")
        refused = await made.get(f"/v1/responses/{first.id}", key="chats")
        assert (refused.status, refused.error["code"]) == (403, "key.scope")
        for path, body in ((first.id, None), (f"{first.id}/input_items", None), (f"{first.id}/cancel", {})):
            url = f"/v1/responses/{path}"
            refused = await (made.get(url, key="nobody") if body is None else made.post(body, url, key="nobody"))
            assert refused.status == 401


async def test_an_answer_that_fails_is_not_kept(tmp_path):
    dying = {"acme/eu-fr-par/acme-1": ToolUser(say="Hello there my friend", thought="", die_after=3)}
    async with gateway(tmp_path, backends=dying) as made, client(made) as sdk:
        events = [event async for event in await sdk.responses.create(model="small", input="x", stream=True)]
        assert events[-1].type == "response.failed"
        with pytest.raises(openai.NotFoundError):
            await sdk.responses.retrieve(events[-1].response.id)


def left_of(made):
    with made.control._database.engine.connect() as connection:
        rows = connection.exec_driver_sql("SELECT count(*) FROM stored_response").scalar_one()
    with closing(sqlite3.connect(made.data / "audit" / "side.db")) as side:
        return rows, side.execute("SELECT count(*) FROM key_use").fetchone()[0]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("fails", ["database", "record"])
async def test_what_cannot_be_kept_or_recorded_is_no_answer_and_leaves_nothing(kept, monkeypatch, stream, fails):
    async def unrecorded(accepted, received):
        received.closed = False
        raise AuditUnavailable("The call cannot be recorded; try again later")

    def unreachable(record):
        raise DatabaseUnavailable("the database does not answer; start it")

    if fails == "database":
        monkeypatch.setattr(kept.gateway.responses.responses.stored, "add", unreachable)
    else:
        monkeypatch.setattr(kept.gateway.batches.worker.pipeline.recorder, "completed", unrecorded)
    answer = await kept.post({"model": "small", "input": MAIL, "stream": stream}, "/v1/responses")
    code = "content_unavailable" if fails == "database" else "audit_unavailable"
    if stream:
        names = [name for name, _ in events(answer.body)]
        assert names[-2:] == ["error", "response.failed"] and code in answer.body.decode()
    else:
        assert (answer.status, answer.error["code"]) == (503, code)
    assert left_of(kept) == (0, 0)
    assert kept.types()[-1] == "inference.aborted"


async def test_a_client_that_leaves_finds_no_response(tmp_path):
    slow = backends("acme", delay_s=0.1, pieces=20)
    async with gateway(tmp_path, backends=slow) as made, client(made) as sdk:
        stream = await sdk.responses.create(model="small", input="x" * 60, stream=True)
        first = await anext(aiter(stream))
        await stream.close()
        assert await made.backends["acme-1"].abandoned(1)
        with pytest.raises(openai.NotFoundError):
            await sdk.responses.retrieve(first.response.id)
        assert left_of(made) == (0, 0)


async def test_a_long_conversation_is_bounded_by_the_bytes_of_a_body(tmp_path):
    small = {"requests": {"max_body_bytes": 20_000}}
    backend = {"acme/eu-fr-par/acme-1": FakeBackend(say="ok")}
    async with gateway(tmp_path, backends=backend, **small) as made, client(made) as sdk:
        previous = None
        for number in range(3):
            asked = {"model": "small", "input": f"{number} " + "word " * 1500}
            if number < 2:
                previous = (await sdk.responses.create(**asked, previous_response_id=previous)).id
        with pytest.raises(openai.BadRequestError) as refused:
            await sdk.responses.create(**asked, previous_response_id=previous)
        assert refused.value.param == "previous_response_id"
        assert json.dumps(made.backends["acme-1"].bodies[-1]).count("word ") == 3000


async def test_routes_that_are_not_offered_are_refused_by_name(kept):
    for name in ("compact", "input_tokens"):
        answer = await kept.post({"model": "small"}, f"/v1/responses/{name}")
        assert (answer.status, answer.error["code"]) == (404, "unknown_url")
        assert answer.error["message"].startswith(f"/v1/responses/{name} is not offered here; ")
    assert (await kept.get("/v1/responses/x/y")).error["code"] == "unknown_url"
    answer = await kept.post({"model": "small"}, "/v1/responses/resp_1")
    assert (answer.status, answer.headers["allow"]) == (405, "DELETE, GET, HEAD")
