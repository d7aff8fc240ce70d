"""What a request may ask, over the routes of a real backend: streamed and whole say the same."""

import asyncio
import json
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from backend.models.checkpoints.checkpoint import Checkpoint
from tests.backend.asked import USER, Asked, asked

SCHEMA = {
    "type": "object",
    "properties": {"n": {"type": "integer"}, "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 2}},
    "required": ["n", "tags"],
    "additionalProperties": False,
}
SCHEMA_FORMAT = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA, "strict": True}}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def backend(folder: Path) -> AsyncIterator[Asked]:
    async with asked(folder) as one:
        yield one


pytestmark = pytest.mark.asyncio(loop_scope="module")


def joined(chunks: list[dict[str, Any]]) -> dict[int, tuple[str, list[Any], str | None]]:
    """By choice: text, log probabilities, finish reason of a stream."""
    found: dict[int, tuple[str, list[Any], str | None]] = {}
    for chunk in chunks:
        for choice in chunk["choices"]:
            text, entries, reason = found.get(choice["index"], ("", [], None))
            text += choice["delta"].get("content", "") if "delta" in choice else choice["text"]
            told = choice["logprobs"] or {}
            entries = entries + (told.get("content") or told.get("token_logprobs") or [])
            found[choice["index"]] = (text, entries, choice["finish_reason"] or reason)
    return found


CHATS: list[dict[str, Any]] = [
    {},
    {"n": 3, "temperature": 1.0, "seed": 5},
    {"presence_penalty": 1.0, "frequency_penalty": 0.5, "repetition_penalty": 1.2, "max_tokens": 30},
    {"logit_bias": {"70": 5, "71": -100}, "min_p": 0.1, "temperature": 1.0, "seed": 3},
    {"stop": ["e", "th"], "max_tokens": 60, "temperature": 1.5, "seed": 4},
    {"stop": ["e", "th"], "max_tokens": 60, "temperature": 1.5, "seed": 4, "include_stop_str_in_output": True},
    {"stop": ["e"], "max_tokens": 60, "temperature": 1.5, "seed": 4, "min_tokens": 40},
    {"logprobs": True, "top_logprobs": 3, "max_tokens": 40, "temperature": 1.5, "seed": 9},
    {"logprobs": True, "stop": ["e", "th"], "max_tokens": 60, "temperature": 1.5, "seed": 4},
    {"response_format": {"type": "json_object"}, "max_tokens": 60, "temperature": 1.0, "seed": 1},
    {"response_format": SCHEMA_FORMAT, "max_tokens": 120, "temperature": 1.0, "seed": 2, "n": 2},
    {"guided_regex": "[a-f]{3}-[0-9]{2,4}", "max_tokens": 30, "logprobs": True},
    {"guided_choice": ["the sea", "the rain", "wind"], "max_tokens": 30},
    {"max_completion_tokens": 3, "max_tokens": 30},
]


@pytest.mark.parametrize("body", CHATS, ids=str)
async def test_a_stream_says_what_the_whole_answer_says(backend: Asked, body: dict[str, Any]) -> None:
    whole = await backend.chat(**body)
    streamed = joined(await backend.chunks("/v1/chat/completions", messages=USER, **body))
    for choice in whole["choices"]:
        text, entries, reason = streamed[choice["index"]]
        assert text == choice["message"]["content"]
        assert "\ufffd" not in text
        assert reason == choice["finish_reason"]
        assert entries == (choice["logprobs"]["content"] if choice["logprobs"] else [])


COMPLETIONS: list[dict[str, Any]] = [
    {"prompt": ["the sea", "the wind on", "x"], "max_tokens": 20},
    {"prompt": ["the sea", "the wind on"], "n": 2, "temperature": 1.5, "seed": 1, "max_tokens": 20, "logprobs": 2},
    {"prompt": "the rain", "best_of": 3, "n": 3, "temperature": 1.5, "seed": 1, "max_tokens": 20},
    {"prompt": ["the rain", "é🙂"], "echo": True, "logprobs": 1, "n": 2, "temperature": 2.0, "seed": 6},
    {"prompt": "🙂 日本", "echo": True, "stop": ["e", "th"], "temperature": 1.5, "seed": 4, "max_tokens": 60},
    {"prompt": "the sea", "guided_json": SCHEMA, "max_tokens": 120, "temperature": 1.0, "seed": 2, "logprobs": 0},
    {"prompt": "the sea", "bad_words": ["e", "th"], "max_tokens": 60, "temperature": 1.5, "seed": 4},
]


