"""A body of /v1/messages becomes the chat body that asks for the same; its answers become messages and events."""

import json

import pytest
from anthropic.types import Message, RawMessageStreamEvent
from pydantic import TypeAdapter

from backend.wire import Usage
from gateway.apis.chat_answer import MAX_ITEMS
from gateway.apis.endpoints import COUNT_TOKENS, MESSAGES
from gateway.errors import (
    BackendFailed,
    BackendRefused,
    BackendTimeout,
    BackendUnavailable,
    InvalidRequest,
    LimitReached,
    ModelNotFound,
    NotAuthenticated,
    PolicyDenied,
    RequestTooLarge,
)
from gateway.openai.checked_call import parse_call
from tests.gateway.apis.recorded import chunk, events, tool

EVENT = TypeAdapter(RawMessageStreamEvent)
TOOL = {"name": "look", "description": "d", "input_schema": {"type": "object"}}
FUNCTION = {"name": "look", "description": "d", "parameters": {"type": "object"}}
USAGE = Usage(prompt_tokens=7, completion_tokens=5, total_tokens=12, prompt_tokens_details={"cached_tokens": 3})
IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "aGk="}}


def call(endpoint=MESSAGES, **body):
    most = {"max_tokens": 9} if endpoint is MESSAGES else {}
    asked = {"model": "m", **most, "messages": [{"role": "user", "content": "hi"}], **body}
    return parse_call(endpoint, json.dumps(asked).encode())


def messages(*told, **body):
    return call(messages=list(told), **body).body["messages"]


def refusal(endpoint=MESSAGES, **body):
    with pytest.raises(InvalidRequest) as refused:
        call(endpoint, **body)
    assert "; " in refused.value.message, "an error names its remedy"
    return refused.value


def whole(message, finish="stop", usage=USAGE, choice=None, **body):
    answer = {"choices": [{"index": 0, "message": message, "finish_reason": finish, **(choice or {})}]}
    raw = call(**body).translation.answer(answer, usage)
    Message.model_validate_json(raw, strict=True)
    made = json.loads(raw)
    return made


def streamed(*chunks, usage=USAGE, **body):
    writer = call(**body).translation.events()
    raw = b"".join(writer.text(*one) if isinstance(one, tuple) else writer.chunk(one) for one in chunks)
    found = events(raw + writer.end(usage))
    for name, data in found:
        assert data["type"] == name
        if name != "ping":
            EVENT.validate_json(json.dumps(data))
    return found


def names(found):
    return [name for name, _ in found]


def blocks(found):
    """What a client makes of the events: its blocks, and whether each was begun, filled and ended in its turn."""
    made, at = [], None
    for name, data in found:
        if name == "content_block_start":
            assert at is None
            at = data["index"]
            assert at == len(made)
            made.append({**data["content_block"]})
        elif name == "content_block_delta":
            assert data["index"] == at
            delta = data["delta"]
            kind = delta["type"].removesuffix("_delta")
            field = {"input_json": "input"}.get(kind, kind)
            piece = delta["partial_json" if kind == "input_json" else kind]
            made[at][field] = (made[at][field] or "") + piece
        elif name == "content_block_stop":
            assert data["index"] == at
            at = None
    assert at is None
    return [{**each, "input": json.loads(each["input"] or "{}")} if "input" in each else each for each in made]


