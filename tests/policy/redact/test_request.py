"""Every string of every wire model has a redaction position, endpoints that are not served yet included."""

import json
import types
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import pytest
from pydantic import BaseModel

from backend.wire import ChatCompletionRequest, CompletionRequest, EmbeddingsRequest
from policy.errors import RedactionBlocked
from policy.redact.actions.plan import LABELS, RedactionPlan
from policy.redact.redactor import Redactor
from policy.redact.request import rewrite_batch_line
from tests.policy.redact.layouts import BY_URL, LAYOUTS

MAIL = "alice@example.org"
REDACTOR = Redactor(RedactionPlan(dict.fromkeys(LABELS, "mask")))
EXEMPT = {"model"}  # matched against a list before


def strings(model: type[BaseModel], path: tuple[str | int, ...] = ()) -> Any:
    """The path of every string that a body of `model` may hold; 0 stands for a list's item."""
    for name, field in model.model_fields.items():
        yield from _strings(field.annotation, (*path, name))


def _strings(annotation: Any, path: tuple[str | int, ...]) -> Any:
    origin = get_origin(annotation)
    if annotation is str or annotation is Any:  # any JSON: a string is one
        yield path
    elif isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield from strings(annotation, path)
    elif origin is Annotated:
        yield from _strings(get_args(annotation)[0], path)
    elif origin in (Union, types.UnionType):
        for each in get_args(annotation):
            yield from _strings(each, path)
    elif origin is list:
        yield from _strings(get_args(annotation)[0], (*path, 0))
    elif origin is dict:
        yield from _strings(get_args(annotation)[1], (*path, "key"))
    else:
        assert origin is Literal or annotation in (int, float, bool, type(None)), (
            annotation
        )  # who adds a type, adds it here


def body_with(path: tuple[str | int, ...], base: dict[str, Any]) -> dict[str, Any]:
    value: Any = MAIL
    for part in reversed(path[1:]):
        value = [value] if part == 0 else {"type": "text", part: value} if part == "text" else {part: value}
    return {**base, str(path[0]): value}


BASES = {
    "chat": {"model": "m", "messages": []}, "completions": {"model": "m", "prompt": "x"},
    "embeddings": {"model": "m", "input": "x"},
}  # fmt: skip
PATHS = [
    *(("chat", path) for path in strings(ChatCompletionRequest) if path[0] not in EXEMPT),
    *(("completions", path) for path in strings(CompletionRequest) if path[0] not in EXEMPT),
    *(("embeddings", path) for path in strings(EmbeddingsRequest) if path[0] not in EXEMPT),
]


def test_the_walk_finds_what_is_there():
    chat = [path for endpoint, path in PATHS if endpoint == "chat"]
    assert {("messages", 0, "content"), ("messages", 0, "content", 0, "text"), ("stop", 0), ("user",)} <= set(chat)
    assert ("messages", 0, "tool_calls", 0, "function", "arguments") in chat


@pytest.mark.parametrize(("endpoint", "path"), PATHS)
def test_no_string_of_the_wire_models_leaves_as_it_came(endpoint, path):
    body = body_with(path, BASES[endpoint])
    try:
        sent = json.dumps(REDACTOR.redact_body(body, LAYOUTS[endpoint], "k7f3").body)
    except RedactionBlocked:
        return  # a part of unknown type: nothing leaves
    assert "alice" not in sent and "[EMAIL]" in sent


CALL = {
    "role": "assistant",
    "content": None,
    "tool_calls": [{"id": "t", "type": "custom", "custom": {"name": "s", "input": MAIL}}],
}
NEWER = {
    "prediction": {"type": "content", "content": MAIL},
    "prediction of parts": {"type": "content", "content": [{"type": "text", "text": MAIL}]},
    "web_search_options": {"user_location": {"type": "approximate", "approximate": {"city": MAIL}}},
    "reasoning": {"effort": "low", "summary": MAIL},
    "audio": {"voice": MAIL, "format": "wav"},
    "modalities": ["text", MAIL],
    "store": MAIL,
    "metadata": {"ticket": MAIL},
    "safety_identifier": MAIL,
    "prompt_cache_key": MAIL,
    "verbosity": MAIL,
    "service_tier": MAIL,
    "tools": [{"type": "custom", "custom": {"name": "f", "description": MAIL, "format": {
        "type": "grammar", "grammar": {"syntax": "lark", "definition": f'start: "{MAIL}"'}}}}],
    "tool_choice": {"type": "allowed_tools", "allowed_tools": {"tools": [{"function": {"name": MAIL}}]}},
    "messages": [CALL],
    "messages with a refusal": [{"role": "assistant", "content": [{"type": "refusal", "refusal": MAIL}]}],
    "chat_template_kwargs": {"system": MAIL},
    "a_field_of_next_year": [{"deep": [MAIL]}],
}  # fmt: skip


