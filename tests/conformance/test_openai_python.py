"""OpenAI's own Python SDK against a running gateway, unchanged; each answer and chunk strictly of its types."""

import asyncio
import json
from contextlib import asynccontextmanager

import openai
import pytest
from aiohttp import web
from openai import AsyncOpenAI
from openai.types import Completion, Model
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from tests.fakes.backend import USAGE, FakeBackend
from tests.fakes.lab import POLICY, lab

MESSAGES = [{"role": "user", "content": "What is the capital of France?"}]
SAID = "The capital is Paris."
IBAN = "DE89 3704 0044 0532 0130 00"
MAIL = "anna.schmidt@example.org"


def echo(body):
    return body["messages"][-1]["content"]


def strictly(kind, answer):
    """`answer` read again from its JSON, by the SDK's own model, without the leniency that the SDK has on the wire."""
    return kind.model_validate_json(answer.to_json(), strict=True)


def strictly_chunk(chunk):
    """A piece of a streamed completion: until the last, its finish_reason is null, which OpenAI sends and the SDK's
    type leaves out."""
    event = json.loads(chunk.to_json())
    for choice in event["choices"]:
        assert "finish_reason" in choice
        choice["finish_reason"] = choice["finish_reason"] or "stop"
    return Completion.model_validate_json(json.dumps(event), strict=True)


def at(made, key="acme/main", **options):
    return AsyncOpenAI(
        base_url=f"{made.base}/v1", api_key=made.keys.get(key, key), **{"max_retries": 0, "timeout": 10, **options}
    )


@asynccontextmanager
async def talking(tmp_path, backend=None, **options):
    """A gateway whose tenant acme has `backend`, and a client of it."""
    backend = backend or FakeBackend()
    async with (
        lab(tmp_path, backends={"acme/eu-fr-par/acme-1": backend}, **options) as made,
        at(made) as client,
    ):
        yield made, backend, client


async def recorded(made, kind):
    """The last event, once it is of `kind`: a client that leaves does not wait for its record."""
    for _ in range(200):
        if made.acts()[-1]["type"] == kind:
            break
        await asyncio.sleep(0.02)
    last = made.acts()[-1]
    assert last["type"] == kind
    return last


async def test_a_chat_is_answered_with_usage_and_an_id_to_ask_about(tmp_path):
    async with talking(tmp_path) as (made, _, client):
        answer = await client.chat.completions.create(model="small", messages=MESSAGES, max_tokens=8, temperature=0)
        strictly(ChatCompletion, answer)
        assert answer.choices[0].message.content == SAID
        assert answer.choices[0].finish_reason == "stop"
        assert answer.usage.total_tokens == 12
        assert answer._request_id == made.acts()[-1]["request_id"]


async def test_a_streamed_chat_says_the_same_in_chunks_and_shows_no_usage_that_was_not_asked_for(tmp_path):
    async with talking(tmp_path) as (_, _, client):
        stream = await client.chat.completions.create(model="small", messages=MESSAGES, stream=True)
        chunks = [strictly(ChatCompletionChunk, chunk) async for chunk in stream]
        assert chunks[0].choices[0].delta.role == "assistant"
        assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == SAID
        assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices[0].finish_reason] == ["stop"]
        assert all(chunk.usage is None for chunk in chunks)
        assert len({chunk.id for chunk in chunks}) == 1


async def test_usage_in_a_stream_comes_last_and_alone(tmp_path):
    async with talking(tmp_path) as (_, _, client):
        stream = await client.chat.completions.create(
            model="small", messages=MESSAGES, stream=True, stream_options={"include_usage": True}
        )
        *others, last = [strictly(ChatCompletionChunk, chunk) async for chunk in stream]
        assert (last.choices, last.usage.total_tokens) == ([], 12)
        assert all(chunk.choices and chunk.usage is None for chunk in others)


