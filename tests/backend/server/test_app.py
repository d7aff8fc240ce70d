"""A real backend on loopback, asked over HTTP. The model is tiny and random; what it says does not matter here."""

import asyncio
import io
import json
import re
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.backend.running import Backend

USER = [{"role": "user", "content": "the rain in the sea"}]
MODEL = "tiny"


@pytest.fixture(scope="module")
def backend(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Backend]:
    log = tmp_path_factory.mktemp("server") / "log"
    options = ["--model", str(folder), "--served-name", MODEL, "--max-num-seqs", "8", "--max-waiting", "8"]
    with Backend(log, *options, "--tenant", "acme", "--max-model-len", "2048", "--kv-blocks", "600") as running:
        yield running


@pytest.fixture
async def http(backend: Backend) -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(backend.url) as session:
        yield session


async def chat(http: aiohttp.ClientSession, **body: Any) -> tuple[int, dict[str, Any]]:
    body = {"model": MODEL, "messages": USER, "temperature": 0, "max_tokens": 8, **body}
    async with http.post("/v1/chat/completions", json=body) as answer:
        return answer.status, await answer.json()


async def stream(http: aiohttp.ClientSession, path: str = "/v1/chat/completions", **body: Any) -> list[str]:
    """The data of every event."""
    body = {"model": MODEL, "stream": True, "temperature": 0, "max_tokens": 8, **body}
    if "prompt" not in body:
        body.setdefault("messages", USER)
    async with http.post(path, json=body) as answer:
        text = await answer.text()
        assert answer.status == 200, text
        assert answer.content_type == "text/event-stream"
    events = text.split("\n\n")
    assert events.pop() == ""
    assert all(event.startswith("data: ") and "\n" not in event for event in events)
    return [event.removeprefix("data: ") for event in events]


async def metric(http: aiohttp.ClientSession, name: str) -> float:
    async with http.get("/metrics") as answer:
        (value,) = re.findall(rf"^{re.escape(name)}(?:{{[^}}]*}})? (\S+)$", await answer.text(), re.MULTILINE)
    return float(value)


async def until_idle(http: aiohttp.ClientSession, within: float = 2.0) -> None:
    deadline = time.monotonic() + within
    while await metric(http, "domicile_backend_kv_blocks_used") > 0:
        assert time.monotonic() < deadline, "the engine still holds blocks"
        await asyncio.sleep(0.02)


async def test_it_is_alive_and_ready(http: aiohttp.ClientSession) -> None:
    for path in ("/healthz", "/readyz"):
        async with http.get(path) as answer:
            assert answer.status == 200


async def test_it_lists_its_one_model(http: aiohttp.ClientSession) -> None:
    async with http.get("/v1/models") as answer:
        (model,) = (await answer.json())["data"]
    assert (model["id"], model["object"], model["owned_by"]) == (MODEL, "model", "acme")


async def test_a_chat_is_answered_with_usage(http: aiohttp.ClientSession) -> None:
    status, body = await chat(http)
    assert status == 200
    assert body["object"] == "chat.completion"
    assert body["id"].startswith("chatcmpl-")
    (choice,) = body["choices"]
    assert choice["message"]["role"] == "assistant"
    assert choice["finish_reason"] == "length"
    assert body["usage"]["completion_tokens"] == 8
    assert body["usage"]["total_tokens"] == body["usage"]["prompt_tokens"] + 8


async def test_a_stream_says_the_same_as_the_whole_answer(http: aiohttp.ClientSession) -> None:
    for seed in range(6):
        options = {"max_tokens": 60, "temperature": 1.5, "seed": seed}
        _, whole = await chat(http, **options)
        events = await stream(http, stream_options={"include_usage": True}, **options)
        assert events.pop() == "[DONE]"
        chunks = [json.loads(e) for e in events]
        assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
        text = "".join(c["choices"][0]["delta"].get("content", "") for c in chunks[:-1])
        assert text == whole["choices"][0]["message"]["content"]
        assert "\ufffd" not in text
        assert chunks[-2]["choices"][0]["finish_reason"] == whole["choices"][0]["finish_reason"]
        assert chunks[-1]["choices"] == []
        assert chunks[-1]["usage"]["completion_tokens"] == whole["usage"]["completion_tokens"]
        assert all(c["usage"] is None for c in chunks[:-1])
        assert len({c["id"] for c in chunks}) == 1


