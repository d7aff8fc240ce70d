"""Ollama's routes through a whole gateway: bodies, lines, results of tools, errors, and what is refused by name."""

import json

import pytest
from aiohttp import web

from gateway.apis.endpoints import OLLAMA_CHAT, OLLAMA_EMBED, OLLAMA_GENERATE
from gateway.errors import BackendFailed, InvalidRequest
from gateway.openai.checked_call import parse_call
from tests.fakes.backend import FakeBackend
from tests.fakes.lab import OPEN_POLICY, lab
from tests.fakes.tool_user import ToolUser
from tests.gateway.apis.recorded import chunk, tool

MAIL = "anna.schmidt@example.org"
LOOK = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}


def asked(text=f"write to {MAIL}", **more):
    return {"model": "small", "messages": [{"role": "user", "content": text}], **more}


def parsed(endpoint=OLLAMA_CHAT, **body):
    return parse_call(endpoint, json.dumps({"model": "m", **body}).encode())


def refusal(endpoint=OLLAMA_CHAT, **body):
    with pytest.raises(InvalidRequest) as error:
        parsed(endpoint, **body)
    return error.value


def lines(answer):
    return [json.loads(line) for line in answer.body.splitlines()]


# --- bodies ----------------------------------------------------------------------------------------------------------


def test_a_body_becomes_the_chat_that_asks_for_the_same():
    call = parsed(
        messages=[{"role": "user", "content": "hi"}],
        options={"temperature": 0.5, "num_predict": 9, "stop": ["x"], "repeat_penalty": 1.1, "seed": 4, "num_ctx": 99},
        format={"type": "object"},
        keep_alive="5m",
        think="low",
    )
    assert call.body == {
        "model": "m", "stream": True, "messages": [{"role": "user", "content": "hi"}], "temperature": 0.5,
        "max_tokens": 9, "stop": ["x"], "repetition_penalty": 1.1, "seed": 4, "reasoning_effort": "low",
        "response_format": {"type": "json_schema", "json_schema": {"name": "answer", "schema": {"type": "object"}}},
    }  # fmt: skip
    assert (
        parsed(messages=[{"role": "user", "content": "hi"}], options={"num_predict": -1}).body.get("max_tokens") is None
    )


def test_results_belong_to_calls_by_id_by_name_or_by_order():
    calls = [{"function": {"name": name, "arguments": {"n": at}}} for at, name in enumerate(("look", "send"))]
    results = [
        {"role": "tool", "tool_name": "send", "content": "sent"},
        {"role": "tool", "content": "seen"},
    ]
    asking = {"role": "assistant", "content": "", "tool_calls": calls}
    body = parsed(messages=[{"role": "user", "content": "go"}, asking, *results]).body
    assert [(each["tool_call_id"], each["content"]) for each in body["messages"][2:]] == [
        ("call_1", "sent"),
        ("call_0", "seen"),
    ]
    calls[0]["id"] = "mine"
    named = {"role": "tool", "tool_call_id": "mine", "content": "x"}
    assert parsed(messages=[asking, named]).body["messages"][1]["tool_call_id"] == "mine"
    assert refusal(messages=[asking, {**named, "tool_call_id": "other"}]).param == "messages.1.tool_call_id"
    assert refusal(messages=[{"role": "tool", "content": "x"}]).param == "messages.0.role"


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "messages"),
        ({"messages": []}, "messages"),
        ({"messages": ["x"]}, "messages.0"),
        ({"messages": [{"content": "x"}]}, "messages.0.role"),
        ({"messages": [{"role": "user", "content": 5}]}, "messages.0.content"),
        ({"messages": [{"role": "user", "images": [5]}]}, "messages.0.images.0"),
        ({"stream": "yes"}, "stream"),
        ({"options": {"temperature": 9}}, "options.temperature"),
        ({"options": {"mirostat": 2}}, "options.mirostat"),
        ({"options": {"num_ctx": "a text"}}, "options.num_ctx"),
        ({"options": {"num_predict": "5"}}, "options.num_predict"),
        ({"options": {"my_words": 1}}, "options.my_words"),
        ({"format": "xml"}, "format"),
        ({"think": "a bit"}, "think"),
        ({"keep_alive": "as long as you can"}, "keep_alive"),
        ({"tools": [{"type": "function"}]}, "tools.0.function"),
        ({"max_tokens": 5}, "max_tokens"),
        ({"logprobs": True}, "logprobs"),
        ({"template": "{{ .Prompt }}"}, "template"),
    ],
)
def test_what_is_wrong_is_named_where_it_stands_in_the_body_of_the_client(body, param):
    known = body if "messages" in body or not body else {"messages": [{"role": "user", "content": "x"}], **body}
    assert refusal(**known).param == param


@pytest.mark.parametrize("body", [{}, {"prompt": ""}, {"prompt": "x", "raw": True}, {"prompt": "x", "suffix": "y"}])
def test_a_prompt_is_needed_and_is_one_message(body):
    assert refusal(OLLAMA_GENERATE, **body).code
    made = parsed(OLLAMA_GENERATE, prompt="hi", system="be short", stream=False).body
    assert [(each["role"], each["content"]) for each in made["messages"]] == [("system", "be short"), ("user", "hi")]


def test_a_call_that_never_ends_is_the_backends_fault():
    writer = parsed(messages=[{"role": "user", "content": "x"}]).translation.events()
    with pytest.raises(BackendFailed):
        for number in range(5000):
            writer.chunk(chunk(tool(number, f"call_{number}", "look", "{}")))


