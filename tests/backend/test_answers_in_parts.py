"""Stop strings, forms and thoughts together; what a caller may name and what is refused by name."""

import json
from pathlib import Path
from typing import Any

import pytest

from backend.models.checkpoints.generation_config import SamplingDefaults
from backend.tools.formats import FORMATS
from backend.tools.parts import Content
from backend.tools.script import SPACE
from tests.backend.scripted import Scripted, refused, request

NOW = {"type": "function", "function": {"name": "now", "parameters": {"type": "object", "properties": {}}}}


async def test_a_stop_string_inside_thoughts_does_not_end_the_answer(tmp_path: Path) -> None:
    backend = Scripted(tmp_path, "r1")
    backend.engine.says("What is popular?\n</think>\n\nThe most popular one.")
    message = await backend.chat(stop=["popular"])
    assert (message["reasoning_content"], message["content"]) == ("What is popular?", "The most ")
    assert message["reasoning"] == message["reasoning_content"]
    assert message["finish_reason"] == "stop"


async def test_a_stop_string_inside_a_calls_arguments_does_not_end_it(tmp_path: Path) -> None:
    backend = Scripted(tmp_path, "hermes")
    backend.engine.says('Yes.<tool_call>\n{"name": "now", "arguments": {"zone": "Paris"}}\n</tool_call>')
    message = await backend.chat(stop=["Paris"], tools=[NOW])
    assert message["tool_calls"][0]["function"]["arguments"] == '{"zone": "Paris"}'


async def test_streamed_and_whole_answers_stop_at_the_same_place(tmp_path: Path) -> None:
    backend = Scripted(tmp_path, "qwen3")
    backend.engine.says("<think>\na b\n</think>\n\none two three four")
    whole = await backend.chat(stop=["three"])
    streamed = await backend.stream(stop=["three"])
    assert (whole["content"], whole["reasoning_content"]) == ("one two ", "a b")
    assert (streamed["content"], streamed["reasoning_content"]) == ("one two ", "a b")


async def test_the_reason_to_stop_names_the_string_or_the_token(tmp_path: Path) -> None:
    backend = Scripted(tmp_path, "plain")
    backend.engine.says("one two three")
    answer = await backend.http.post("/v1/chat/completions", json=request(stop=["two"]))
    assert answer.json()["choices"][0]["stop_reason"] == "two"
    end = min(backend.engine.model.eos_ids)
    answer = await backend.http.post("/v1/chat/completions", json=request(stop_token_ids=[end]))
    assert answer.json()["choices"][0]["stop_reason"] == end
    answer = await backend.http.post("/v1/chat/completions", json=request())
    assert answer.json()["choices"][0]["stop_reason"] is None


@pytest.mark.parametrize("template", ["qwen3", "r1"])
async def test_a_form_holds_at_once_unless_the_answer_begins_a_thought(template: str, tmp_path: Path) -> None:
    backend = Scripted(tmp_path, template)
    await backend.chat(guided_choice=["yes", "no"])
    params = backend.engine.asked[0].params
    names = backend.engine.model.tokenizer.token_to_id
    assert params.grammar_after == names("</think>")
    assert params.thought_token == (names("<think>") if template == "qwen3" else None)


@pytest.mark.parametrize("form", FORMATS.values(), ids=lambda form: form.name)
def test_a_run_of_blanks_is_read_in_linear_time(form: Any) -> None:
    parser = form.parser({"now"})
    parts = [*parser.feed(" " * 300_000 + "x"), *parser.finish()]  # minutes, were each blank to look at all before it
    text = "".join(part.text for part in parts if isinstance(part, Content))
    assert text.strip(SPACE) == "x" and len(text) == 300_001


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"messages": [{"role": "user", "content": "x", "foo": 1}]}, "messages[0].foo"),
        (
            {"messages": [{"role": "assistant", "content": None, "function_call": {"name": "f", "arguments": "{}"}}]},
            "messages[0].function_call",
        ),
        ({"stream": True, "stream_options": {"foo": True}}, "stream_options.foo"),
        ({"stream": True, "stream_options": {"continuous_usage_stats": True}}, "stream_options.continuous_usage_stats"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": {}, "foo": 1}}},
            "response_format.json_schema.foo",
        ),
        ({"temperature": "0.5"}, "temperature"),
        ({"temperature": True}, "temperature"),
        ({"logit_bias": {"5": "1"}}, "logit_bias"),
        ({"guided_json": {"const": 1e309}}, "guided_json"),
        ({"guided_json": '{"minimum": 1e400}'}, "guided_json"),
        ({"guided_json": '{"minimum": NaN}'}, "guided_json"),
        ({"guided_json": {"maximum": 10**310}}, "guided_json"),
        ({"allowed_token_ids": [30], "bad_words": ["?"]}, "allowed_token_ids"),
    ],
    ids=str,
)
async def test_what_would_be_ignored_or_cannot_hold_is_refused_by_name(
    body: dict[str, Any], param: str, tmp_path: Path
) -> None:
    backend = Scripted(tmp_path, "plain")
    if "allowed_token_ids" in body:
        body = {**body, "allowed_token_ids": backend.engine.model.encode_words("?")}

    answer = await backend.http.post(
        "/v1/chat/completions", content=json.dumps(request(**body)), headers={"content-type": "application/json"}
    )
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"] == param


async def test_too_many_stop_strings_are_called_too_many(tmp_path: Path) -> None:
    answer = await Scripted(tmp_path, "plain").http.post("/v1/chat/completions", json=request(stop=["x"] * 17))
    with refused(answer, "stop") as message:
        assert "at most 16 items" in message


async def test_a_prompt_longer_than_any_tokens_are_is_refused_before_it_is_tokenised(tmp_path: Path) -> None:
    backend = Scripted(tmp_path, "plain")
    for messages in ([{"role": "user", "content": "word " * 1_000_000}], [{"role": "user", "content": ""}] * 200_000):
        answer = await backend.http.post("/v1/chat/completions", json=request(messages=messages))
        with refused(answer, "messages") as message:
            assert "maximum context length is 4096 tokens" in message


async def test_sampling_defaults_hold_for_what_a_request_does_not_set(tmp_path: Path) -> None:
    backend = Scripted(tmp_path, "plain")
    backend.api._defaults = SamplingDefaults(temperature=0.01, top_k=1, top_p=0.5, repetition_penalty=1.1)
    await backend.chat()
    asked = backend.engine.asked[0].params
    assert (asked.temperature, asked.top_k, asked.top_p, asked.repetition_penalty) == (0.01, 1, 0.5, 1.1)
    await backend.chat(temperature=1.5, top_k=-1)
    asked = backend.engine.asked[0].params
    assert (asked.temperature, asked.top_k, asked.top_p) == (1.5, 0, 0.5)
