"""Chat answers, whole and in chunks, as responses and their events."""

import json

import pytest
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from backend.wire import Usage
from gateway.api_format import CallState
from gateway.apis import chat_answer
from gateway.apis.endpoints import RESPONSES
from gateway.apis.responses.sealed_state import opened
from gateway.errors import BackendFailed, BackendTimeout, LimitReached
from gateway.openai.checked_call import parse_call
from tests.gateway.apis.recorded import chunk, events, tool

EVENT = TypeAdapter(ResponseStreamEvent)
SECRET = bytes(32)
USAGE = Usage(
    prompt_tokens=7,
    completion_tokens=5,
    total_tokens=12,
    prompt_tokens_details={"cached_tokens": 3},
    completion_tokens_details={"reasoning_tokens": 2},
)


def translation(**body):
    return parse_call(
        RESPONSES, json.dumps({"model": "m", "input": "hi", **body}).encode(), CallState(SECRET)
    ).translation


def streamed(*chunks, usage=USAGE, **body):
    """The events of a stream of `chunks`; a pair (field, text) is a chunk with nothing but that."""
    writer = translation(**body).events()
    raw = b"".join(writer.text(*one) if isinstance(one, tuple) else writer.chunk(one) for one in chunks)
    return checked(events(raw + writer.end(usage)))


def checked(found):
    """`found`, each strictly of the SDK's types and numbered in order."""
    for number, (name, data) in enumerate(found):
        assert data["type"] == name
        assert data["sequence_number"] == number
        EVENT.validate_json(json.dumps(data))
    return found


def whole(message, finish="stop", usage=USAGE, **body):
    answer = {"choices": [{"index": 0, "message": message, "finish_reason": finish, **body.pop("choice", {})}]}
    raw = translation(**body).answer(answer, usage)
    Response.model_validate_json(raw, strict=True)
    made = json.loads(raw)
    return made


def names(found):
    return [name.removeprefix("response.") for name, _ in found]


def of(found, name):
    return [data for kind, data in found if kind == f"response.{name}"]


TEXT = ["output_item.added", "content_part.added", "output_text.delta"]
TEXT_DONE = ["output_text.done", "content_part.done", "output_item.done"]


def test_a_streamed_text_has_every_event_of_its_item_in_order():
    found = streamed(
        chunk({"role": "assistant", "content": ""}),
        chunk({"content": "The "}),
        ("content", "capital"),
        ("content", ' "is"\n'),
        chunk({}, "stop"),
    )
    assert names(found) == [
        "created",
        "in_progress",
        *TEXT,
        "output_text.delta",
        "output_text.delta",
        *TEXT_DONE,
        "completed",
    ]
    assert "".join(data["delta"] for data in of(found, "output_text.delta")) == 'The capital "is"\n'
    assert of(found, "output_text.done")[0]["text"] == 'The capital "is"\n'
    response = of(found, "completed")[0]["response"]
    assert response["output"] == [of(found, "output_item.done")[0]["item"]]
    assert response["status"] == "completed"
    assert of(found, "created")[0]["response"]["output"] == []
    assert response["usage"] == {
        "input_tokens": 7, "input_tokens_details": {"cached_tokens": 3, "cache_write_tokens": 0},
        "output_tokens": 5, "output_tokens_details": {"reasoning_tokens": 2}, "total_tokens": 12,
    }  # fmt: skip


def test_thoughts_text_and_calls_are_items_one_after_the_other():
    found = streamed(
        chunk({"reasoning_content": "Let me "}),
        ("reasoning_content", "think"),
        chunk({"content": "So"}),
        chunk(tool(0, "call_a", "look", "")),
        chunk(tool(0, arguments='{"a":')),
        chunk(tool(0, arguments="1}")),
        chunk(tool(1, "call_b", "walk", "{}")),
        chunk({}, "tool_calls"),
    )
    call = ["output_item.added", "function_call_arguments.delta"]
    call_done = ["function_call_arguments.done", "output_item.done"]
    assert names(found) == [
        "created", "in_progress",
        "output_item.added", "content_part.added", "reasoning_text.delta", "reasoning_text.delta",
        "reasoning_text.done", "content_part.done", "output_item.done",
        *TEXT, *TEXT_DONE, *call, "function_call_arguments.delta", *call, *call_done, *call_done, "completed",
    ]  # fmt: skip
    output = of(found, "completed")[0]["response"]["output"]
    assert [item["type"] for item in output] == ["reasoning", "message", "function_call", "function_call"]
    assert [(item["call_id"], item["name"], item["arguments"]) for item in output[2:]] == [
        ("call_a", "look", '{"a":1}'),
        ("call_b", "walk", "{}"),
    ]
    assert [data["item"]["id"] for data in of(found, "output_item.added")] == [item["id"] for item in output]
    assert len({item["id"] for item in output}) == 4