async def test_usage_is_not_streamed_unless_asked_for(http: aiohttp.ClientSession) -> None:
    events = await stream(http)
    assert events.pop() == "[DONE]"
    assert all(json.loads(e)["choices"] and "usage" not in json.loads(e) for e in events)


async def test_a_completion_is_streamed_too(http: aiohttp.ClientSession) -> None:
    async with http.post(
        "/v1/completions", json={"model": MODEL, "prompt": "the sea", "temperature": 0, "max_tokens": 8}
    ) as answer:
        whole = await answer.json()
    events = await stream(http, "/v1/completions", prompt="the sea")
    assert events.pop() == "[DONE]"
    assert "".join(json.loads(e)["choices"][0]["text"] for e in events) == whole["choices"][0]["text"]
    assert whole["object"] == json.loads(events[0])["object"] == "text_completion"


async def test_prompts_in_all_four_shapes(http: aiohttp.ClientSession) -> None:
    async def texts(prompt: Any) -> list[str]:
        body = {"model": MODEL, "prompt": prompt, "temperature": 0, "max_tokens": 6}
        async with http.post("/v1/completions", json=body) as answer:
            assert answer.status == 200, await answer.text()
            choices = (await answer.json())["choices"]
        assert [c["index"] for c in choices] == list(range(len(choices)))
        return [c["text"] for c in choices]

    one, two = [5, 6, 7, 8], [9, 10]
    assert await texts([one, two]) == [(await texts(one))[0], (await texts(two))[0]]
    assert await texts(["the sea", "the hill"]) == [(await texts("the sea"))[0], (await texts("the hill"))[0]]


async def test_several_choices_differ_and_repeat_with_their_seed(http: aiohttp.ClientSession) -> None:
    async def texts(**changes: Any) -> list[str]:
        status, body = await chat(http, n=3, temperature=1.0, seed=4, ignore_eos=True, **changes)
        assert status == 200
        assert body["usage"]["completion_tokens"] == 24
        return [c["message"]["content"] for c in body["choices"]]

    first = await texts()
    assert len(set(first)) == 3
    assert await texts() == first
    events = await stream(http, n=3, temperature=1.0, seed=4, ignore_eos=True)
    parts: dict[int, str] = {0: "", 1: "", 2: ""}
    for event in events[:-1]:
        (choice,) = json.loads(event)["choices"]
        parts[choice["index"]] += choice["delta"].get("content", "")
    assert [parts[i] for i in range(3)] == first


async def test_without_a_seed_answers_differ(http: aiohttp.ClientSession) -> None:
    texts = {(await chat(http, temperature=1.5))[1]["choices"][0]["message"]["content"] for _ in range(3)}
    assert len(texts) == 3