# --- answers ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/api/chat", "/api/generate"])
async def test_answers_come_whole_or_in_lines_with_thoughts_and_counts(tmp_path, path):
    backend = ToolUser(say=lambda body: f"You said {body['messages'][-1]['content']}", pieces=4)
    body = asked() if path == "/api/chat" else {"model": "small", "prompt": f"write to {MAIL}"}

    def said(line):
        return line["message"]["content"] if path == "/api/chat" else line["response"]

    def thought(line):
        return (line["message"] if path == "/api/chat" else line).get("thinking", "")

    async with lab(tmp_path, backends={"acme/eu-fr-par/acme-1": backend}) as made:
        streamed = await made.post(body, path)
        assert (streamed.status, streamed.headers["content-type"]) == (200, "application/x-ndjson")
        found = lines(streamed)
        whole = (await made.post({**body, "stream": False}, path)).json
        quiet = await made.post({**body, "think": False}, path)
        assert MAIL not in backend.received
    assert "".join(map(said, found)) == said(whole) == f"You said write to {MAIL}"
    assert "".join(map(thought, found)) == thought(whole) == "I should look."
    assert [line["done"] for line in found] == [False] * (len(found) - 1) + [True]
    last = found[-1]
    assert (last["done_reason"], last["prompt_eval_count"], last["eval_count"]) == ("stop", 7, 5)
    assert whole["done"] is True and whole["model"] == "small" and whole["created_at"].endswith("Z")
    assert not any(map(thought, lines(quiet)))


async def test_a_call_of_a_tool_comes_in_one_line_with_restored_arguments(tmp_path):
    async with lab(tmp_path, backends={"acme/eu-fr-par/acme-1": ToolUser(pieces=5)}) as made:
        streamed = lines(await made.post(asked(tools=[LOOK]), "/api/chat"))
        whole = (await made.post(asked(tools=[LOOK], stream=False), "/api/chat")).json
    calls = [call for line in streamed for call in line["message"].get("tool_calls", ())]
    assert calls == whole["message"]["tool_calls"]
    assert [call["function"] for call in calls] == [{"name": "look", "arguments": {"about": MAIL}}]


async def test_embeddings_come_in_the_order_of_the_texts(tmp_path):
    class Vectors(FakeBackend):
        async def generate(self, request):
            body = await request.json()
            self.bodies.append(body)
            data = [{"index": at, "embedding": [float(at)]} for at in reversed(range(len(body["input"])))]
            return web.json_response({"data": data, "model": "small", "usage": {"prompt_tokens": 3, "total_tokens": 3}})

    backend = Vectors()
    async with lab(tmp_path, backends={"acme/eu-fr-par/acme-1": backend}) as made:
        body = {"model": "small", "input": ["a", f"b {MAIL}"], "dimensions": 1, "truncate": True}
        answer = await made.post(body, "/api/embed")
        assert answer.json == {"model": "small", "embeddings": [[0.0], [1.0]], "prompt_eval_count": 3}
        assert MAIL not in backend.received and backend.bodies[0]["truncate_prompt_tokens"] == -1
        assert (await made.post({"model": "small"}, "/api/embed")).json["param"] == "input"
    assert refusal(OLLAMA_EMBED, input="x", options={"num_ctx": "x"}).param == "options.num_ctx"


async def test_errors_are_a_sentence_with_its_code_also_in_a_stream(tmp_path):
    dying = ToolUser(say="one two three four five six", thought="", die_after=3, pieces=6)
    backends = {"acme/eu-fr-par/acme-1": dying}
    async with lab(tmp_path, set_up=lambda made: made.tenant("acme", OPEN_POLICY), backends=backends) as made:
        unknown = await made.post({**asked("x"), "model": "other"}, "/api/chat")
        assert unknown.status == 404 and unknown.json["code"] == "model_not_found"
        assert isinstance(unknown.json["error"], str)
        assert (await made.post(asked("x"), "/api/chat", key="dom_live_nothing")).json["error"]
        broken = lines(await made.post(asked("x"), "/api/chat"))
        assert broken[0]["message"]["content"] and broken[-1]["code"] == "backend_error"
        wrong = await made.http.get(made.base + "/api/chat")
        assert wrong.status == 405 and isinstance((await wrong.json(content_type=None))["error"], str)


async def test_silences_hold_no_comment_since_a_line_is_json(tmp_path):
    slow = FakeBackend(delay_s=0.3, pieces=4)
    requests = {"comment_after_s": 0.1}
    async with lab(tmp_path, backends={"acme/eu-fr-par/acme-1": slow}, requests=requests) as made:
        answer = await made.post(asked("hi"), "/api/chat")
    assert "".join(line["message"]["content"] for line in lines(answer)) == slow.say


async def test_images_are_refused_where_prompts_are_redacted_and_pass_where_not(tmp_path):
    body = asked("look")
    body["messages"][0]["images"] = ["/9j/4AAQ"]
    async with lab(tmp_path) as made:
        refused = await made.post(body, "/api/chat")
        assert (refused.status, refused.json["code"]) == (422, "redaction_refused")
        assert refused.json["param"] == "messages.0.images.0"
    plain = lab(tmp_path / "open", set_up=lambda made: made.tenant("acme", OPEN_POLICY))
    async with plain as made:
        assert (await made.post(body, "/api/chat")).status == 200
        [sent] = made.backends["acme-1"].bodies
        assert sent["messages"][0]["content"][1]["image_url"]["url"] == "data:image/jpeg;base64,/9j/4AAQ"
