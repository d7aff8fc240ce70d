"""A stream, put together, is the whole answer: for every kind of request, any text, and wherever its tokens are cut.

The engine is scripted, so that texts are as wild as hypothesis likes: characters of several tokens, bytes that are
none, control tokens, markers of calls and thoughts, begun and never finished; choices come in any order.
"""

import asyncio
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backend.engine.core.progress import Finish, Progress, TokenLogprobs
from backend.models.checkpoints.tokenizer import TextModel
from backend.process.call import Call
from backend.process.messages import AddSequence
from tests.backend.answer.test_chat_answer import CALLS, TOOLS, WEATHER
from tests.backend.scripted import CONTROLS, Forgets, Scripted, request

NOTHING = 0  # a control token
TEMPLATES = ["plain", "hermes", "qwen3", "r1", "llama3", "mistral"]
CHARACTERS = st.characters(codec="utf-8", exclude_characters="\ufffd", exclude_categories=("Cs",))
STOPS = ["stop", "sto", "🙂🙂", "\n\n", "eau", "</think>", "日本語人", "op{"]
SNIPPETS = [
    "🙂", "👩‍👩‍👧", "e\u0301", "क्षि", "日本語", "مرحبا", "\u202eabc", "\u200b", "€", "𝒳", "<think>", "</think>",
    "<think", "<tool_call>", "</tool_call>", "[TOOL_CALLS]", "<|python_tag|>", "{", "}", '"', "\\", "\n", " ", "st",
    "op", *STOPS,
    '{"name": "now", "arguments": {"é": "🙂"}}', '{"name": "now", "parameters": {}}', "the sea", *CALLS.values(),
]  # fmt: skip
TEXTS = st.lists(st.sampled_from(SNIPPETS) | st.text(CHARACTERS, max_size=6), max_size=8).map("".join)


@pytest.fixture(scope="module")
def backends(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Scripted]]:
    made = {name: Scripted(tmp_path_factory.mktemp(name), name) for name in TEMPLATES}
    with asyncio.Runner() as runner:
        for backend in made.values():
            backend.run = runner.run  # type: ignore[attr-defined]
        yield made


@dataclass
class Script:
    """What each sequence says, in which order, what its tokens' log probabilities are, and how many a response that is
    behind gets at a time."""

    tokens: list[list[int]]
    finish: list[Finish]
    order: list[int]
    logprobs: list[float] = field(default_factory=list)
    at_once: int = 1

    def submit(self, sequences: Sequence[AddSequence]) -> Call:
        call = Call(cast("Any", Forgets()), range(len(sequences)))
        call.at_once = self.at_once
        said = [iter(self._progress(id, sequence)) for id, sequence in enumerate(sequences)]
        leaders = [
            id for id, sequence in enumerate(sequences) if sequence.leader is None
        ]  # others wait for their prompt
        turns = [*leaders, *(i % len(said) for i in self.order)]
        for id in [*turns, *(i for i in range(len(said)) for _ in self.tokens[i % len(self.tokens)] + [0])]:
            if (progress := next(said[id], None)) is not None:
                call.deliver(progress)
        return call

    def _progress(self, id: int, sequence: AddSequence) -> Iterator[Progress]:
        params = sequence.params
        tokens, finish = self.tokens[id % len(self.tokens)], self.finish[id % len(self.finish)]
        tokens = [*tokens, 2] if finish is Finish.STOP else tokens or [NOTHING]  # an end token, or at least one
        for at, token in enumerate(tokens):
            told = self._told(token, at, params.logprobs)
            prompt = None
            if not at and params.prompt_logprobs is not None:
                prompt = [self._told(t, i, params.prompt_logprobs) for i, t in enumerate(sequence.prompt[1:])]
            last = at == len(tokens) - 1
            yield Progress(id, token, finish if last else None, id % 3, told, cast("Any", prompt))

    def _told(self, token: int, at: int, top: int | None) -> TokenLogprobs | None:
        if top is None:
            return None
        value = self.logprobs[at % len(self.logprobs)]
        return TokenLogprobs(value, 1, [(token, value), *((5 + i, value - 1 - i) for i in range(top))][:top])