@pytest.mark.parametrize(("name", "value"), NEWER.items(), ids=NEWER)
def test_every_string_of_newer_fields_is_redacted(name, value):
    body = {**BASES["chat"], name.split(" ")[0]: value}
    sent = json.dumps(REDACTOR.redact_body(body, LAYOUTS["chat"], "k7f3").body)
    assert "alice" not in sent and "[EMAIL]" in sent


@pytest.mark.parametrize("part", [
    {"type": "input_audio", "input_audio": {"data": "UklGRg==", "format": "wav"}},
    {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}},
    {"type": "video_url", "video_url": {"url": "data:video/mp4;base64,AAAA"}},
    {"type": "audio_url", "audio_url": {"url": "data:audio/wav;base64,AAAA"}},
    {"type": "file", "file": {"file_data": "AAAA", "filename": "x.pdf"}},
    {"type": "something_new", "text": "x"},
])  # fmt: skip
@pytest.mark.parametrize("place", ["messages", "prediction"])
def test_a_part_that_nobody_can_read_is_refused_by_name_wherever_it_stands(part, place):
    holder = {"role": "user", "content": [part]} if place == "messages" else {"type": "content", "content": [part]}
    body = {**BASES["chat"], place: [holder] if place == "messages" else holder}
    with pytest.raises(RedactionBlocked) as refused:
        REDACTOR.redact_body(body, LAYOUTS["chat"], "k7f3")
    assert refused.value.findings[0].position.startswith(place)


@pytest.mark.parametrize("name", ["file", "image_url", "file_id", "input_ids"])
def test_a_tool_may_have_a_parameter_that_is_called_like_a_file_and_its_strings_are_read(name):
    schema = {
        "type": "object",
        "properties": {
            "edits": {
                "type": "array",
                "items": {"type": "object", "properties": {name: {"type": "string", "description": MAIL}}},
            }
        },
    }
    tool = {"type": "function", "function": {"name": "f", "parameters": schema}}
    form = {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}}
    for more in ({"tools": [tool]}, {"response_format": form}):
        sent = json.dumps(REDACTOR.redact_body({**BASES["chat"], **more}, LAYOUTS["chat"], "k7f3").body)
        assert f'"{name}"' in sent and "alice" not in sent and "[EMAIL]" in sent


@pytest.mark.parametrize("more", [
    {"tools": [{"type": "function", "function": {"name": "f", "parameters": {"properties": {"file": "AAAA"}}}}]},
    {"tools": [{"type": "function", "function": {"name": "f", "file": {"file_data": "AAAA"}}}]},
    {"tools": [{"type": "function", "file": {"properties": {}}}]},
    {"metadata": {"properties": {"file": {"file_data": "AAAA"}}}},
    {"messages": [{"role": "user", "content": "x", "properties": {"file": {"file_data": "AAAA"}}}]},
    {"properties": {"file": {"file_data": "AAAA"}}},
])  # fmt: skip
def test_a_file_is_refused_wherever_it_is_no_declared_parameter(more):
    with pytest.raises(RedactionBlocked):
        REDACTOR.redact_body({**BASES["chat"], **more}, LAYOUTS["chat"], "k7f3")


@pytest.mark.parametrize("number", [4111111111111111, 4111111111111111.0, 4.111111111111111e15])
def test_a_number_that_is_a_card_is_found_under_any_name_that_is_no_parameter(number):
    for body in ({"my_card": number}, {"metadata": {"card": number}}, {"extra": [[number]]}):
        sent = json.dumps(REDACTOR.redact_body({**BASES["chat"], **body}, LAYOUTS["chat"], "k7f3").body)
        assert "[CARD]" in sent and "4111111111" not in sent


