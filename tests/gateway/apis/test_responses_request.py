"""A body of /v1/responses becomes the chat body that asks for the same, or is refused by the name of its field."""

import json

import pytest

from gateway.api_format import CallState, Earlier, GoesOn
from gateway.apis.endpoints import RESPONSES
from gateway.apis.responses.sealed_state import NotOurs, opened, sealed
from gateway.errors import InvalidRequest
from gateway.openai.checked_call import parse_call
from gateway.openai.endpoints import CHAT

SECRET, OTHER = bytes(32), bytes(31) + b"1"
TOOL = {"type": "function", "name": "look", "parameters": {"type": "object"}, "strict": True}


def call(secret=SECRET, **body):
    return parse_call(RESPONSES, json.dumps({"model": "m", "input": "hi", **body}).encode(), CallState(secret))


def chat(**body):
    made = call(**body).body
    return {name: value for name, value in made.items() if name != "model"}


def messages(*items, **body):
    return chat(input=list(items), **body)["messages"]


def refusal(**body):
    with pytest.raises(InvalidRequest) as refused:
        call(**body)
    assert "; " in refused.value.message, "an error names its remedy"
    return refused.value


def test_a_text_is_a_message_of_the_user_behind_the_instructions():
    assert chat(input="hi") == {"messages": [{"role": "user", "content": "hi"}]}
    assert chat(input="hi", instructions="Be short")["messages"] == [
        {"role": "system", "content": "Be short"},
        {"role": "user", "content": "hi"},
    ]


def test_messages_keep_their_roles_and_one_part_is_a_plain_text():
    assert messages(
        {"role": "developer", "content": "d"},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "a"}]},
        {"role": "user", "content": [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}]},
        {"role": "assistant", "id": "msg_1", "status": "completed", "type": "message",
         "content": [{"type": "output_text", "text": "c", "annotations": [], "logprobs": []}]},
    ) == [
        {"role": "developer", "content": "d"},
        {"role": "user", "content": "a"},
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        {"role": "assistant", "content": "c"},
    ]  # fmt: skip


def test_what_the_assistant_thinks_says_and_calls_is_one_message_with_results_behind_it():
    made = messages(
        {"role": "user", "content": "weather?"},
        {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]},
        {"role": "assistant", "content": "I look"},
        {"type": "function_call", "id": "fc_1", "call_id": "call_1", "name": "look", "arguments": '{"at":"Rome"}'},
        {"type": "function_call", "call_id": "call_2", "name": "look", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "call_1", "output": "sun"},
        {"type": "function_call_output", "call_id": "call_2", "output": [{"type": "input_text", "text": "rain"}]},
        {"role": "assistant", "content": "Sun."},
    )
    calls = [
        {"id": "call_1", "type": "function", "function": {"name": "look", "arguments": '{"at":"Rome"}'}},
        {"id": "call_2", "type": "function", "function": {"name": "look", "arguments": "{}"}},
    ]
    assert made == [
        {"role": "user", "content": "weather?"},
        {"role": "assistant", "content": "I look", "reasoning_content": "hm", "tool_calls": calls},
        {"role": "tool", "tool_call_id": "call_1", "content": "sun"},
        {"role": "tool", "tool_call_id": "call_2", "content": "rain"},
        {"role": "assistant", "content": "Sun."},
    ]