@st.composite
def tokens_of(draw: st.DrawFn, backend: Scripted) -> list[int]:
    """Some text, in tokens cut anywhere; among them, now and then, control tokens and bytes that are no text."""
    table = backend.engine.model.token_bytes
    byte = {raw: token for token, raw in reversed(list(enumerate(table))) if len(raw) == 1}
    text = draw(TEXTS)
    if draw(st.booleans()):  # it ends as a stop string begins
        text += draw(st.sampled_from(STOPS))[:-1]
    raw = text.encode()
    cuts = sorted(draw(st.lists(st.integers(0, len(raw)), max_size=8)))
    tokens: list[int] = []
    for begin, end in zip([0, *cuts], [*cuts, len(raw)], strict=True):
        piece = raw[begin:end]
        try:
            tokens += backend.engine.model.encode_words(piece.decode())
        except UnicodeDecodeError:
            tokens += [byte[piece[i : i + 1]] for i in range(len(piece))]
        if draw(st.integers(0, 9)) == 0:
            control = backend.engine.model.tokenizer.token_to_id(draw(st.sampled_from(CONTROLS)))
            tokens.append(draw(st.sampled_from([control, byte[b"\xe2"], byte[b"\x9f"], byte[b"\xf0"]])))
    return tokens


COMMON = st.fixed_dictionaries(
    {},
    optional={
        "n": st.integers(1, 3), "min_tokens": st.integers(0, 3), "include_stop_str_in_output": st.booleans(),
        "stop": st.lists(st.sampled_from(STOPS), min_size=1, max_size=3),
        "skip_special_tokens": st.booleans(),
    },
)  # fmt: skip
CHAT = st.fixed_dictionaries(
    {},
    optional={
        "logprobs": st.just(True), "include_reasoning": st.booleans(), "parallel_tool_calls": st.booleans(),
        "response_format": st.sampled_from([{"type": "json_object"}, {"type": "text"}]),
        "tools": st.sampled_from([TOOLS, [WEATHER]]),
    },
)  # fmt: skip
COMPLETION = st.fixed_dictionaries(
    {"prompt": st.sampled_from(["the sea", "é🙂", ["the sea", "wind 本"], [5, 6, 200, 7], [[5, 6], [200, 201, 202]]])},
    optional={"logprobs": st.integers(0, 3), "echo": st.booleans(), "max_tokens": st.integers(1, 5)},
)


@st.composite
def cases(draw: st.DrawFn, backends: dict[str, Scripted]) -> tuple[Scripted, str, dict[str, Any]]:
    backend = backends[draw(st.sampled_from(TEMPLATES))]
    body = draw(COMMON)
    if chat := draw(st.booleans()):
        body |= draw(CHAT)
        if body.get("logprobs") and draw(st.booleans()):
            body["top_logprobs"] = draw(st.integers(0, 3))
    else:
        body |= draw(COMPLETION)
        if body.get("echo") and draw(st.booleans()):
            body["max_tokens"] = 0
    if body.get("response_format") == {"type": "json_object"}:
        body.pop("include_stop_str_in_output", None)
    if not chat and draw(st.booleans()):
        body["best_of"] = body.get("n", 1)  # more than are given cannot be streamed
    scripts = st.lists(tokens_of(backend), min_size=1, max_size=4)
    backend.engine.submit = Script(  # type: ignore[method-assign]
        draw(scripts),
        draw(st.lists(st.sampled_from([Finish.STOP, Finish.LENGTH]), min_size=1, max_size=3)),
        draw(st.lists(st.integers(0, 11), max_size=30)),
        draw(st.lists(st.sampled_from([-0.0, -0.5, -3.25, -9999.0]), min_size=1, max_size=4)),
        draw(st.sampled_from([1, 1, 2, 5, 64])),
    ).submit
    return backend, "/v1/chat/completions" if chat else "/v1/completions", body


Told = dict[int, dict[str, Any]]


def whole_told(answer: dict[str, Any]) -> Told:
    return {choice["index"]: told([choice], choice.get("message", choice)) for choice in answer["choices"]}


def told(choices: list[dict[str, Any]], first: dict[str, Any]) -> dict[str, Any]:
    """Of a whole choice, or of all its chunks' deltas."""
    found: dict[str, Any] = {"text": "", "thoughts": "", "calls": [], "logprobs": [], "offsets": [], "reason": None}
    for choice in choices:
        said = choice.get("message") or choice.get("delta") or choice
        found["text"] += said.get("content") or said.get("text") or ""
        found["thoughts"] += said.get("reasoning_content") or ""
        for call in said.get("tool_calls") or []:
            if call.get("id"):
                assert call.get("index", len(found["calls"])) == len(found["calls"])
                found["calls"].append([call["function"]["name"], call["function"]["arguments"]])
            else:
                found["calls"][call["index"]][1] += call["function"]["arguments"]
        entries = choice["logprobs"] or {}
        found["logprobs"] += entries.get("content") or []
        if "tokens" in entries:
            found["logprobs"] += zip(
                entries["tokens"],
                entries["token_logprobs"],
                entries["top_logprobs"],
                entries["text_offset"],
                strict=True,
            )
        assert found["reason"] is None, "nothing comes behind the end"
        found["reason"] = choice["finish_reason"]
    return found