async def test_a_repeated_prompt_is_found_in_the_cache(http: aiohttp.ClientSession) -> None:
    messages = [{"role": "user", "content": "the wind on the hill " * 20}]
    _, first = await chat(http, messages=messages)
    _, second = await chat(http, messages=messages)
    assert first["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    cached = second["usage"]["prompt_tokens_details"]["cached_tokens"]
    assert second["usage"]["prompt_tokens"] > cached >= second["usage"]["prompt_tokens"] - 17
    assert first["choices"] == second["choices"]
    _, other = await chat(http, messages=messages, cache_salt="another project")
    assert other["usage"]["prompt_tokens_details"]["cached_tokens"] == 0


async def test_projects_share_no_block_whatever_salt_a_body_brings(http: aiohttp.ClientSession) -> None:
    body = {"model": MODEL, "messages": [{"role": "user", "content": "the oak by the mill " * 20}], "max_tokens": 1}

    async def cached(project: str, salt: str | None) -> int:
        sent, headers = {**body, "cache_salt": salt}, {"x-domicile-project": project} if project else {}
        async with http.post("/v1/chat/completions", json=sent, headers=headers) as answer:
            found: int = (await answer.json())["usage"]["prompt_tokens_details"]["cached_tokens"]
            return found

    callers = [(project, salt) for project in ("one", "two", "") for salt in (None, "one", "two", "one:")]
    assert [await cached(*caller) for caller in callers] == [0] * len(callers)
    assert all([await cached(*caller) for caller in callers])  # each finds what it left itself


async def test_a_stop_string_ends_the_answer_before_it_in_both_modes(http: aiohttp.ClientSession) -> None:
    options = {"max_tokens": 40, "temperature": 1.0, "seed": 8}
    _, body = await chat(http, **options)
    text = body["choices"][0]["message"]["content"]
    stop = text[10:13]
    expected = text[: text.index(stop)]
    _, body = await chat(http, stop=[stop, "never there"], **options)
    assert body["choices"][0] == {**body["choices"][0], "finish_reason": "stop"}
    assert body["choices"][0]["message"]["content"] == expected
    assert body["usage"]["completion_tokens"] < 40
    events = [json.loads(e) for e in (await stream(http, stop=stop, **options))[:-1]]
    assert "".join(e["choices"][0]["delta"].get("content", "") for e in events) == expected
    assert events[-1]["choices"][0]["finish_reason"] == "stop"
    await until_idle(http)


async def test_the_request_id_is_kept_in_the_answers_id(http: aiohttp.ClientSession) -> None:
    body = {"model": MODEL, "messages": USER, "max_tokens": 1}
    async with http.post("/v1/chat/completions", json=body, headers={"x-request-id": "abc-123"}) as answer:
        assert (await answer.json())["id"] == "chatcmpl-abc-123"
        assert answer.headers["x-request-id"] == "abc-123"
    async with http.post("/v1/chat/completions", json=body, headers={"x-request-id": 'x"{}'}) as answer:
        assert re.fullmatch("chatcmpl-[0-9a-f]{32}", (await answer.json())["id"])


async def test_max_tokens_beyond_the_context_is_lowered_to_what_is_left(http: aiohttp.ClientSession) -> None:
    body = {"model": MODEL, "prompt": [5] * 2040, "max_tokens": 10_000, "ignore_eos": True}
    async with http.post("/v1/completions", json=body) as answer:
        result = await answer.json()
    assert result["usage"]["completion_tokens"] == 8
    assert result["choices"][0]["finish_reason"] == "length"


BAD_REQUESTS: dict[str, tuple[dict[str, Any], int, str | None, str | None]] = {
    "a top_k beyond 32 bits": ({"top_k": 10**29}, 400, "top_k", None),
    "a prompt that fills the context": ({"prompt": [5] * 2048}, 400, "prompt", "context_length_exceeded"),
    "another model": ({"prompt": "x", "model": "gpt-4o"}, 404, "model", "model_not_found"),
    "no prompt": ({}, 400, "prompt", None),
    "an empty prompt": ({"prompt": ""}, 400, "prompt", None),
    "an empty list": ({"prompt": []}, 400, "prompt", None),
    "an empty prompt among others": ({"prompt": ["x", ""]}, 400, "prompt", None),
    "a token outside the vocabulary": ({"prompt": [5, 320]}, 400, "prompt", None),
    "a negative token": ({"prompt": [-1]}, 400, "prompt", None),
    "a temperature out of range": ({"prompt": "x", "temperature": 2.5}, 400, "temperature", None),
    "a temperature that is a word": ({"prompt": "x", "temperature": "hot"}, 400, "temperature", None),
    "no tokens wanted": ({"prompt": "x", "max_tokens": 0}, 400, "max_tokens", None),
    "an empty stop string": ({"prompt": "x", "stop": ["a", ""]}, 400, "stop", None),
    "too many choices": ({"prompt": "x", "n": 100}, 400, "n", None),
    "more likeliest tokens than are told": ({"prompt": "x", "logprobs": 21}, 400, "logprobs", None),
    "fewer made than given": ({"prompt": "x", "n": 3, "best_of": 2}, 400, "best_of", None),
    "a penalty out of range": ({"prompt": "x", "frequency_penalty": 2.5}, 400, "frequency_penalty", None),
    "a repetition penalty of nought": ({"prompt": "x", "repetition_penalty": 0}, 400, "repetition_penalty", None),
    "a bias for a word": ({"prompt": "x", "logit_bias": {"the": 1}}, 400, "logit_bias", None),
    "a bias for no token": ({"prompt": "x", "logit_bias": {"320": 1}}, 400, "logit_bias", None),
    "a bias out of range": ({"prompt": "x", "logit_bias": {"5": 101}}, 400, "logit_bias", None),
    "a stop token that is none": ({"prompt": "x", "stop_token_ids": [-1]}, 400, "stop_token_ids", None),
    "no time": ({"prompt": "x", "deadline_s": 0}, 400, "deadline_s", None),
    "an unknown form": ({"prompt": "x", "response_format": {"type": "xml"}}, 400, "response_format.type", None),
    "a form without a schema": (
        {"prompt": "x", "response_format": {"type": "json_schema", "json_schema": {"name": "a"}}},
        400,
        "response_format.json_schema.schema",
        None,
    ),
    "two forms": ({"prompt": "x", "guided_regex": "a", "guided_choice": ["b"]}, 400, "guided_choice", None),
    "a regex that is none": ({"prompt": "x", "guided_regex": "(a"}, 400, "guided_regex", None),
    "a grammar that is none": ({"prompt": "x", "guided_grammar": "start ="}, 400, "guided_grammar", None),
    "no choices": ({"prompt": "x", "guided_choice": []}, 400, "guided_choice", None),
    "tools": ({"prompt": "x", "tools": [{"type": "function"}]}, 400, "tools", "unsupported_parameter"),
    "something unheard of": ({"prompt": "x", "tempreature": 0}, 400, "tempreature", "unknown_parameter"),
    "stop tokens that are words": ({"prompt": "x", "stop_token_ids": ["a"]}, 400, "stop_token_ids[0]", None),
    "a priority that is a word": ({"prompt": "x", "priority": "high"}, 400, "priority", None),
}


@pytest.mark.parametrize("name", BAD_REQUESTS)
@pytest.mark.parametrize("streamed", [False, True])
async def test_a_bad_request_is_told_what_is_wrong_with_it(
    http: aiohttp.ClientSession, name: str, streamed: bool
) -> None:
    body, status, param, code = BAD_REQUESTS[name]
    async with http.post("/v1/completions", json={"model": MODEL, "stream": streamed, **body}) as answer:
        error = (await answer.json())["error"]
        assert (answer.status, error["param"], error["code"]) == (status, param, code)
        assert error["message"]
        assert error["type"] == "invalid_request_error"


NEUTRAL = {
    "frequency_penalty": 0,
    "presence_penalty": 0.0,
    "repetition_penalty": 1,
    "logprobs": False,
    "top_logprobs": 0,
    "min_tokens": 0,
    "include_stop_str_in_output": False,
    "structured_outputs": {},
    "logit_bias": {},
    "response_format": {"type": "text"},
    "tools": [],
    "tool_choice": "none",
    "user": "u",
    "metadata": {"a": "b"},
    "store": False,
    "min_p": 0.0,
    "top_k": -1,
    "seed": None,
    "stop": None,
}


async def test_neutral_values_of_unsupported_parameters_are_welcome(http: aiohttp.ClientSession) -> None:
    plain = (await chat(http))[1]["choices"]
    status, body = await chat(http, **NEUTRAL)
    assert status == 200, body
    assert body["choices"] == plain


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"[]", b"null", b'"x"', b'{"model": "tiny", "prompt": "\xff\xfe"}', b'{"prompt": "\\ud800"}', b"\x00"],
)
async def test_a_body_that_is_not_a_json_object_of_utf8_is_refused(http: aiohttp.ClientSession, body: bytes) -> None:
    async with http.post("/v1/completions", data=body) as answer:
        assert answer.status == 400
        assert (await answer.json())["error"]["type"] == "invalid_request_error"