def test_system_and_messages_are_the_chats():
    assert messages({"role": "user", "content": "hi"}, system="Be short") == [
        {"role": "system", "content": "Be short"},
        {"role": "user", "content": "hi"},
    ]
    cached = {"type": "text", "text": "a", "cache_control": {"type": "ephemeral", "ttl": "1h"}}
    made = messages({"role": "user", "content": [cached]}, system=[cached, {"type": "text", "text": "b"}])
    assert made == [
        {"role": "system", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        {"role": "user", "content": "a"},
    ]


def test_blocks_of_a_turn_with_tools_are_messages_in_the_order_of_a_chat():
    made = messages(
        {"role": "user", "content": "weather?"},
        {"role": "assistant", "content": [
            {"type": "thinking", "thinking": "hm", "signature": "c2ln"}, {"type": "text", "text": "I look"},
            {"type": "tool_use", "id": "t1", "name": "look", "input": {"at": "Rome"}},
            {"type": "tool_use", "id": "t2", "name": "look", "input": {}, "caller": {"type": "direct"}},
        ]},
        {"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": "t1", "content": "sun"},
            {"type": "tool_result", "tool_use_id": "t2", "is_error": True, "content": [{"type": "text", "text": "no"}]},
            {"type": "text", "text": "go on"}, IMAGE,
        ]},
    )  # fmt: skip
    assert made == [
        {"role": "user", "content": "weather?"},
        {"role": "assistant", "content": "I look", "reasoning_content": "hm", "tool_calls": [
            {"id": "t1", "type": "function", "function": {"name": "look", "arguments": '{"at":"Rome"}'}},
            {"id": "t2", "type": "function", "function": {"name": "look", "arguments": "{}"}},
        ]},
        {"role": "tool", "tool_call_id": "t1", "content": "sun"},
        {"role": "tool", "tool_call_id": "t2", "content": [
            {"type": "text", "text": "The tool reported an error:"}, {"type": "text", "text": "no"}]},
        {"role": "user", "content": [
            {"type": "text", "text": "go on"},
            {"type": "image_url", "image_url": {"url": "data:image/png;base64,aGk="}}]},
    ]  # fmt: skip


def test_parameters_take_the_names_that_chats_have():
    made = call(
        temperature=0.5,
        top_p=0.9,
        top_k=5,
        stop_sequences=["END"],
        stream=True,
        metadata={"user_id": "u"},
        tools=[TOOL],
        tool_choice={"type": "any", "disable_parallel_tool_use": True},
        thinking={"type": "disabled"},
        output_config={"format": {"type": "json_schema", "schema": {"type": "object"}}},
        service_tier="auto",
        cache_control={"type": "ephemeral"},
        speed="standard",
    ).body
    del made["messages"]
    assert made == {
        "model": "m", "max_tokens": 9, "temperature": 0.5, "top_p": 0.9, "top_k": 5, "stop": ["END"], "stream": True,
        "user": "u", "tools": [{"type": "function", "function": FUNCTION}], "tool_choice": "required",
        "parallel_tool_calls": False, "reasoning_effort": "none",
        "response_format": {"type": "json_schema", "json_schema": {"name": "answer", "schema": {"type": "object"}}},
    }  # fmt: skip
    named = call(tools=[TOOL], tool_choice={"type": "tool", "name": "look"}).body["tool_choice"]
    assert named == {"type": "function", "function": {"name": "look"}}
    for choice, word in (("auto", "auto"), ("none", "none")):
        assert call(tools=[TOOL], tool_choice={"type": choice}).body["tool_choice"] == word
    assert call(output_config={"effort": "high"}).body["reasoning_effort"] == "high"