@pytest.mark.parametrize("body", COMPLETIONS, ids=str)
async def test_a_completion_is_streamed_as_it_is_told_whole(backend: Asked, body: dict[str, Any]) -> None:
    whole = await backend.complete(**body)
    chunks = await backend.chunks("/v1/completions", stream_options={"include_usage": True}, **body)
    streamed = joined(chunks)
    assert len(streamed) == len(whole["choices"]) > 0
    for choice in whole["choices"]:
        text, entries, reason = streamed[choice["index"]]
        assert (text, reason) == (choice["text"], choice["finish_reason"])
        assert "\ufffd" not in text
        expected = choice["logprobs"]["token_logprobs"] if choice["logprobs"] else []
        assert [e is None for e in entries] == [e is None for e in expected]
        assert [e or 0 for e in entries] == pytest.approx([e or 0 for e in expected], abs=1e-4)  # other batches
    differing = dict.fromkeys(("prompt_tokens_details", "first_token_ms"))  # more is cached the second time; a time
    assert {**chunks[-1]["usage"], **differing} == {**whole["usage"], **differing}


async def test_answers_under_a_schema_match_it_alone_and_together(backend: Asked) -> None:
    bodies = [{"response_format": SCHEMA_FORMAT, "max_tokens": 200, "temperature": 1.2, "seed": i} for i in range(12)]
    alone = [await backend.chat(**body) for body in bodies[:3]]
    together = await asyncio.gather(*(backend.chat(**body) for body in bodies))
    for answer in together:
        (choice,) = answer["choices"]
        if choice["finish_reason"] == "stop":
            value = json.loads(choice["message"]["content"])
            assert set(value) == {"n", "tags"} and isinstance(value["n"], int) and set(value["tags"]) <= {"a", "b"}
    assert sum(answer["choices"][0]["finish_reason"] == "stop" for answer in together) > 6
    assert [a["choices"] for a in alone] == [a["choices"] for a in together[:3]]


@pytest.mark.parametrize(("least", "pattern"), [(0, "[0-9]*"), (6, "[0-9]{6,}"), (30, "[0-9]{30}")])
async def test_a_least_length_holds_as_far_as_the_form_goes(backend: Asked, least: int, pattern: str) -> None:
    asked_for = {"guided_regex": "[0-9]{0,30}", "min_tokens": least, "max_tokens": 60, "temperature": 2.0, "seed": 1}
    ends = {str(next(iter(Checkpoint(Path(backend.engine.config.model)).text.eos_ids))): 20}
    (choice,) = (await backend.complete("the sea", **asked_for, logit_bias=ends))["choices"]
    assert choice["finish_reason"] == "stop"
    assert re.fullmatch(pattern, choice["text"])


@pytest.mark.parametrize("streamed", [False, True])
async def test_bad_words_are_never_written(backend: Asked, streamed: bool) -> None:
    body = {"max_tokens": 200, "temperature": 1.5, "seed": 4, "ignore_eos": True}
    (free,) = (await backend.complete("the sea", **body))["choices"]
    words = ["e", "t", "th"]
    assert any(word in free["text"] for word in words)
    if streamed:
        chunks = await backend.chunks("/v1/completions", prompt="the sea", bad_words=words, **body)
        text = joined(chunks)[0][0]
    else:
        text = (await backend.complete("the sea", bad_words=words, **body))["choices"][0]["text"]
    tokens = Checkpoint(Path(backend.engine.config.model)).text
    spelled = {tuple(tokens.encode_words(space + word)) for word in words for space in ("", " ")}
    assert all(
        word not in (tuple(tokens.encode_words(text))[i : i + len(word)] for i in range(200)) for word in spelled
    )
    assert len(text) > 20


async def test_only_allowed_tokens_are_written(backend: Asked) -> None:
    tokens = Checkpoint(Path(backend.engine.config.model)).text
    ids = tokens.encode_words("abc")
    answer = await backend.complete("the sea", allowed_token_ids=ids, max_tokens=40, temperature=2.0, seed=1)
    assert re.fullmatch("[abc]{40}", answer["choices"][0]["text"])
    digits = tokens.encode_words("01") + sorted(tokens.eos_ids)
    body = {"allowed_token_ids": digits, "guided_regex": "[0-9]{6}", "temperature": 2.0, "max_tokens": 20}
    assert re.fullmatch("[01]{6}", (await backend.complete("the sea", **body))["choices"][0]["text"])