async def test_a_body_of_ten_megabytes_is_refused(http: aiohttp.ClientSession) -> None:
    body = io.BytesIO(json.dumps({"model": MODEL, "prompt": "x" * 10_000_000}).encode())
    async with http.post("/v1/completions", data=body) as answer:
        assert answer.status == 413
        assert (await answer.json())["error"]["code"] == "request_too_large"


async def test_a_long_text_is_counted_and_refused(http: aiohttp.ClientSession) -> None:
    status, body = await chat(http, messages=[{"role": "user", "content": "the sea " * 40_000}])
    assert status == 400
    assert body["error"]["code"] == "context_length_exceeded"
    assert "2048" in body["error"]["message"]


async def test_more_messages_than_the_context_has_tokens_are_refused_before_they_are_rendered(
    http: aiohttp.ClientSession,
) -> None:
    status, body = await chat(http, messages=[{"role": "user", "content": ""}] * 2049)
    assert (status, body["error"]["code"], body["error"]["param"]) == (400, "context_length_exceeded", "messages")
    assert "2049 messages" in body["error"]["message"]


async def test_an_image_is_refused_by_its_place(http: aiohttp.ClientSession) -> None:
    parts = [{"type": "text", "text": "what is"}, {"type": "image_url", "image_url": {"url": "data:,x"}}]
    status, body = await chat(http, messages=[*USER, {"role": "user", "content": parts}])
    assert (status, body["error"]["param"]) == (400, "messages[1].content[1].type")


