"""OpenAI's own Python SDK against /v1/responses, unchanged; each answer and event strictly of its types."""

import json
from contextlib import asynccontextmanager

import openai
import pytest
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import BaseModel, TypeAdapter

from tests.conformance.test_openai_python import at, strictly, talking
from tests.fakes.backend import FakeBackend
from tests.fakes.lab import POLICY, lab
from tests.fakes.tool_user import ToolUser

EVENT = TypeAdapter(ResponseStreamEvent)
MAIL = "anna.schmidt@example.org"
LOOK = {
    "type": "function", "name": "look", "description": "Look something up", "strict": True,
    "parameters": {"type": "object", "properties": {"about": {"type": "string"}}, "required": ["about"]},
}  # fmt: skip


class City(BaseModel):
    city: str
    population: int


def echo(body):
    return f"You said {body['messages'][-1]['content']}"


@asynccontextmanager
async def asking(tmp_path, backend=None, **options):
    async with talking(tmp_path, backend or FakeBackend(say=echo), **options) as parts:
        yield parts


async def test_a_response_is_the_chats_answer_and_is_on_record_under_its_route(tmp_path):
    async with asking(tmp_path) as (made, backend, client):
        answer = await client.responses.create(
            model="small", instructions="Be short", input=f"write to {MAIL}", max_output_tokens=50
        )
        strictly(Response, answer)
        assert answer.output_text == f"You said write to {MAIL}"
        assert (answer.status, answer.usage.total_tokens, answer.store) == ("completed", 12, False)
        (sent,) = backend.bodies
        assert MAIL not in json.dumps(sent) and [each["role"] for each in sent["messages"]] == ["system", "user"]
        assert backend.headers[0]["Host"] and sent["max_tokens"] == 50
        accepted = next(event for event in made.acts() if event["type"] == "inference.accepted")
        assert accepted["endpoint"] == "/v1/responses"
        assert answer._request_id == accepted["request_id"]


@pytest.mark.parametrize("thought", ["", "I should look."])
async def test_the_stream_helper_accumulates_what_the_whole_answer_says(tmp_path, thought):
    async with asking(tmp_path, ToolUser(say=echo, thought=thought, pieces=4)) as (_, _, client):
        names = []
        async with client.responses.stream(model="small", input=f"write to {MAIL}") as stream:
            async for event in stream:
                names.append(event.type)
                if event.type not in ("response.output_text.delta", "response.completed", "response.output_text.done"):
                    EVENT.validate_json(event.to_json(), strict=False)
            final = await stream.get_final_response()
        assert final.output_text == f"You said write to {MAIL}"
        assert (names[0], names[-1]) == ("response.created", "response.completed")
        assert ("response.reasoning_text.delta" in names) == bool(thought)


async def test_structured_output_is_parsed_whole_and_streamed(tmp_path):
    async with asking(tmp_path, ToolUser()) as (_, backend, client):
        asked = {"model": "small", "input": "Paris?", "text_format": City}
        assert (await client.responses.parse(**asked)).output_parsed == City(city="Paris", population=2100000)
        async with client.responses.stream(**asked) as stream:
            assert (await stream.get_final_response()).output_parsed.city == "Paris"
        assert all(body["response_format"]["json_schema"]["strict"] for body in backend.bodies)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_tool_gets_the_real_value_and_its_result_comes_back(tmp_path, stream):
    async with asking(tmp_path, ToolUser()) as (_, backend, client):
        conversation = [{"role": "user", "content": f"Look up {MAIL}"}]
        asked = {"model": "small", "tools": [LOOK], "include": ["reasoning.encrypted_content"], "store": False}

        async def turn():
            if not stream:
                return await client.responses.create(input=conversation, **asked)
            async with client.responses.stream(input=conversation, **asked) as events:
                return await events.get_final_response()

        answer = await turn()
        reasoning, call = answer.output
        assert (call.type, call.name, json.loads(call.arguments)) == ("function_call", "look", {"about": MAIL})
        assert reasoning.encrypted_content and reasoning.content[0].text == "I should look."
        conversation += answer.output if stream else [item.to_dict() for item in answer.output]
        result = {"type": "function_call_output", "call_id": call.call_id, "output": f"{MAIL} is out"}
        conversation.append(result)
        assert (await turn()).output_text == f"It says: {MAIL} is out"
        roles = [message["role"] for message in backend.bodies[-1]["messages"]]
        assert roles == ["user", "assistant", "tool"]
        assert backend.bodies[-1]["messages"][1]["reasoning_content"] == "I should look."
        assert MAIL not in backend.received