def test_parameters_take_the_names_that_chats_have():
    made = chat(
        max_output_tokens=9,
        temperature=0.5,
        top_p=0.9,
        user="u",
        safety_identifier="s",
        metadata={"a": "b"},
        reasoning={"effort": "low", "summary": "auto"},
        parallel_tool_calls=False,
        tools=[TOOL],
        tool_choice="required",
        text={"verbosity": "low", "format": {"type": "json_schema", "name": "n", "schema": {"type": "object"}}},
        top_logprobs=2,
        include=["message.output_text.logprobs"],
        stream=True,
        store=False,
        background=False,
        truncation="disabled",
        prompt_cache_key="any text",
        service_tier="auto",
        client_metadata={"a": "b"},
        stream_options={"include_obfuscation": False},
        previous_response_id=None,
        conversation=None,
    )
    del made["messages"]
    function = {"name": "look", "parameters": {"type": "object"}, "strict": True}
    assert made == {
        "max_tokens": 9, "temperature": 0.5, "top_p": 0.9, "user": "u", "safety_identifier": "s",
        "metadata": {"a": "b"}, "reasoning_effort": "low", "parallel_tool_calls": False,
        "tools": [{"type": "function", "function": function}], "tool_choice": "required", "verbosity": "low",
        "response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "object"}}},
        "logprobs": True, "top_logprobs": 2, "stream": True,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("choice", "made"),
    [
        ("auto", "auto"),
        ("none", "none"),
        ({"type": "function", "name": "look"}, {"type": "function", "function": {"name": "look"}}),
        (
            {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "look"}]},
            {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [
                {"type": "function", "function": {"name": "look"}}]}},
        ),
    ],
)  # fmt: skip
def test_a_choice_of_tools_is_the_chats(choice, made):
    assert chat(tools=[TOOL], tool_choice=choice)["tool_choice"] == made


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"input": None}, "input"),
        ({"input": 5}, "input"),
        ({"input": []}, "input"),
        ({"input": {}}, "input"),
        ({"input": ["x"]}, "input.0"),
        ({"input": [{}]}, "input.0.role"),
        ({"input": [{"role": "tool", "content": "x"}]}, "input.0.role"),
        ({"input": [{"role": "user"}]}, "input.0.content"),
        ({"input": [{"role": "user", "content": 5}]}, "input.0.content"),
        ({"input": [{"role": "user", "content": "x", "extra": "y"}]}, "input.0.extra"),
        ({"input": [{"role": "user", "content": [{"type": "input_text"}]}]}, "input.0.content.0.text"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_text", "text": "x", "y": 1}]}]},
            "input.0.content.0.y",
        ),
        ({"input": [{"role": "user", "content": [{"type": "input_file", "file_id": "f"}]}]}, "input.0.content.0.type"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image", "file_id": "f"}]}]},
            "input.0.content.0.image_url",
        ),
        ({"input": [{"role": "user", "content": "x", "id": "no identifier"}]}, "input.0.id"),
        ({"input": [{"type": "item_reference"}]}, "input.0.id"),
        ({"input": [{"type": "item_reference", "id": "no identifier"}]}, "input.0.id"),
        ({"input": [{"type": "web_search_call", "id": "x"}]}, "input.0.type"),
        ({"input": [{"type": "function_call", "name": "f", "arguments": "{}"}]}, "input.0.call_id"),
        ({"input": [{"type": "function_call_output", "call_id": "c"}]}, "input.0.output"),
        ({"input": [{"type": "reasoning", "summary": [{"type": "other", "text": "x"}]}]}, "input.0.summary.0.type"),
        ({"instructions": 5}, "instructions"),
        ({"model": 5}, "model"),
        ({"model": None}, "model"),
        ({"temperature": 9}, "temperature"),
        ({"temperature": "warm"}, "temperature"),
        ({"top_p": -1}, "top_p"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"max_output_tokens": "9"}, "max_output_tokens"),
        ({"max_tokens": 9}, "max_tokens"),
        ({"n": 2}, "n"),
        ({"stop": "x"}, "stop"),
        ({"messages": []}, "messages"),
        ({"stream": "yes"}, "stream"),
        ({"metadata": {"a": 1}}, "metadata"),
        ({"metadata": "x"}, "metadata"),
        ({"metadata": {str(n): "x" for n in range(17)}}, "metadata"),
        ({"store": "yes"}, "store"),
        ({"previous_response_id": 1}, "previous_response_id"),
        ({"previous_response_id": "no identifier"}, "previous_response_id"),
        ({"conversation": "conv_1"}, "conversation"),
        ({"prompt": {"id": "p"}}, "prompt"),
        ({"background": 1}, "background"),
        ({"background": True, "store": False}, "store"),
        ({"background": True, "stream": True}, "stream"),
        ({"truncation": "auto"}, "truncation"),
        ({"service_tier": "flex"}, "service_tier"),
        ({"tools": [{"type": "web_search"}]}, "tools.0.type"),
        ({"tools": [TOOL, {"type": "mcp"}]}, "tools.1.type"),
        ({"tools": [{"type": "function"}]}, "tools.0.name"),
        ({"tools": {}}, "tools"),
        ({"tools": ["x"]}, "tools.0"),
        ({"tools": [{**TOOL, "parameters": "x"}]}, "tools.0.parameters"),
        ({"tool_choice": "must"}, "tool_choice"),
        ({"tool_choice": {"type": "file_search"}}, "tool_choice.type"),
        ({"include": ["file_search_call.results"]}, "include.0"),
        ({"include": "x"}, "include"),
        ({"top_logprobs": 99}, "top_logprobs"),
        ({"text": {"format": {"type": "grammar"}}}, "text.format.type"),
        ({"text": {"format": {"type": "json_schema", "name": "n"}}}, "text.format.schema"),
        ({"reasoning": {"effort": "huge"}}, "reasoning.effort"),
        ({"reasoning": {"summary": "detailed"}}, "reasoning.summary"),
        ({"stream_options": {"include_usage": True}}, "stream_options.include_usage"),
        ({"stream_options": {"include_obfuscation": True}}, "stream_options.include_obfuscation"),
        ({"unheard_of": 1}, "unheard_of"),
        ({"anna@example.org": 1}, None),
    ],
)
def test_what_is_wrong_or_not_offered_is_refused_by_the_name_of_its_field(body, param):
    error = refusal(**body)
    assert error.param == param
    assert "anna@example.org" not in error.message, "a member's name may be a text"


