"""Anthropic's own Python SDK against /v1/messages, unchanged; each message strictly of its types."""

import json
from contextlib import asynccontextmanager

import anthropic
import pytest
from anthropic import AsyncAnthropic
from anthropic.types import Message

from tests.fakes.backend import FakeBackend
from tests.fakes.lab import POLICY, lab
from tests.fakes.tool_user import ToolUser

MAIL = "anna.schmidt@example.org"
LOOK = {
    "name": "look", "description": "Look something up",
    "input_schema": {"type": "object", "properties": {"about": {"type": "string"}}, "required": ["about"]},
}  # fmt: skip


def echo(body):
    return f"You said {body['messages'][-1]['content']}"


def at(made, key="acme/main", **options):
    return AsyncAnthropic(
        base_url=made.base, **{"api_key": made.keys.get(key, key), "max_retries": 0, "timeout": 10, **options}
    )


@asynccontextmanager
async def talking(tmp_path, backend=None, **options):
    backend = backend or FakeBackend(say=echo)
    async with lab(tmp_path, backends={"acme/eu-fr-par/acme-1": backend}, **options) as made, at(made) as client:
        yield made, backend, client


def asked(text, **more):
    return {"model": "small", "max_tokens": 64, "messages": [{"role": "user", "content": text}], **more}


async def test_a_message_is_the_chats_answer_and_is_on_record_under_its_route(tmp_path):
    async with talking(tmp_path) as (made, backend, client):
        answer = await client.messages.create(**asked(f"write to {MAIL}", system="Be short"))
        Message.model_validate_json(answer.to_json(), strict=True)
        assert answer.content[0].text == f"You said write to {MAIL}"
        assert (answer.stop_reason, answer.usage.output_tokens, answer.role) == ("end_turn", 5, "assistant")
        (sent,) = backend.bodies
        assert MAIL not in json.dumps(sent) and [each["role"] for each in sent["messages"]] == ["system", "user"]
        accepted = next(event for event in made.acts() if event["type"] == "inference.accepted")
        assert (accepted["endpoint"], accepted["request_id"]) == ("/v1/messages", answer._request_id)


@pytest.mark.parametrize("thought", ["", "I should look."])
async def test_the_stream_helper_accumulates_what_the_whole_answer_says(tmp_path, thought):
    async with talking(tmp_path, ToolUser(say=echo, thought=thought, pieces=4)) as (_, _, client):
        whole = await client.messages.create(**asked(f"write to {MAIL}"))
        async with client.messages.stream(**asked(f"write to {MAIL}")) as stream:
            told = [event.type async for event in stream]
            final = await stream.get_final_message()
        assert final.content[-1].text == f"You said write to {MAIL}"
        assert [each.to_dict() for each in final.content] == [each.to_dict() for each in whole.content]
        assert (
            (final.stop_reason, final.usage.input_tokens)
            == (whole.stop_reason, whole.usage.input_tokens)
            == ("end_turn", 7)
        )
        assert ("thinking" in told) == bool(thought)
        if thought:
            assert final.content[0].thinking == thought


@pytest.mark.parametrize("stream", [False, True])
async def test_a_tool_gets_the_real_value_and_its_result_comes_back(tmp_path, stream):
    async with talking(tmp_path, ToolUser()) as (_, backend, client):
        messages = [{"role": "user", "content": f"Look up {MAIL}"}]

        async def turn():
            told = {"model": "small", "max_tokens": 64, "tools": [LOOK], "messages": messages}
            if not stream:
                return await client.messages.create(**told)
            async with client.messages.stream(**told) as events:
                return await events.get_final_message()

        answer = await turn()
        assert answer.stop_reason == "tool_use"
        thinking, use = answer.content
        assert (thinking.thinking, use.name, use.input) == ("I should look.", "look", {"about": MAIL})
        messages.append({"role": "assistant", "content": answer.content})
        result = {"type": "tool_result", "tool_use_id": use.id, "content": f"{MAIL} is out"}
        messages.append({"role": "user", "content": [result]})
        assert (await turn()).content[-1].text == f"It says: {MAIL} is out"
        last = backend.bodies[-1]["messages"]
        assert [message["role"] for message in last] == ["user", "assistant", "tool"]
        assert last[1]["reasoning_content"] == "I should look."
        assert MAIL not in backend.received