@pytest.mark.parametrize("most", [1, 3, 500, -1])
async def test_of_a_long_prompt_the_last_tokens_are_kept(backend: Asked, most: int) -> None:
    text = Checkpoint(Path(backend.engine.config.model)).text
    ids = text.encode_completion("the rain in the sea " * 900)
    kept = ids[-most:] if most > 0 else ids[-(4096 - 8) :]
    answer = await backend.complete(ids, truncate_prompt_tokens=most, echo=True, seed=3)
    assert answer["usage"]["prompt_tokens"] == len(kept)
    assert answer["choices"] == (await backend.complete(kept, echo=True, seed=3))["choices"]


async def test_control_tokens_are_shown_on_request(backend: Asked) -> None:
    text = Checkpoint(Path(backend.engine.config.model)).text
    start = text.tokenizer.token_to_id("<|im_start|>")
    body = {"logit_bias": {str(start): 100}, "max_tokens": 3, "ignore_eos": True}
    hidden = await backend.chat(**body)
    shown = await backend.chat(**body, skip_special_tokens=False)
    assert hidden["choices"][0]["message"]["content"] == ""
    assert shown["choices"][0]["message"]["content"] == "<|im_start|>" * 3
    streamed = joined(await backend.chunks("/v1/chat/completions", messages=USER, **body, skip_special_tokens=False))
    assert streamed[0][0] == "<|im_start|>" * 3