async def test_a_completion_is_answered_whole_and_streamed(tmp_path):
    async with talking(tmp_path) as (_, _, client):
        whole = strictly(Completion, await client.completions.create(model="small", prompt="Once upon a time"))
        assert whole.choices[0].text == SAID
        assert whole.usage.completion_tokens == 5
        stream = await client.completions.create(
            model="small", prompt="Once upon a time", stream=True, stream_options={"include_usage": True}
        )
        *chunks, last = [strictly_chunk(chunk) async for chunk in stream]
        assert "".join(chunk.choices[0].text for chunk in chunks) == SAID
        assert (last.choices, last.usage.total_tokens) == ([], 12)


async def test_models_are_listed_and_looked_up(tmp_path):
    async with talking(tmp_path, FakeBackend(model="org/small:8b")) as (_, _, client):
        (listed,) = (await client.models.list()).data
        strictly(Model, listed)
        assert (listed.id, listed.owned_by) == ("org/small:8b", "acme")
        assert await client.models.retrieve("org/small:8b") == listed
        with pytest.raises(openai.NotFoundError) as refused:
            await client.models.retrieve("another")
        assert refused.value.code == "model_not_found"


async def test_what_redaction_rewrites_is_still_of_openais_types_and_reads_as_it_was_meant(tmp_path):
    """Held-back text makes chunks of its own: those too have to be what the SDK expects."""
    said = f"Grüße an {MAIL}, Konto {IBAN}. 😀"
    async with talking(tmp_path, FakeBackend(say=echo, pieces=60)) as (_, backend, client):
        messages = [{"role": "user", "content": said}]
        whole = await client.chat.completions.create(model="small", messages=messages)
        assert strictly(ChatCompletion, whole).choices[0].message.content == said
        stream = await client.chat.completions.create(
            model="small", messages=messages, stream=True, stream_options={"include_usage": True}
        )
        chunks = [strictly(ChatCompletionChunk, chunk) async for chunk in stream]
        assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == said
        assert chunks[-1].usage.total_tokens == 12
        assert MAIL not in backend.received


class CallingBackend(FakeBackend):
    """Answers with a tool call whose arguments repeat the prompt, cut into pieces of `size` characters."""

    size = 5

    def arguments(self, body):
        return json.dumps({"to": echo(body)})

    def whole(self, body, chat):
        call = {"id": "call_1", "type": "function", "function": {"name": "send", "arguments": self.arguments(body)}}
        message = {"role": "assistant", "content": None, "tool_calls": [call]}
        choice = {"index": 0, "message": message, "finish_reason": "tool_calls"}
        return {**super().whole(body, chat), "choices": [choice]}

    def text(self, body):
        return ""

    async def stream(self, request, body, chat):
        arguments = self.arguments(body)
        first = {"index": 0, "id": "call_1", "type": "function", "function": {"name": "send", "arguments": ""}}
        calls = [first]
        for start in range(0, len(arguments), self.size):
            calls.append({"index": 0, "function": {"arguments": arguments[start : start + self.size]}})
        deltas = [{"role": "assistant", "content": None}, *({"tool_calls": [call]} for call in calls)]
        choices = [[{"index": 0, "delta": delta, "finish_reason": None}] for delta in deltas]
        choices.append([{"index": 0, "delta": {}, "finish_reason": "tool_calls"}])
        return await self.events(
            request, [{"choices": choice} for choice in choices] + [{"choices": [], "usage": USAGE}]
        )

    async def events(self, request, events):
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        shape = {"id": "x", "object": "chat.completion.chunk", "created": 1, "model": self.model}
        for event in events:
            await response.write(b"data: " + json.dumps({**shape, **event}).encode() + b"\n\n")
        await response.write(b"data: [DONE]\n\n")
        return response


async def test_a_tool_call_arrives_with_its_arguments_restored_whole_and_streamed(tmp_path):
    tools = [{"type": "function", "function": {"name": "send", "parameters": {"type": "object", "properties": {}}}}]
    messages = [{"role": "user", "content": f"{MAIL} {IBAN}"}]
    async with talking(tmp_path, CallingBackend()) as (_, backend, client):
        whole = await client.chat.completions.create(model="small", messages=messages, tools=tools)
        (call,) = strictly(ChatCompletion, whole).choices[0].message.tool_calls
        assert json.loads(call.function.arguments) == {"to": f"{MAIL} {IBAN}"}
        async with client.chat.completions.stream(model="small", messages=messages, tools=tools) as stream:
            async for event in stream:
                if event.type == "chunk":
                    strictly(ChatCompletionChunk, event.chunk)
            streamed = (await stream.get_final_completion()).choices[0]
        assert streamed.finish_reason == "tool_calls"
        assert streamed.message.tool_calls[0].function.name == "send"
        assert json.loads(streamed.message.tool_calls[0].function.arguments) == {"to": f"{MAIL} {IBAN}"}
        assert MAIL not in backend.received