def test_numbers_that_are_parameters_stay_numbers():
    body = {
        **BASES["chat"],
        "seed": 4111111111111111,
        "temperature": 0.5,
        "max_tokens": 4096,
        "min_p": 0.05,
        "best_of": 2,
    }
    assert REDACTOR.redact_body(body, LAYOUTS["chat"], "k7f3").body == body


MESSAGE = {"role": "user", "content": [{"type": "input_text", "text": MAIL}]}
OTHERS = {
    "embeddings input": ("embeddings", {"input": MAIL}),
    "embeddings inputs": ("embeddings", {"input": ["x", MAIL]}),
    "responses text": ("responses", {"input": MAIL}),
    "responses instructions": ("responses", {"input": "x", "instructions": MAIL}),
    "responses message": ("responses", {"input": [MESSAGE]}),
    "responses text message": ("responses", {"input": [{"role": "user", "content": MAIL}]}),
    "responses call": ("responses", {"input": [
        {"type": "function_call", "call_id": "c", "name": "f", "arguments": json.dumps({"to": MAIL})}]}),
    "responses result": ("responses", {"input": [
        {"type": "function_call_output", "call_id": "c", "output": '{"mail": "alice\\u0040example.org"}'}]}),
    "responses result of parts": ("responses", {"input": [
        {"type": "function_call_output", "call_id": "c", "output": [{"type": "input_text", "text": MAIL}]}]}),
    "responses reasoning": ("responses", {"input": [
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": MAIL}]}]}),
    "responses tool": ("responses", {"input": "x", "tools": [{"type": "function", "name": "f", "description": MAIL}]}),
    "responses format": ("responses", {"input": "x", "text": {"format": {"schema": {"description": MAIL}}}}),
}  # fmt: skip


@pytest.mark.parametrize(("endpoint", "fields"), OTHERS.values(), ids=OTHERS)
def test_the_shapes_of_the_other_endpoints_are_searched_too(endpoint, fields):
    sent = json.dumps(REDACTOR.redact_body({"model": "m", **fields}, LAYOUTS[endpoint], "k7f3").body)
    assert "alice" not in sent and "[EMAIL]" in sent


@pytest.mark.parametrize(("endpoint", "fields"), [
    ("embeddings", {"input": [1, 2, 3]}),
    ("responses", {"input": [{"type": "computer_call_output", "output": {"image_url": "data:..."}}]}),
    ("responses", {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]}),
    ("responses", {"input": [{"type": "reasoning", "encrypted_content": "gAAAA"}]}),
    ("responses", {"input": [{"role": "user", "content": [{"type": "something_new", "text": "x"}]}]}),
    ("chat", {"messages": [{"role": "user", "content": [{"type": "something_new", "text": "x"}]}]}),
    ("chat", {"messages": [], "multi_modal_data": {"image": "AAAA"}}),  # vLLM
    ("chat", {"messages": [], "image_data": ["AAAA"]}),  # SGLang
])  # fmt: skip
def test_what_nobody_can_read_is_refused(endpoint, fields):
    with pytest.raises(RedactionBlocked):
        REDACTOR.redact_body({"model": "m", **fields}, LAYOUTS[endpoint], "k7f3")


def _masked(text: str, position: str, *, escaped: bool = False) -> str:
    return text.replace(MAIL, "[EMAIL]")


@pytest.mark.parametrize(("url", "body"), [
    ("/v1/chat/completions", {"model": "m", "messages": [{"role": "user", "content": MAIL}]}),
    ("/v1/completions", {"model": "m", "prompt": [MAIL]}),
    ("/v1/embeddings", {"model": "m", "input": MAIL}),
    ("/v1/responses", {"model": "m", "input": [MESSAGE]}),
])  # fmt: skip
def test_a_batch_line_is_read_by_its_url_and_its_own_id_too(url, body):
    sent = rewrite_batch_line({"custom_id": MAIL, "method": "POST", "url": url, "body": body}, BY_URL, _masked)
    assert "alice" not in json.dumps(sent) and sent["url"] == url and sent["custom_id"] == "[EMAIL]"


@pytest.mark.parametrize(
    "line", [{"url": "/v1/images", "body": {}}, {"body": {}}, {"url": "/v1/completions", "body": "x"}]
)
def test_a_batch_line_for_anything_else_is_refused(line):
    with pytest.raises(RedactionBlocked):
        rewrite_batch_line(line, BY_URL, _masked)