def test_calls_whose_pieces_are_mixed_stay_apart():
    found = streamed(
        chunk(tool(0, "call_a", "look", "{")),
        chunk(tool(1, "call_b", "walk", "[")),
        chunk(tool(0, arguments="}")),
        chunk(tool(1, arguments="]")),
        chunk({}, "tool_calls"),
    )
    assert [item["arguments"] for item in of(found, "completed")[0]["response"]["output"]] == ["{}", "[]"]


def test_a_name_that_comes_after_arguments_begins_the_call():
    found = streamed(chunk(tool(0, "call_a", None, "{")), chunk(tool(0, name="look")), chunk(tool(0, arguments="}")))
    assert names(found)[2:4] == ["output_item.added", "function_call_arguments.delta"]
    (item,) = of(found, "completed")[0]["response"]["output"]
    assert (item["name"], item["arguments"]) == ("look", "{}")


def test_text_that_goes_on_after_a_call_is_an_item_of_its_own():
    found = streamed(
        chunk({"content": "a"}), chunk(tool(0, "c", "f", "{}")), chunk({"content": "b"}), chunk({}, "stop")
    )
    output = of(found, "completed")[0]["response"]["output"]
    assert [item["type"] for item in output] == ["message", "function_call", "message"]


def test_a_server_that_sends_thoughts_under_two_names_says_them_once():
    found = streamed(chunk({"reasoning": "hm", "reasoning_content": "hm"}), chunk({}, "stop"))
    assert [data["delta"] for data in of(found, "reasoning_text.delta")] == ["hm"]
    (item, _) = whole({"reasoning": "hm", "reasoning_content": "hm", "content": "x"})["output"]
    assert item["content"] == [{"type": "reasoning_text", "text": "hm"}]


@pytest.mark.parametrize(
    ("finish", "status", "reason"),
    [
        ("stop", "completed", None),
        ("length", "incomplete", "max_output_tokens"),
        ("eos_token", "completed", None),
        ("content_filter", "incomplete", "content_filter"),
        ("tool_calls", "completed", None),
        (None, "completed", None),
    ],
)
def test_why_an_answer_ended_is_its_status(finish, status, reason):
    made = whole({"content": "x"}, finish)
    assert (made["status"], (made["incomplete_details"] or {}).get("reason")) == (status, reason)
    found = streamed(chunk({"content": "x"}), chunk({}, finish))
    name, last = found[-1]
    assert name == f"response.{status}"
    assert last["response"]["incomplete_details"] == made["incomplete_details"]
    assert last["response"]["output"][0]["status"] == made["output"][0]["status"] == status


def test_a_whole_answer_says_what_its_stream_says():
    message = {
        "role": "assistant", "reasoning_content": "hm", "content": "So",
        "tool_calls": [{"id": "call_a", "type": "function", "function": {"name": "look", "arguments": '{"a":1}'}}],
    }  # fmt: skip
    made = whole(message, "tool_calls")
    found = streamed(
        chunk({"reasoning_content": "hm"}),
        chunk({"content": "So"}),
        chunk(tool(0, "call_a", "look", '{"a":1}')),
        chunk({}, "tool_calls"),
    )
    last = of(found, "completed")[0]["response"]
    assert without_ids(last["output"]) == without_ids(made["output"])
    assert last["usage"] == made["usage"]


def without_ids(items):
    return [{name: value for name, value in item.items() if name != "id"} for item in items]


def test_a_response_repeats_what_was_asked_and_that_it_is_not_stored():
    tool = {"type": "function", "name": "f", "parameters": {"type": "object"}, "strict": None, "description": None}
    asked = {
        "instructions": "Be short", "temperature": 0.5, "top_p": 0.5, "max_output_tokens": 9, "metadata": {"a": "b"},
        "tool_choice": "required", "parallel_tool_calls": False, "user": "u", "safety_identifier": "s",
        "prompt_cache_key": "k", "text": {"format": {"type": "json_object"}},
        "reasoning": {"effort": "low", "summary": None},
    }  # fmt: skip
    made = whole({"content": "x"}, tools=[tool], **asked)
    assert {name: made[name] for name in asked} == asked
    assert made["tools"][0] == {name: value for name, value in tool.items() if name != "description"}
    assert (made["store"], made["previous_response_id"], made["background"]) == (False, None, False)
    assert (made["object"], made["model"]) == ("response", "m")


def test_reasoning_is_sealed_where_it_was_asked_for():
    asked = {"include": ["reasoning.encrypted_content"], "store": False}
    (item,) = whole({"reasoning_content": "hm"}, **asked)["output"]
    assert opened(item["encrypted_content"], SECRET) == "hm"
    found = streamed(chunk({"reasoning_content": "h"}), ("reasoning_content", "m"), chunk({}, "stop"), **asked)
    assert "encrypted_content" not in of(found, "output_item.added")[0]["item"]
    assert opened(of(found, "output_item.done")[0]["item"]["encrypted_content"], SECRET) == "hm"
    assert "encrypted_content" not in whole({"reasoning_content": "hm"})["output"][0]