@pytest.mark.parametrize(
    "body",
    [
        {"thinking": {"type": "enabled", "budget_tokens": 2048}},
        {"thinking": {"type": "adaptive", "display": "summarized"}},
        {"context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]}},
        {"context_management": {"edits": [
            {"type": "clear_thinking_20251015", "keep": {"type": "thinking_turns", "value": 2}}]}},
        {"tools": [{**TOOL, "type": "custom", "eager_input_streaming": True, "allowed_callers": ["direct"],
                    "cache_control": {"type": "ephemeral", "scope": "global"}}]},
        {"tool_choice": {"type": "auto"}}, {"metadata": {}}, {"stop_sequences": []}, {"tools": []},
    ],
)  # fmt: skip
def test_what_clients_send_by_habit_is_taken(body):
    call(**body)


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"max_tokens": None}, "max_tokens"),
        ({"max_tokens": "9"}, "max_tokens"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"messages": None}, "messages"),
        ({"messages": []}, "messages"),
        ({"messages": "hi"}, "messages"),
        ({"messages": ["hi"]}, "messages.0"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages.0.role"),
        ({"messages": [{"role": "user"}]}, "messages.0.content"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages.0.content"),
        ({"messages": [{"role": "user", "content": "x", "name": "y"}]}, "messages.0.name"),
        ({"messages": [{"role": "user", "content": [{"type": "document"}]}]}, "messages.0.content.0.type"),
        ({"messages": [{"role": "user", "content": [{"type": "tool_use"}]}]}, "messages.0.content.0.type"),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages.0.content.0.text"),
        ({"messages": [{"role": "user", "content": [{"type": "image"}]}]}, "messages.0.content.0.source"),
        (
            {"messages": [{"role": "user", "content": [{"type": "tool_result", "content": "x"}]}]},
            "messages.0.content.0.tool_use_id",
        ),
        (
            {"messages": [{"role": "assistant", "content": [{"type": "redacted_thinking", "data": "x"}]}]},
            "messages.0.content.0.type",
        ),
        (
            {"messages": [{"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "n"}]}]},
            "messages.0.content.0.input",
        ),
        ({"system": 5}, "system"),
        ({"system": [{"type": "thinking", "thinking": "x"}]}, "system.0.type"),
        ({"temperature": 9}, "temperature"),
        ({"stop_sequences": "x"}, "stop_sequences"),
        ({"stop_sequences": [5]}, "stop_sequences"),
        ({"stream": "yes"}, "stream"),
        ({"metadata": {"user_id": 5}}, "metadata.user_id"),
        ({"metadata": {"mail": "x"}}, "metadata.mail"),
        ({"tools": [{"type": "bash_20250124", "name": "bash"}]}, "tools.0.type"),
        ({"tools": [{"name": "x"}]}, "tools.0.input_schema"),
        ({"tools": [{**TOOL, "input_examples": [{}]}]}, "tools.0.input_examples"),
        ({"tools": [{**TOOL, "defer_loading": True}]}, "tools.0.defer_loading"),
        ({"tool_choice": {"type": "must"}}, "tool_choice.type"),
        ({"tool_choice": {"type": "any"}}, "tool_choice.type"),
        ({"tool_choice": {"type": "tool"}}, "tool_choice.name"),
        ({"thinking": {"type": "on"}}, "thinking.type"),
        ({"output_config": {"effort": "huge"}}, "output_config.effort"),
        ({"output_config": {"format": {"type": "json_schema"}}}, "output_config.format.schema"),
        ({"context_management": {"edits": [{"type": "clear_tool_uses_20250919"}]}}, "context_management.edits.0.type"),
        ({"container": "c"}, "container"),
        ({"mcp_servers": []}, "mcp_servers"),
        ({"inference_geo": "us"}, "inference_geo"),
        ({"speed": "fast"}, "speed"),
        ({"n": 2}, "n"),
        ({"unheard_of": 1}, "unheard_of"),
    ],
)
def test_what_is_wrong_or_not_offered_is_refused_by_the_name_of_its_field(body, param):
    found = refusal(**body).param
    assert found == param or found.startswith(f"{param}.")


def test_places_of_the_chat_are_those_of_the_body():
    result = {"type": "tool_result", "tool_use_id": "t1", "is_error": True, "content": [{"type": "text", "text": "no"}]}
    made = call(
        system="s",
        messages=[
            {"role": "user", "content": "x"},
            {"role": "assistant", "content": [{"type": "tool_use", "id": "t1", "name": "look", "input": {}}]},
            {"role": "user", "content": [result, {"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        ],
        tools=[TOOL],
    ).translation
    places = {
        ("messages", 0, "content"): ("system",),
        ("messages", 1, "content"): ("messages", 0, "content"),
        ("messages", 2, "tool_calls", 0, "function", "arguments"): ("messages", 1, "content", 0, "input"),
        ("messages", 3, "content", 1, "text"): ("messages", 2, "content", 0, "content", 0, "text"),
        ("messages", 4, "content", 1, "text"): ("messages", 2, "content", 2, "text"),
        ("tools", 0, "function", "parameters"): ("tools", 0, "input_schema"),
        ("stop",): ("stop_sequences",),
    }
    assert {place: made.place(place) for place in places} == places


def test_every_string_of_a_body_is_in_the_chat_body_or_refused():
    canary = "canary4711"
    text = {"type": "text", "text": canary}
    told = {
        "system": [text, text], "metadata": {"user_id": canary}, "stop_sequences": [canary],
        "tools": [{"name": canary, "description": canary, "input_schema": {canary: canary}}],
        "messages": [
            {"role": "user", "content": [text, IMAGE, text]},
            {"role": "assistant", "content": [
                {"type": "thinking", "thinking": canary, "signature": ""}, text,
                {"type": "tool_use", "id": canary, "name": canary, "input": {canary: canary}}]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": canary, "content": [text, text]}]},
        ],
        "tool_choice": {"type": "tool", "name": canary},
        "output_config": {"format": {"type": "json_schema", "schema": {canary: canary}}},
    }  # fmt: skip
    assert json.dumps(call(**told).body).count(canary) == json.dumps(told).count(canary)


def test_a_whole_answer_is_a_message_with_its_blocks():
    calls = [{"id": "t1", "type": "function", "function": {"name": "look", "arguments": '{"a":1}'}}]
    made = whole({"reasoning_content": "hm", "content": "So", "tool_calls": calls}, "tool_calls")
    assert made["content"] == [
        {"type": "thinking", "thinking": "hm", "signature": ""},
        {"type": "text", "text": "So"},
        {"type": "tool_use", "id": "t1", "name": "look", "input": {"a": 1}},
    ]
    assert made["usage"] == {
        "input_tokens": 4, "cache_read_input_tokens": 3, "cache_creation_input_tokens": 0, "output_tokens": 5,
    }  # fmt: skip
    assert whole({"content": "x"}, usage=None)["usage"] == {"input_tokens": 0, "output_tokens": 0}
    broken = [{"id": "t1", "function": {"name": "look", "arguments": "{broken"}}]
    assert whole({"tool_calls": broken})["content"][0]["input"] == {"arguments": "{broken"}


def test_a_stream_has_the_events_of_its_blocks_in_order_and_says_what_the_whole_answer_says():
    found = streamed(
        chunk({"role": "assistant", "content": ""}),
        chunk({"reasoning_content": "h"}),
        ("reasoning_content", "m"),
        chunk({"content": "S"}),
        ("content", "o"),
        chunk(tool(0, "t1", "look", "")),
        chunk(tool(0, arguments='{"a"')),
        chunk(tool(0, arguments=":1}")),
        chunk(tool(1, "t2", "walk", "{}")),
        chunk({}, "tool_calls"),
    )
    delta = "content_block_delta"
    block = ["content_block_start", delta, "content_block_stop"]
    assert names(found) == [
        "message_start", "ping", "content_block_start", delta, delta, delta, "content_block_stop",
        "content_block_start", delta, delta, "content_block_stop", "content_block_start", delta, delta,
        "content_block_stop", *block, "message_delta", "message_stop",
    ]  # fmt: skip
    calls = [
        {"id": "t1", "function": {"name": "look", "arguments": '{"a":1}'}},
        {"id": "t2", "function": {"name": "walk", "arguments": "{}"}},
    ]
    made = whole({"reasoning_content": "hm", "content": "So", "tool_calls": calls}, "tool_calls")
    assert blocks(found) == made["content"]
    last = found[-2][1]
    assert last["delta"] == {"stop_reason": "tool_use", "stop_sequence": None}
    assert last["usage"] == made["usage"]


@pytest.mark.parametrize(
    ("finish", "stop", "reason"),
    [
        ("stop", None, "end_turn"),
        ("length", None, "max_tokens"),
        ("content_filter", None, "refusal"),
        ("stop", "END", "stop_sequence"),
        ("stop", "other", "end_turn"),
        ("stop", 4711, "end_turn"),
        (None, None, "end_turn"),
    ],
)
def test_why_an_answer_ended_is_its_stop_reason(finish, stop, reason):
    choice = {"stop_reason": stop}
    made = whole({"content": "x"}, finish, choice=choice, stop_sequences=["END"])
    found = streamed(chunk({"content": "x"}), chunk({}, finish, **choice), stop_sequences=["END"])
    for told in (made, found[-2][1]["delta"]):
        assert told["stop_reason"] == reason
        assert told["stop_sequence"] == ("END" if reason == "stop_sequence" else None)


@pytest.mark.parametrize("thinking", [{"type": "disabled"}, {"type": "adaptive", "display": "omitted"}])
def test_thoughts_that_were_not_asked_for_are_not_shown(thinking):
    assert [
        each["type"] for each in whole({"reasoning_content": "hm", "content": "x"}, thinking=thinking)["content"]
    ] == ["text"]
    found = streamed(chunk({"reasoning": "h"}), ("reasoning", "m"), chunk({"content": "x"}), thinking=thinking)
    assert [each["type"] for each in blocks(found)] == ["text"]


def test_calls_whose_pieces_are_mixed_are_refused_rather_than_put_together_wrongly():
    with pytest.raises(BackendFailed):
        streamed(chunk(tool(0, "a", "f", "{")), chunk(tool(1, "b", "g", "{")), chunk(tool(0, arguments="}")))


def test_a_stream_of_twenty_thousand_events_holds_nothing_of_its_text():
    writer = call().translation.events()
    writer.chunk(chunk({"content": "x"}))
    longest = max(len(writer.text("content", "word ")) for _ in range(20_000))
    assert longest < 200
    held = [value for value in vars(writer).values() if isinstance(value, str | bytes | list | dict)]
    assert sum(map(len, held)) < 300


@pytest.mark.parametrize(
    ("error", "status", "kind"),
    [
        (InvalidRequest("x"), 400, "invalid_request_error"),
        (NotAuthenticated("x"), 401, "authentication_error"),
        (PolicyDenied([]), 403, "permission_error"),
        (ModelNotFound("x"), 404, "not_found_error"),
        (RequestTooLarge("x"), 413, "request_too_large"),
        (LimitReached("x"), 429, "rate_limit_error"),
        (BackendRefused(422, {"message": "x", "type": "y"}), 422, "invalid_request_error"),
        (BackendFailed("x"), 502, "api_error"),
        (BackendUnavailable("x"), 503, "overloaded_error"),
        (BackendTimeout("x"), 504, "timeout_error"),
    ],
)
def test_errors_have_the_type_of_their_status(error, status, kind):
    assert error.http_status == status
    told = json.loads(MESSAGES.format.error(error))
    assert (told["type"], told["error"]["type"]) == ("error", kind)
    assert told["error"]["message"] == error.message
    ((name, data),) = events(MESSAGES.format.stream_error(error))
    assert (name, data) == ("error", told)


def test_a_count_of_tokens_asks_for_the_prompt_alone():
    made = call(COUNT_TOKENS, tools=[TOOL], system="s", thinking={"type": "enabled", "budget_tokens": 9})
    assert made.most_tokens(512) == 1
    assert (COUNT_TOKENS.upstream, made.choices) == ("/tokenize", 1)
    count = COUNT_TOKENS.answer.read(b'{"count": 5, "tokens": [1]}').body
    assert made.translation.answer(count, None) == b'{"input_tokens":5}'
    assert refusal(COUNT_TOKENS, max_tokens=5).param == "max_tokens"
    for raw in (b'{"count": "5"}', b'{"count": -1}', b"{}", b"[]", b"", b'{"count": true}'):
        with pytest.raises(BackendFailed):
            COUNT_TOKENS.answer.read(raw)


def test_a_server_that_calls_without_end_is_cut():
    writer = call().translation.events()
    with pytest.raises(BackendFailed):
        for number in range(MAX_ITEMS + 1):
            writer.chunk(chunk(tool(number, f"call_{number}", None, "x")))