def stream_told(chunks: list[dict[str, Any]]) -> Told:
    by: dict[int, list[dict[str, Any]]] = {}
    for chunk in chunks:
        for choice in chunk["choices"]:
            by.setdefault(choice["index"], []).append(choice)
    return {index: told(choices, choices[0]) for index, choices in by.items()}


@settings(max_examples=400, deadline=None)
@given(data=st.data())
def test_a_stream_put_together_is_the_whole_answer(backends: dict[str, Scripted], data: st.DataObject) -> None:
    backend, path, body = data.draw(cases(backends))
    body = request(**body)
    if path == "/v1/completions":
        del body["messages"]
    run = backend.run  # type: ignore[attr-defined]
    whole = run(backend.http.post(path, json=body))
    streamed = run(backend.http.post(path, json={**body, "stream": True, "stream_options": {"include_usage": True}}))
    assert whole.status_code == streamed.status_code == 200, (whole.text, streamed.text)
    answer = json.loads(whole.content.decode("utf-8", errors="strict"))
    *events, done, end = streamed.content.decode("utf-8", errors="strict").split("\n\n")
    assert (done, end) == ("data: [DONE]", "")
    chunks = [json.loads(event.removeprefix("data: ")) for event in events]
    assert "\ufffd" not in whole.text and "\\ufffd" not in whole.text
    assert all("\ufffd" not in event and "\\ufffd" not in event for event in events)
    assert stream_told(chunks) == whole_told(answer)
    usages = [chunk["usage"] for chunk in chunks if chunk["usage"]] + [answer["usage"]]
    assert all(usage.pop("first_token_ms") >= 0 for usage in usages)  # measured, so each has its own
    assert len(usages) == 2 and usages[0] == usages[1]
    assert chunks[-1]["choices"] == []
    plain = backend is backends["plain"] and "tools" not in body
    if (path == "/v1/completions" or plain) and not ("stop" in body and body.get("min_tokens")):
        assert_what_was_said(backend, body, answer)


def assert_what_was_said(backend: Scripted, body: dict[str, Any], answer: dict[str, Any]) -> None:
    """Where nothing is interpreted: all the text there is up to a stop string, with all its log probabilities."""
    script = cast("Script", backend.engine.submit.__self__)  # type: ignore[attr-defined]
    model = backend.engine.model.outspoken if body.get("skip_special_tokens") is False else backend.engine.model
    for index, choice in enumerate(answer["choices"]):
        ended = script.finish[index % len(script.finish)] is Finish.STOP
        tokens = script.tokens[index % len(script.tokens)]
        tokens = tokens if ended or tokens else [NOTHING]
        if only_echo := body.get("max_tokens") == 0:
            tokens = []
        prompt = prompt_of(backend, body, index // body.get("n", 1)) if body.get("echo") else []
        said, stopped = cut_before(decoded(model, tokens), body.get("stop", []), body)
        before = decoded(model, prompt)
        assert choice.get("text", choice.get("message", {}).get("content")) == before + said
        if not only_echo:
            assert choice["finish_reason"] == ("stop" if ended or stopped else "length")
        if stopped or choice["logprobs"] is None:
            continue
        if "content" in choice["logprobs"]:
            assert [bytes(e["bytes"]) for e in choice["logprobs"]["content"]] == [model.token_bytes[t] for t in tokens]
        else:
            offsets = choice["logprobs"]["text_offset"]
            assert len(offsets) == len(choice["logprobs"]["tokens"]) == len(prompt) + len(tokens)
            lengths = [len(decoded(model, [*prompt, *tokens][:i])) for i in range(len(prompt) + 1)]
            assert offsets[: len(prompt)] == lengths[: len(prompt)]
            answers = [len(before) + len(decoded(model, tokens[:i])) for i in range(len(tokens))]
            assert offsets[len(prompt) :] == answers


def decoded(model: TextModel, tokens: list[int]) -> str:
    """What is no character is left out; one that is never finished, too."""
    return b"".join(model.token_bytes[token] for token in tokens).decode(errors="ignore")


def prompt_of(backend: Scripted, body: dict[str, Any], number: int) -> list[int]:
    prompt = body["prompt"]
    if isinstance(prompt, list) and not isinstance(prompt[0], int):
        prompt = prompt[number]
    return backend.engine.model.encode_completion(prompt) if isinstance(prompt, str) else prompt


def cut_before(text: str, stops: list[str], body: dict[str, Any]) -> tuple[str, bool]:
    """Up to the stop that is complete first, and of several the one that begins first."""
    found = [(text.find(stop) + len(stop), text.find(stop)) for stop in stops if stop in text]
    if not found:
        return text, False
    end, begin = min(found)
    return text[: end if body.get("include_stop_str_in_output") else begin], True