class ThinkingBackend(FakeBackend):
    """Says the prompt twice: as its thoughts and as its answer, in pieces of a few characters."""

    def whole(self, body, chat):
        said = echo(body)
        message = {"role": "assistant", "content": said, "reasoning_content": said}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        return {**super().whole(body, chat), "choices": [choice]}

    async def stream(self, request, body, chat):
        said = echo(body)
        pieces = [said[start : start + 4] for start in range(0, len(said), 4)]
        deltas = [{field: piece} for field in ("reasoning_content", "content") for piece in pieces]
        choices = [[{"index": 0, "delta": delta, "finish_reason": None}] for delta in deltas]
        choices.append([{"index": 0, "delta": {}, "finish_reason": "stop"}])
        return await CallingBackend.events(
            self, request, [{"choices": choice} for choice in choices] + [{"choices": [], "usage": USAGE}]
        )


async def test_thoughts_are_restored_as_the_answer_is_whole_and_streamed(tmp_path):
    messages = [{"role": "user", "content": f"{MAIL} {IBAN}"}]
    async with talking(tmp_path, ThinkingBackend()) as (_, backend, client):
        whole = await client.chat.completions.create(model="small", messages=messages)
        assert whole.choices[0].message.reasoning_content == whole.choices[0].message.content == f"{MAIL} {IBAN}"
        heard = {"reasoning_content": "", "content": ""}
        stream = await client.chat.completions.create(model="small", messages=messages, stream=True)
        async for chunk in stream:
            for field in heard:
                heard[field] += getattr(chunk.choices[0].delta, field, None) or ""
        assert heard == {"reasoning_content": f"{MAIL} {IBAN}", "content": f"{MAIL} {IBAN}"}
        assert MAIL not in backend.received


async def test_tools_options_and_earlier_calls_pass_redacted(tmp_path):
    call = {"id": "call_1", "type": "function", "function": {"name": "send", "arguments": json.dumps({"to": MAIL})}}
    messages = [
        {"role": "user", "content": "hello"},
        {"role": "assistant", "content": None, "tool_calls": [call], "reasoning_content": f"It goes to {MAIL}"},
        {"role": "tool", "tool_call_id": "call_1", "content": json.dumps({"from": MAIL})},
    ]
    tools = [{"type": "function", "function": {"name": "send", "description": f"Not to {MAIL}"}}]
    extra = {"chat_template_kwargs": {"enable_thinking": False, "note": MAIL}, "include_reasoning": False}
    async with talking(tmp_path, FakeBackend()) as (_, backend, client):
        await client.chat.completions.create(model="small", messages=messages, tools=tools, extra_body=extra)
        (body,) = json.loads(backend.received)
        assert body["chat_template_kwargs"]["enable_thinking"] is False
        assert body["include_reasoning"] is False
        assert body["tools"][0]["function"]["name"] == "send"
        assert json.loads(body["messages"][1]["tool_calls"][0]["function"]["arguments"])["to"] != MAIL
        assert MAIL not in backend.received


async def test_the_headers_say_where_it_ran_and_extra_parameters_pass(tmp_path):
    async with talking(tmp_path) as (_, backend, client):
        raw = await client.chat.completions.with_raw_response.create(
            model="small", messages=MESSAGES, extra_body={"top_k": 5}, extra_headers={"x-domicile-debug": "upstream"}
        )
        assert raw.headers["x-domicile-region"] == "eu-fr-par"
        assert raw.headers["x-domicile-receipt"].startswith("acme/")
        answer = raw.parse()
        strictly(ChatCompletion, answer)
        assert answer.domicile["upstream_request"]["top_k"] == backend.bodies[0]["top_k"] == 5