async def test_sealed_reasoning_is_of_one_key(tmp_path):
    """Another key of the same tenant, and another tenant, get the same refusal."""

    def set_up(made):
        for tenant in ("acme", "globex"):
            made.tenant(tenant)
        made.project("acme", "other")

    backends = {f"{name}/eu-fr-par/{name}-1": ToolUser() for name in ("acme", "globex")}
    async with lab(tmp_path, set_up=set_up, backends=backends) as made:
        asked = {"model": "small", "include": ["reasoning.encrypted_content"]}
        async with at(made) as client:
            answer = await client.responses.create(input="x", **asked)
        (reasoning, _) = answer.output
        item = {**reasoning.to_dict(), "content": None}
        turn = [{"role": "user", "content": "x"}, item, {"role": "user", "content": "y"}]
        told = set()
        for key in ("acme/other", "globex/main"):
            async with at(made, key) as client:
                with pytest.raises(openai.BadRequestError) as refused:
                    await client.responses.create(input=turn, **asked)
                told.add((refused.value.code, refused.value.param, refused.value.message))
        assert len(told) == 1 and next(iter(told))[:2] == ("invalid_encrypted_content", "input.1.encrypted_content")
        async with at(made) as client:
            await client.responses.create(input=turn, **asked)
        thought = made.backends["acme-1"].bodies[-1]["messages"][1]
        assert thought["reasoning_content"] == "I should look."


async def test_errors_are_the_sdks_own_classes_and_name_fields_of_this_body(tmp_path):
    backends = {"acme/eu-fr-par/acme-1": FakeBackend(), "globex/us-east/globex-1": FakeBackend()}

    def set_up(made):
        made.tenant("acme", POLICY.replace("email: pseudonymise", "email: block"))
        made.tenant("globex")

    async with lab(tmp_path, set_up=set_up, backends=backends) as made, at(made) as client:
        good = {"model": "small", "input": "hi"}
        for wrong, kind, code, param in [
            ({"model": "none"}, openai.NotFoundError, "model_not_found", "model"),
            ({"store": True}, openai.PermissionDeniedError, "retention.content", None),
            ({"background": True, "store": False}, openai.BadRequestError, "invalid_value", "store"),
            ({"previous_response_id": "resp_1"}, openai.NotFoundError, "previous_response_not_found",
             "previous_response_id"),
            ({"conversation": "conv_1"}, openai.BadRequestError, "unsupported_parameter", "conversation"),
            ({"tools": [{"type": "web_search"}]}, openai.BadRequestError, "unsupported_parameter", "tools.0.type"),
            ({"temperature": 3}, openai.BadRequestError, "invalid_type", "temperature"),
            ({"input": MAIL}, openai.UnprocessableEntityError, "redaction_blocked", None),
            (
                {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "data:,"}]}]},
                openai.UnprocessableEntityError, "redaction_refused", "input.0.content.0",
            ),
        ]:  # fmt: skip
            for stream in (False, True):
                with pytest.raises(kind) as refused:
                    await client.responses.create(**good | wrong, stream=stream)
                assert (refused.value.code, refused.value.param) == (code, param)
                assert MAIL not in str(refused.value)
        async with at(made, "globex/main") as other:
            with pytest.raises(openai.PermissionDeniedError):
                await other.responses.create(**good)
        blocked = await made.post({**good, "input": [{"role": "user", "content": MAIL}]}, "/v1/responses")
        assert blocked.error["findings"] == [{"label": "email", "position": "input[0].content"}]


async def test_a_backend_that_dies_in_its_answer_ends_the_stream_with_a_failed_response(tmp_path):
    async with asking(tmp_path, ToolUser(say="Hello there my friend", thought="", die_after=3)) as (_, _, client):
        events = [event async for event in await client.responses.create(model="small", input="x", stream=True)]
        assert [event.type for event in events[-2:]] == ["error", "response.failed"]
        failed = events[-1].response
        assert (failed.status, failed.error.code) == ("failed", "server_error")
        assert failed.output[0].content[0].text and "Hello there my friend".startswith(failed.output[0].content[0].text)


async def test_an_answer_that_its_policy_blocks_ends_the_same(tmp_path):
    policy = POLICY.replace("output: {email: mask", "output: {email: block")
    said = "Hello my dear friend, write to dora@example.net today"
    set_up = {"set_up": lambda made: made.tenant("acme", policy)}
    async with asking(tmp_path, FakeBackend(say=said, pieces=9), **set_up) as (_, _, client):
        events = [event async for event in await client.responses.create(model="small", input="x", stream=True)]
        assert (events[-2].type, events[-2].code) == ("error", "answer_blocked")
        assert "dora@" not in "".join(event.to_json() for event in events)
        with pytest.raises(openai.UnprocessableEntityError):
            await client.responses.create(model="small", input="x")