def test_what_a_call_asks_to_be_kept_is_read_and_said_in_its_answer():
    for body, wanted, background in [
        ({}, None, False), ({"store": True}, True, False), ({"store": False}, False, False),
        ({"background": True}, True, True), ({"background": False, "stream": True}, None, False),
    ]:  # fmt: skip
        made = call(**body).translation
        assert (made.storage.wanted, made.storage.background, made.storage.earlier) == (wanted, background, None)
        for translation, kept in ((made, False), (made.kept(), True)):
            answer = json.loads(translation.waiting())
            assert (answer["store"], answer["background"], answer["id"]) == (kept, background, made.storage.response)


@pytest.mark.parametrize(
    "body", [{"previous_response_id": "resp_1"}, {"input": [{"type": "item_reference", "id": "msg_1"}]}]
)
def test_a_body_that_names_what_is_kept_is_no_call_until_that_is_in_it(body):
    with pytest.raises(GoesOn):
        call(**body)


@pytest.mark.parametrize(
    ("was_text", "place", "told"),
    [
        (False, ("input", 0, "content"), ("previous_response_id",)),
        (False, ("input", 1), ("previous_response_id",)),
        (False, ("input", 2, "content", 0), ("input", 0, "content", 0)),
        (True, ("input", 2, "content"), ("input",)),
        (True, ("input",), ("input",)),
        (False, ("instructions",), ("instructions",)),
    ],
)
def test_places_are_those_of_the_body_that_the_client_sent(was_text, place, told):
    assert Earlier("resp_1", 2, was_text).place(place) == told


def test_a_body_that_is_no_object_or_has_too_many_messages_is_refused():
    for raw in (b"[]", b'"x"', b"", b"{", b"5"):
        with pytest.raises(InvalidRequest):
            parse_call(RESPONSES, raw)
    error = refusal(input=[{"role": "user", "content": "x"}] * 5000)
    assert error.param == "input"