# --- errors ----------------------------------------------------------------------------------------------------------


def two_tenants(made):
    made.tenant("acme", POLICY + "limits: {rpm: 100, tpm: 1000}\n")
    made.tenant("globex")


NOWHERE_ALLOWED = {"acme/eu-fr-par/acme-1": FakeBackend, "globex/us-east/globex-1": FakeBackend}


async def test_refusals_are_the_sdks_own_exception_classes(tmp_path):
    places = {place: make() for place, make in NOWHERE_ALLOWED.items()}
    wrong_key = "dom_live_00000000_" + "0" * 49
    secret = [{"role": "user", "content": "key AKIAIOSFODNN7EXAMPLE"}]
    cases = [
        ("a wrong key", wrong_key, {}, openai.AuthenticationError, 401, "invalid_api_key"),
        ("policy says no", "globex/main", {}, openai.PermissionDeniedError, 403, "residency_denied"),
        ("no such model", "acme/main", {"model": "none"}, openai.NotFoundError, 404, "model_not_found"),
        ("out of range", "acme/main", {"temperature": 9}, openai.BadRequestError, 400, "invalid_type"),
        ("no messages", "acme/main", {"messages": []}, openai.BadRequestError, 400, "invalid_type"),
        ("a secret", "acme/main", {"messages": secret}, openai.UnprocessableEntityError, 422, "redaction_blocked"),
        ("too much", "acme/main", {"max_tokens": 9000}, openai.RateLimitError, 429, "request_exceeds_limit"),
    ]
    async with lab(tmp_path, set_up=two_tenants, backends=places, requests={"max_body_bytes": 4096}) as made:
        for name, key, change, kind, status, code in cases:
            async with at(made, key) as client:
                with pytest.raises(kind) as refused:
                    await client.chat.completions.create(**{"model": "small", "messages": MESSAGES, **change})
                assert (refused.value.status_code, refused.value.code) == (status, code), name
                assert refused.value.body["message"], name
        async with at(made) as client:
            with pytest.raises(openai.APIStatusError) as refused:
                await client.chat.completions.create(model="small", messages=MESSAGES, user="x" * 5000)
            assert (refused.value.status_code, refused.value.code) == (413, "request_too_large")
            with pytest.raises(openai.NotFoundError) as refused:
                await client.moderations.create(input="x")
            assert refused.value.code == "unknown_url"
        assert all(backend.bodies == [] for backend in made.backends.values())


async def test_a_refused_field_is_named(tmp_path):
    async with talking(tmp_path) as (_, _, client):
        with pytest.raises(openai.BadRequestError) as refused:
            await client.chat.completions.create(model="small", messages=[{"role": "user", "content": 5}])
        assert refused.value.param == "messages.0.content"


async def test_a_backend_that_fails_is_an_internal_server_error(tmp_path):
    async with talking(tmp_path, requests={"silence_timeout_s": 0.3}) as (_, backend, client):
        for change, status, code in [
            ({"status": 500, "error": {"message": "x"}}, 502, "backend_error"),
            ({"status": 503, "error": {"message": "x"}}, 503, "backend_unavailable"),
            ({"status": 200, "delay_s": 2.0}, 504, "backend_timeout"),
        ]:
            vars(backend).update(change)
            with pytest.raises(openai.InternalServerError) as failed:
                await client.chat.completions.create(model="small", messages=MESSAGES)
            assert (failed.value.status_code, failed.value.code) == (status, code)


async def test_the_backends_own_refusal_keeps_class_and_code(tmp_path):
    error = {"message": "too long", "type": "invalid_request_error", "code": "context_length_exceeded", "param": "x"}
    async with talking(tmp_path, FakeBackend(status=400, error=error)) as (_, _, client):
        with pytest.raises(openai.BadRequestError, match="too long") as refused:
            await client.chat.completions.create(model="small", messages=MESSAGES, stream=True)
        assert (refused.value.code, refused.value.param) == ("context_length_exceeded", "x")