async def test_an_answer_that_was_begun_is_gone_on_with_in_the_same_words(backend: Asked) -> None:
    whole = (await backend.chat(max_tokens=30))["choices"][0]["message"]["content"]
    begun = whole[: len(whole) // 2]
    messages = [*USER, {"role": "assistant", "content": begun}]
    answer = await backend.chat(messages=messages, continue_final_message=True, max_tokens=4)
    plain = await backend.chat(max_tokens=30)
    text = Checkpoint(Path(backend.engine.config.model)).text
    prompt = text.encode_chat(messages, continued=True)
    assert text.decode(prompt).endswith(begun)
    assert answer["usage"]["prompt_tokens"] == len(prompt)
    completion = await backend.complete(prompt, max_tokens=4)
    assert answer["choices"][0]["message"]["content"] == completion["choices"][0]["text"]
    assert plain["choices"][0]["message"]["content"] == whole


async def test_logprobs_of_a_completion_line_up_with_its_text(backend: Asked) -> None:
    answer = await backend.complete("the sea", logprobs=2, max_tokens=12, temperature=1.0, seed=2)
    (choice,) = answer["choices"]
    told = choice["logprobs"]
    assert len(told["tokens"]) == len(told["token_logprobs"]) == len(told["text_offset"]) == 12
    for token, offset in zip(told["tokens"], told["text_offset"], strict=True):
        assert token.startswith("bytes:") or choice["text"][offset:].startswith(token)
    for token, logprob, top in zip(told["tokens"], told["token_logprobs"], told["top_logprobs"], strict=True):
        assert logprob <= 0
        assert top[token] >= logprob


async def test_echo_gives_the_prompt_back_with_its_log_probabilities(backend: Asked) -> None:
    plain = await backend.complete("the rain in", logprobs=0, max_tokens=4)
    echoed = await backend.complete("the rain in", logprobs=0, max_tokens=4, echo=True)
    (before,), (after,) = plain["choices"], echoed["choices"]
    assert after["text"] == "the rain in" + before["text"]
    count = echoed["usage"]["prompt_tokens"]
    assert after["logprobs"]["token_logprobs"][0] is None
    assert after["logprobs"]["token_logprobs"][count:] == pytest.approx(before["logprobs"]["token_logprobs"], abs=1e-4)
    assert after["logprobs"]["text_offset"][count] == len("the rain in")
    chunks = joined(await backend.chunks("/v1/completions", prompt="the rain in", logprobs=0, max_tokens=4, echo=True))
    assert chunks[0][0] == after["text"]
    assert chunks[0][1] == after["logprobs"]["token_logprobs"]


async def test_scoring_a_prompt_makes_no_answer(backend: Asked) -> None:
    answer = await backend.complete("the rain in", logprobs=1, max_tokens=0, echo=True)
    (choice,) = answer["choices"]
    assert choice["text"] == "the rain in"
    assert len(choice["logprobs"]["tokens"]) == answer["usage"]["prompt_tokens"] == answer["usage"]["total_tokens"]
    assert choice["finish_reason"] == "length"


async def test_prompt_logprobs_are_told_for_every_token_but_the_first(backend: Asked) -> None:
    answer = await backend.chat(prompt_logprobs=1)
    told = answer["prompt_logprobs"]
    assert len(told) == answer["usage"]["prompt_tokens"]
    assert told[0] is None
    assert all(1 in {entry["rank"] for entry in row.values()} for row in told[1:])
    completion = await backend.complete(["the sea", "the wind on"], prompt_logprobs=0)
    assert [len(c["prompt_logprobs"]) for c in completion["choices"]] != [0, 0]


async def test_the_best_of_several_is_the_likeliest_on_average(backend: Asked) -> None:
    asked_for = {"temperature": 1.5, "seed": 8, "max_tokens": 6, "logprobs": 0}
    every = await backend.complete("the sea", n=5, **asked_for)
    best = await backend.complete("the sea", n=2, best_of=5, **asked_for)
    means = {c["text"]: sum(c["logprobs"]["token_logprobs"]) / 6 for c in every["choices"]}
    expected = sorted(means, key=lambda text: -means[text])[:2]
    assert [c["text"] for c in best["choices"]] == expected
    assert [c["index"] for c in best["choices"]] == [0, 1]
    assert best["usage"]["completion_tokens"] == 30


async def test_a_seed_gives_the_same_alone_and_among_others(backend: Asked) -> None:
    body = {"temperature": 1.3, "seed": 11, "max_tokens": 20, "presence_penalty": 0.7}
    alone = await backend.chat(**body)
    others = [backend.chat(temperature=1.0, max_tokens=15, seed=i) for i in range(8)]
    among, *_ = await asyncio.gather(backend.chat(**body), *others)
    assert among["choices"] == alone["choices"]


async def test_a_stop_string_can_be_shown(backend: Asked) -> None:
    body = {"stop": ["e"], "max_tokens": 80, "temperature": 1.5, "seed": 4}
    cut = (await backend.chat(**body))["choices"][0]
    shown = (await backend.chat(**body, include_stop_str_in_output=True))["choices"][0]
    assert cut["finish_reason"] == shown["finish_reason"] == "stop"
    assert shown["message"]["content"] == cut["message"]["content"] + "e"


async def test_log_probabilities_never_tell_what_a_stop_string_cut_off(backend: Asked) -> None:
    body = {"stop": ["e"], "max_tokens": 80, "temperature": 1.5, "seed": 4, "logprobs": True}
    (choice,) = (await backend.chat(**body))["choices"]
    *before, last = [bytes(entry["bytes"]) for entry in choice["logprobs"]["content"]]
    shown = choice["message"]["content"]
    assert b"e" not in b"".join(before)
    assert b"".join(before).decode(errors="ignore") != shown  # the last one begins in what is shown
    assert b"".join([*before, last]).decode(errors="ignore").startswith(shown)


async def test_a_request_whose_time_is_over_is_ended_and_its_blocks_are_free(backend: Asked) -> None:
    status, answer = await backend.post("/v1/completions", prompt="x", max_tokens=3000, ignore_eos=True, deadline_s=0.2)
    assert (status, answer["error"]["code"]) == (504, "deadline_exceeded")
    for _ in range(50):
        await backend.engine.ping(5)
        if backend.engine.stats and not backend.engine.stats.running:
            break
        await asyncio.sleep(0.02)
    assert backend.engine.stats is not None
    assert backend.engine.stats.used_blocks == 0


async def test_scrubbing_zeroes_the_cache_and_says_so(backend: Asked) -> None:
    await backend.chat()
    answer = await backend.http.post("/scrub")
    assert answer.status_code == 200
    assert answer.json()["blocks"] == 600
    assert answer.json()["residue_bytes"] == 0
    assert (await backend.chat())["usage"]["prompt_tokens_details"]["cached_tokens"] == 0


async def test_one_project_cannot_fill_the_queue_of_all(folder: Path) -> None:
    async with asked(folder, max_per_project=3, max_num_seqs=2) as backend:
        body = {"model": "tiny", "prompt": "x", "max_tokens": 200, "ignore_eos": True}
        mine, other = {"x-domicile-project": "p1"}, {"x-domicile-project": "p2"}
        calls = [backend.http.post("/v1/completions", json=body, headers=mine) for _ in range(6)]
        answers = await asyncio.gather(*calls, backend.http.post("/v1/completions", json=body, headers=other))
        assert sorted(a.status_code for a in answers[:6]) == [200] * 3 + [429] * 3
        assert answers[6].status_code == 200
        refused = next(a for a in answers if a.status_code == 429)
        assert refused.json()["error"]["code"] == "project_queue_full"
        assert int(refused.headers["retry-after"]) >= 1