def test_an_error_of_the_chat_model_names_the_field_of_this_body():
    assert refusal(tools=[{**TOOL, "parameters": {"a": deep(70)}}]).param == "tools.0"
    places = {
        ("messages", 0, "content"): ("instructions",),
        ("messages", 1, "content", 0): ("input", 0, "content", 0),
        ("messages", 2, "tool_calls", 1, "function", "arguments"): ("input", 2, "arguments"),
        ("messages", 3, "content"): ("input", 3, "output"),
        ("max_tokens",): ("max_output_tokens",),
        ("tools", 0, "function", "name"): ("tools", 0, "name"),
    }
    two = [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}]
    made = call(
        instructions="i", tools=[TOOL],
        input=[
            {"role": "user", "content": two},
            {"type": "function_call", "call_id": "1", "name": "f", "arguments": "{}"},
            {"type": "function_call", "call_id": "2", "name": "f", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "1", "output": "o"},
        ],
    )  # fmt: skip
    assert {place: made.translation.place(place) for place in places} == places


def deep(levels):
    made = {}
    for _ in range(levels):
        made = {"a": made}
    return made


def test_sealed_reasoning_opens_under_its_own_key_alone():
    state = sealed("why \ud800", SECRET)
    assert opened(state, SECRET) == "why \ud800"
    assert sealed("why", SECRET) != sealed("why", SECRET)
    broken = [state[:-4] + "AAAA", state[4:], "", "?", "gAAAAABo", state.swapcase(), "é"]
    for written, secret in [(state, OTHER), *((one, SECRET) for one in broken)]:
        with pytest.raises(NotOurs):
            opened(written, secret)


def test_sealed_reasoning_comes_back_as_thoughts_of_the_conversation():
    item = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": sealed("why", SECRET)}
    told = {**item, "content": [{"type": "reasoning_text", "text": "why"}]}
    for each in (item, told):
        assert messages(each, {"role": "assistant", "content": "so"}) == [
            {"role": "assistant", "content": "so", "reasoning_content": "why"}
        ]
    changed = {**item, "content": [{"type": "reasoning_text", "text": "else"}]}
    assert refusal(input=[changed]).param == "input.0.content"
    for secret in (OTHER, None):
        error = refusal(secret=secret, input=[{"role": "user", "content": "x"}, item])
        assert (error.param, error.code) == ("input.1.encrypted_content", "invalid_encrypted_content")


def test_every_string_of_a_body_is_in_the_chat_body_or_refused():
    """A canary at each place that takes a text: what is answered but not inspected would leave unseen."""
    canary = "canary4711"
    whole = {
        "instructions": canary, "user": canary, "safety_identifier": canary, "metadata": {canary: canary},
        "input": [
            {"role": "user", "content": canary},
            {"role": "assistant", "content": [{"type": "output_text", "text": canary}]},
            {"role": "assistant", "content": [{"type": "refusal", "refusal": canary}]},
            {"type": "reasoning", "content": [{"type": "reasoning_text", "text": canary}],
             "summary": [{"type": "summary_text", "text": canary}]},
            {"type": "function_call", "call_id": canary, "name": canary, "arguments": canary},
            {"type": "function_call_output", "call_id": canary, "output": canary},
            {"role": "user", "content": [{"type": "input_image", "image_url": canary}]},
        ],
        "tools": [{"type": "function", "name": canary, "description": canary, "parameters": {canary: canary}}],
        "text": {"format": {"type": "json_schema", "name": canary, "description": canary, "schema": {canary: canary}}},
        "tool_choice": {"type": "function", "name": canary},
    }  # fmt: skip
    assert json.dumps(call(**whole).body).count(canary) == json.dumps(whole).count(canary)


def test_a_chat_is_not_translated():
    made = parse_call(CHAT, b'{"model":"m","messages":[{"role":"user","content":"hi"}]}')
    assert made.translation is None
    assert RESPONSES.upstream == CHAT.upstream == "/v1/chat/completions"