class BusyOnce(FakeBackend):
    """Turns its first request away with `busy`, and says when to come back."""

    busy = 429

    async def generate(self, request):
        self.status = 200 if self.bodies else self.busy
        return await super().generate(request)


@pytest.mark.parametrize("status", [429, 503])
async def test_the_sdk_comes_back_after_the_seconds_it_is_told(tmp_path, status, monkeypatch):
    slept = []

    async def sleep(seconds):
        slept.append(seconds)

    monkeypatch.setattr("openai._base_client.anyio.sleep", sleep)
    backend = BusyOnce(error={"message": "busy"}, retry_after="2")
    backend.busy = status
    async with talking(tmp_path, backend) as (made, _, client):
        answer = await client.with_options(max_retries=1).chat.completions.create(model="small", messages=MESSAGES)
        assert answer.choices[0].message.content == SAID
        assert slept == [2]
        assert len(backend.bodies) == 2
        *_, refused, asked_again, answered = made.types()
        assert (refused, asked_again, answered) == ("inference.aborted", "inference.accepted", "inference.completed")


async def test_what_will_not_get_better_is_not_tried_again(tmp_path):
    error = {"message": "no", "type": "invalid_request_error"}
    async with talking(tmp_path, FakeBackend(status=422, error=error)) as (_, backend, client):
        with pytest.raises(openai.UnprocessableEntityError):
            await client.with_options(max_retries=5).chat.completions.create(model="small", messages=MESSAGES)
        assert len(backend.bodies) == 1


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_waits_no_longer_gets_a_timeout_and_the_call_ends(tmp_path, stream):
    async with talking(tmp_path, FakeBackend(delay_s=5)) as (made, backend, client):
        with pytest.raises(openai.APITimeoutError):
            answer = await client.with_options(timeout=0.4).chat.completions.create(
                model="small", messages=MESSAGES, stream=stream
            )
            [chunk async for chunk in answer]
        assert (await recorded(made, "inference.aborted"))["reason"] == "client_disconnected"
        assert await backend.abandoned(1)


async def test_a_gateway_that_is_not_there_is_a_connection_error(tmp_path):
    async with talking(tmp_path) as (made, _, _):
        pass
    async with at(made) as client:
        with pytest.raises(openai.APIConnectionError):
            await client.chat.completions.create(model="small", messages=MESSAGES)


@pytest.mark.parametrize("inside", [False, True])
async def test_a_stream_that_breaks_raises_after_what_was_said(tmp_path, inside):
    async with talking(tmp_path, FakeBackend(die_after=2, pieces=5, fail_inside=inside)) as (_, _, client):
        heard = ""
        with pytest.raises(openai.APIError) as failed:
            async for chunk in await client.chat.completions.create(model="small", messages=MESSAGES, stream=True):
                heard += chunk.choices[0].delta.content or ""
        assert failed.value.code == "backend_error"
        assert heard
        assert SAID.startswith(heard)


async def test_a_client_that_leaves_mid_stream_ends_the_call_at_the_backend(tmp_path):
    async with talking(tmp_path, FakeBackend(pieces=21, delay_s=0.05)) as (made, backend, client):
        stream = await client.chat.completions.create(model="small", messages=MESSAGES, stream=True)
        heard = 0
        async for _ in stream:
            heard += 1
            if heard == 3:
                await stream.close()
                break
        last = await recorded(made, "inference.aborted")
        assert last["reason"] == "client_disconnected"
        assert await backend.abandoned(1)
        assert last["bytes_out"] > 0


async def test_many_at_once_each_get_their_own_answer(tmp_path):
    async with talking(tmp_path, FakeBackend(say=echo, pieces=7)) as (made, _, client):

        async def ask(number):
            messages = [{"role": "user", "content": f"number {number} of {MAIL}"}]
            if number % 2:
                answer = await client.chat.completions.create(model="small", messages=messages)
                return answer.choices[0].message.content
            stream = await client.chat.completions.create(model="small", messages=messages, stream=True)
            return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])

        answers = await asyncio.gather(*map(ask, range(40)))
        assert answers == [f"number {number} of {MAIL}" for number in range(40)]
        assert made.types().count("inference.completed") == 40