def test_log_probabilities_go_with_their_text():
    tokens = [{"token": "é", "logprob": -1.0, "bytes": None, "top_logprobs": [{"token": "e", "logprob": -2.0}]}]
    told = [
        {"token": "é", "logprob": -1.0, "bytes": [195, 169],
         "top_logprobs": [{"token": "e", "logprob": -2.0, "bytes": [101]}]},
    ]  # fmt: skip
    choice = {"logprobs": {"content": tokens}}
    made = whole({"content": "é"}, choice=choice, top_logprobs=1)
    assert made["output"][0]["content"][0]["logprobs"] == told
    found = streamed(chunk({"content": "é"}, **choice), chunk({}, "stop"), top_logprobs=1)
    assert of(found, "output_text.delta")[0]["logprobs"] == told
    assert of(found, "output_text.done")[0]["logprobs"] == told


def test_a_stream_that_fails_says_so_with_what_came_until_then():
    writer = translation().events()
    raw = writer.chunk(chunk({"content": "Hal"})) + writer.failed(
        BackendTimeout("The backend is slow", code="backend_timeout")
    )
    found = checked(events(raw))
    assert names(found)[-2:] == ["error", "failed"]
    assert found[-2][1]["code"] == "backend_timeout"
    response = found[-1][1]["response"]
    assert (response["status"], response["error"]["code"]) == ("failed", "server_error")
    assert response["output"][0]["content"][0]["text"] == "Hal"
    assert response["output"][0]["status"] == "incomplete"
    found = checked(events(translation().events().failed(LimitReached("Too many"))))
    assert names(found) == ["created", "in_progress", "error", "failed"], "a client learns of the response first"
    assert found[-1][1]["response"]["error"]["code"] == "rate_limit_exceeded"


def test_an_answer_without_text_is_a_response_without_items():
    assert whole({"content": ""})["output"] == whole({"content": None})["output"] == []
    assert names(streamed(chunk({"role": "assistant"}), chunk({}, "stop"))) == ["created", "in_progress", "completed"]
    assert names(streamed(usage=None)) == ["created", "in_progress", "completed"]


def test_shapes_of_other_servers_are_read():
    parts = [{"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]}, {"type": "text", "text": "So"}]
    assert [item["type"] for item in whole({"content": parts})["output"]] == ["reasoning", "message"]
    call = {"function": {"name": "f", "arguments": {"a": 1}}}
    (item,) = whole({"tool_calls": [call]})["output"]
    assert (item["arguments"], bool(item["call_id"])) == ('{"a":1}', True)
    (item,) = whole({"function_call": {"name": "f", "arguments": "{}"}})["output"]
    assert item["name"] == "f"


def test_a_stream_of_twenty_thousand_events_holds_its_text_once():
    writer = translation().events()
    writer.chunk(chunk({"content": "x"}))
    longest = max(len(writer.text("content", "word ")) for _ in range(20_000))
    assert longest < 400, "an event has no part of the text before it"
    held = [value for value in vars(writer).values() if isinstance(value, list | dict)]
    assert sum(map(len, held)) == 1, "one item, whatever the number of events"
    assert writer._text.held.tell() == 100_001


def test_an_answer_that_is_too_long_to_hold_is_cut(monkeypatch):
    monkeypatch.setattr("gateway.apis.responses.events.MAX_TEXT", 10)
    assert chat_answer.MAX_TEXT == 64 << 20
    writer = translation().events()
    writer.chunk(chunk({"content": "12345"}))
    with pytest.raises(BackendFailed):
        writer.text("content", "678901")


def test_a_server_that_alternates_without_end_is_cut():
    writer = translation().events()
    with pytest.raises(BackendFailed):
        for number in range(chat_answer.MAX_ITEMS + 1):
            writer.text("content" if number % 2 else "reasoning", "x")
    assert len(writer._items) == chat_answer.MAX_ITEMS
    assert names(events(writer.failed(BackendFailed("x"))))[-1] == "failed"
    writer = translation().events()
    with pytest.raises(BackendFailed):
        for number in range(chat_answer.MAX_ITEMS + 1):
            writer.chunk(chunk(tool(number, f"call_{number}", None, "x")))


def test_log_probabilities_count_to_what_is_held(monkeypatch):
    monkeypatch.setattr("gateway.apis.responses.events.MAX_TEXT", 1000)
    writer = translation(top_logprobs=1).events()
    told = {"logprobs": {"content": [{"token": "x", "logprob": -1.0, "top_logprobs": []}]}}
    with pytest.raises(BackendFailed):
        for _ in range(6):
            writer.chunk(chunk({"content": "x"}, **told))