async def test_the_helper_that_runs_tools_runs_them(tmp_path):
    looked = []

    @anthropic.beta_async_tool
    async def look(about: str) -> str:
        """Look something up.

        Args:
            about: what to look up
        """
        looked.append(about)
        return f"{about} is out"

    async with talking(tmp_path, ToolUser()) as (_, _, client):
        runner = client.beta.messages.tool_runner(
            model="small", max_tokens=64, tools=[look], messages=[{"role": "user", "content": f"Look up {MAIL}"}]
        )
        final = await runner.until_done()
        assert looked == [MAIL]
        assert final.content[-1].text == f"It says: {MAIL} is out"


async def test_betas_queries_and_headers_of_other_versions_change_nothing(tmp_path):
    async with talking(tmp_path) as (_, backend, client):
        answer = await client.beta.messages.create(
            **asked("hi", betas=["claude-code-20250219", "unheard-of-2099"], metadata={"user_id": "u"}),
            thinking={"type": "enabled", "budget_tokens": 1024},
            context_management={"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
            extra_headers={"anthropic-version": "2099-01-01", "x-stainless-helper": "x"},
        )
        assert answer.content[0].text == "You said hi"
        assert backend.bodies[-1].keys() == {"model", "messages", "max_tokens", "cache_salt"}
        assert (await client.messages.count_tokens(model="small", messages=asked("hi")["messages"])).input_tokens > 0


async def test_the_key_may_come_as_a_bearer_token(tmp_path):
    async with talking(tmp_path) as (made, _, _), at(made, api_key=None, auth_token=made.key()) as client:
        assert (await client.messages.create(**asked("hi"))).content[0].text == "You said hi"


async def test_errors_are_the_sdks_own_classes_and_name_fields_of_this_body(tmp_path):
    backends = {"acme/eu-fr-par/acme-1": FakeBackend(), "globex/us-east/globex-1": FakeBackend()}

    def set_up(made):
        made.tenant("acme", POLICY.replace("email: pseudonymise", "email: block") + "limits: {tpm: 5000}\n")
        made.tenant("globex")

    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "aGk="}}
    async with lab(tmp_path, set_up=set_up, backends=backends) as made, at(made) as client:
        for wrong, kind, told in [
            ({"model": "none"}, anthropic.NotFoundError, ("not_found_error", "model_not_found", "model")),
            ({"max_tokens": 0}, anthropic.BadRequestError, ("invalid_request_error", "invalid_type", "max_tokens")),
            (
                {"tools": [{"type": "bash_20250124", "name": "bash"}]}, anthropic.BadRequestError,
                ("invalid_request_error", "unsupported_parameter", "tools.0.type"),
            ),
            (
                {"messages": [{"role": "user", "content": MAIL}]}, anthropic.UnprocessableEntityError,
                ("invalid_request_error", "redaction_blocked", None),
            ),
            (
                {"messages": [{"role": "user", "content": [image]}]}, anthropic.UnprocessableEntityError,
                ("invalid_request_error", "redaction_refused", "messages.0.content.0"),
            ),
            ({"max_tokens": 9000}, anthropic.RateLimitError, ("rate_limit_error", "request_exceeds_limit", None)),
        ]:  # fmt: skip
            for stream in (False, True):
                with pytest.raises(kind) as refused:
                    await client.messages.create(**asked("hi") | wrong, stream=stream)
                error = refused.value.body["error"]
                assert refused.value.request_id or error["code"] in ("unsupported_parameter", "invalid_type")
                assert (error["type"], error["code"], error.get("param")) == told
                assert MAIL not in str(refused.value)
        async with at(made, "globex/main") as other:
            with pytest.raises(anthropic.PermissionDeniedError):
                await other.messages.create(**asked("hi"))
        async with at(made, "dom_live_00000000_" + "0" * 49) as other:
            with pytest.raises(anthropic.AuthenticationError):
                await other.messages.create(**asked("hi"))


async def test_a_stream_that_breaks_off_raises_in_the_sdk(tmp_path):
    async with talking(tmp_path, ToolUser(say="Hello there my friend", thought="", die_after=3)) as (_, _, client):
        said = ""
        with pytest.raises(anthropic.APIStatusError) as broken:
            async with client.messages.stream(**asked("x")) as stream:
                async for text in stream.text_stream:
                    said += text
        assert broken.value.body["error"]["code"] in ("stream_truncated", "backend_error")
        assert said and "Hello there my friend".startswith(said)