async def test_a_wrong_type_deep_in_a_message_is_named_by_its_place(http: aiohttp.ClientSession) -> None:
    status, body = await chat(http, messages=[{"role": "user", "content": "x"}, {"role": 5, "content": "x"}])
    assert (status, body["error"]["param"]) == (400, "messages[1].role")


async def test_unknown_paths_and_methods_get_openai_errors(http: aiohttp.ClientSession) -> None:
    async with http.get("/v1/nothing") as answer:
        assert (answer.status, (await answer.json())["error"]["type"]) == (404, "invalid_request_error")
    async with http.get("/v1/completions") as answer:
        assert (answer.status, (await answer.json())["error"]["type"]) == (405, "invalid_request_error")


LONG = {"model": MODEL, "prompt": "the sea", "max_tokens": 1900, "ignore_eos": True, "temperature": 0}


async def test_a_client_that_leaves_a_stream_stops_its_sequence(http: aiohttp.ClientSession) -> None:
    await until_idle(http)
    answer = await http.post("/v1/completions", json={**LONG, "stream": True})
    await answer.content.readline()
    assert await metric(http, "domicile_backend_sequences_running") == 1
    answer.close()
    await until_idle(http)


async def test_a_client_that_leaves_before_the_whole_answer_stops_its_sequence(http: aiohttp.ClientSession) -> None:
    await until_idle(http)
    with pytest.raises(asyncio.TimeoutError):
        await asyncio.wait_for(http.post("/v1/completions", json=LONG), 0.3)
    await until_idle(http)


async def test_a_client_that_leaves_while_waiting_in_the_queue_is_forgotten(http: aiohttp.ClientSession) -> None:
    await until_idle(http)
    running = await http.post("/v1/completions", json={**LONG, "n": 8, "stream": True})
    await running.content.readline()
    waiting = asyncio.create_task(http.post("/v1/completions", json={**LONG, "stream": True}))
    while await metric(http, "domicile_backend_sequences_waiting") != 1:
        await asyncio.sleep(0.01)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    while await metric(http, "domicile_backend_sequences_waiting") != 0:
        await asyncio.sleep(0.01)
    running.close()
    await until_idle(http)


async def test_a_full_queue_is_answered_with_retry_after_and_empties(http: aiohttp.ClientSession) -> None:
    await until_idle(http)
    streams = [await http.post("/v1/completions", json={**LONG, "n": 8, "stream": True})]
    streams.append(asyncio.create_task(http.post("/v1/completions", json={**LONG, "n": 8, "stream": True})))
    while await metric(http, "domicile_backend_sequences_waiting") != 8:
        await asyncio.sleep(0.01)
    async with http.post("/v1/completions", json=LONG) as answer:
        assert answer.status == 503
        assert answer.headers["retry-after"] == "1"
        assert (await answer.json())["error"]["code"] == "engine_overloaded"
    streams[0].close()
    (await streams[1]).close()
    await until_idle(http)
    assert (await chat(http))[0] == 200


async def test_requests_join_and_leave_a_running_batch_unharmed(http: aiohttp.ClientSession) -> None:
    alone = [(await chat(http, max_tokens=m, messages=[{"role": "user", "content": "x" * m}]))[1] for m in range(4, 20)]
    together = await asyncio.gather(
        *(chat(http, max_tokens=m, messages=[{"role": "user", "content": "x" * m}]) for m in range(4, 20))
    )
    assert [b["choices"] for _, b in together] == [a["choices"] for a in alone]


async def test_metrics_count_what_happened(http: aiohttp.ClientSession) -> None:
    before = await metric(http, "gen_ai_server_time_to_first_token_seconds_count")
    _, body = await chat(http)
    assert await metric(http, "gen_ai_server_time_to_first_token_seconds_count") == before + 1
    names = "domicile_backend_queue_time_seconds", "gen_ai_server_time_to_first_token_seconds"
    waited, first = [[await metric(http, f"{name}_{what}") for what in ("count", "sum")] for name in names]
    assert waited[0] == first[0]
    assert 0 < waited[1] < first[1]
    async with http.get("/metrics") as answer:
        text = await answer.text()
    assert 'domicile_backend_requests_total{gen_ai_request_model="tiny",outcome="aborted"}' in text
    assert body["usage"]["prompt_tokens"] > 0


async def test_no_log_line_holds_a_word_of_any_prompt(http: aiohttp.ClientSession, backend: Backend) -> None:
    marker = "Zx9QmarkerQ9xZ"
    await chat(http, messages=[{"role": "user", "content": marker}])
    await chat(http, messages=[{"role": marker, "content": marker}], stop=marker, user=marker)
    await chat(http, temperature=marker, n=marker)
    async with http.post("/v1/completions", data=f'{{"{marker}": {marker}'.encode()) as answer:
        assert marker not in await answer.text()
    async with http.get("/metrics") as answer:
        assert marker not in await answer.text()
    assert marker not in backend.log
    assert "Traceback" not in backend.log


async def test_the_openai_sdk_runs_unchanged(backend: Backend) -> None:
    import openai

    async with openai.AsyncOpenAI(base_url=f"{backend.url}/v1", api_key="none", max_retries=0) as sdk:
        messages: Any = USER
        whole = await sdk.chat.completions.create(model=MODEL, messages=messages, max_tokens=8, temperature=0)
        text = ""
        usage = None
        chunks = await sdk.chat.completions.create(
            model=MODEL,
            messages=messages,
            max_tokens=8,
            temperature=0,
            stream=True,
            stream_options={"include_usage": True},
        )
        async for chunk in chunks:
            text += (chunk.choices[0].delta.content or "") if chunk.choices else ""
            usage = chunk.usage or usage
        assert text == whole.choices[0].message.content
        assert usage == whole.usage or (usage and whole.usage and usage.total_tokens == whole.usage.total_tokens)
        with pytest.raises(openai.NotFoundError):
            await sdk.chat.completions.create(model="other", messages=messages)
        with pytest.raises(openai.BadRequestError) as refused:
            await sdk.chat.completions.create(model=MODEL, messages=messages, top_logprobs=3)
        assert refused.value.param == "top_logprobs"
        told = await sdk.chat.completions.create(
            model=MODEL, messages=messages, max_tokens=4, temperature=0, logprobs=True, top_logprobs=2
        )
        assert told.choices[0].logprobs is not None and told.choices[0].logprobs.content is not None
        assert len(told.choices[0].logprobs.content) == 4
        assert (await sdk.models.list()).data[0].id == MODEL
