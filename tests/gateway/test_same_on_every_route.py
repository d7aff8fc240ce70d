"""The same conversation through chats, responses, messages, Ollama's chats, completions and lines of a batch, whole and
streamed: the same verdict, the same body for the backend, the same text for the client, the same findings on record.

Random conversations of texts with and without personal data, with thoughts, tool calls and their results. A backend
that repeats what it was sent thinks, says and calls with it, and adds personal data of its own.
"""

import json
import random
import re
import sqlite3
from collections import Counter
from contextlib import asynccontextmanager
from typing import ClassVar

import pytest
from aiohttp import web

from tests.conftest import CAMPAIGN, seed_of
from tests.fakes.backend import USAGE, FakeBackend
from tests.fakes.lab import POLICY, lab
from tests.gateway.apis.recorded import events
from tests.gateway.batches.conftest import CHAT, begin, client
from tests.gateway.batches.conftest import outcome as outcome_of_batch

CASES = 1_000 if CAMPAIGN else 24
LINES = 50  # of one batch
SEED = 20261130
NONCE = re.compile(r"(?<=[A-Z]_)(\d+)_[a-z0-9]{6,12}\b")
KEEPS = "content: 'encrypted, 7d'"
LIMITS = {
    "acme": POLICY,
    "block": POLICY.replace("email: pseudonymise", "email: block"),
    "shy": POLICY.replace("output: {email: mask", "output: {email: block"),
    "plain": "policy: open\nversion: 1\nresidency: {process_in: EEA, store_in: EEA}\n",
}
WORDS = [
    "The",
    "invoice",
    "of",
    "our",
    "customer",
    "is",
    "due",
    "on",
    "Monday,",
    "so",
    "please",
    "write",
    "to",
    "them",
    "today.",
    "Grüße,",
    "¿qué",
    "tal?",
    "数据",
    "🙂",
]
PERSONAL = [
    "anna.schmidt@example.org", "Anna.Schmidt@example.org", "carl@example.com", "DE89 3704 0044 0532 0130 00",
    "DE89370400440532013000", "+49 30 901820", "4111 1111 1111 1111", "ghp_" + "a1B2" * 9, "<EMAIL_1_k7f3ab>",
]  # fmt: skip
OWN = "dora@example.net"
VERDICTS = ("allowed", "redaction_blocked", "answer_blocked")


def text(draw):
    words = draw.choices(WORDS, k=draw.randint(1, 9))
    for _ in range(draw.choice((0, 0, 1, 1, 2))):
        words.insert(draw.randint(0, len(words)), draw.choice(PERSONAL[:-2] if draw.random() < 0.9 else PERSONAL))
    return draw.choice((" ", " ", "\n")).join(words)


class Case:
    """One conversation: a list of (kind, ...), each of which every route can say."""

    def __init__(self, draw):
        self.tenant = draw.choice(("acme", "acme", "acme", "block", "shy", "plain"))
        self.system = text(draw) if draw.random() < 0.5 else None
        self.turns = []
        for number in range(draw.randint(0, 2)):
            self.turns.append(("user", text(draw)))
            if draw.random() < 0.5:
                called = json.dumps({"to": text(draw), "n": number}, ensure_ascii=draw.random() < 0.5)
                self.turns.append(("call", f"call_{number}", called, text(draw)))
            self.turns.append(("assistant", text(draw)))
        self.last = text(draw)
        self.pieces = draw.randint(1, 6)
        self.thinks, self.calls = draw.random() < 0.4, draw.random() < 0.4

    @property
    def alone(self):
        """A text without a conversation, which a completion can say too."""
        return self.system is None and not self.turns

    def chat(self):
        messages = [{"role": "system", "content": self.system}] if self.system is not None else []
        for kind, *told in self.turns:
            if kind == "call":
                name, arguments, result = told
                call = {"id": name, "type": "function", "function": {"name": "look", "arguments": arguments}}
                messages.append({"role": "assistant", "content": None, "tool_calls": [call]})
                messages.append({"role": "tool", "tool_call_id": name, "content": result})
            else:
                messages.append({"role": kind, "content": told[0]})
        return {"messages": [*messages, {"role": "user", "content": self.last}], "max_tokens": 64}

    def responses(self):
        items = []
        for kind, *told in self.turns:
            if kind == "call":
                name, arguments, result = told
                items.append({"type": "function_call", "call_id": name, "name": "look", "arguments": arguments})
                items.append({"type": "function_call_output", "call_id": name, "output": result})
            elif kind == "assistant":
                said = {"type": "output_text", "text": told[0], "annotations": []}
                items.append({"type": "message", "role": kind, "status": "completed", "id": "msg_1", "content": [said]})
            else:
                items.append({"role": kind, "content": [{"type": "input_text", "text": told[0]}]})
        asked = {"input": [*items, {"role": "user", "content": self.last}], "max_output_tokens": 64}
        return asked | ({"instructions": self.system} if self.system is not None else {})

    def messages(self):
        made = []
        for kind, *told in self.turns:
            if kind == "call":
                name, arguments, result = told
                use = {"type": "tool_use", "id": name, "name": "look", "input": json.loads(arguments)}
                made.append({"role": "assistant", "content": [use]})
                answer = {"type": "tool_result", "tool_use_id": name, "content": result}
                made.append({"role": "user", "content": [answer]})
            else:
                made.append({"role": kind, "content": [{"type": "text", "text": told[0]}]})
        asked = {"messages": [*made, {"role": "user", "content": self.last}], "max_tokens": 64}
        return asked | ({"system": self.system} if self.system is not None else {})

    def ollama(self):
        messages = [{"role": "system", "content": self.system}] if self.system is not None else []
        for kind, *told in self.turns:
            if kind == "call":
                name, arguments, result = told
                call = {"id": name, "function": {"name": "look", "arguments": json.loads(arguments)}}
                messages.append({"role": "assistant", "content": "", "tool_calls": [call]})
                messages.append({"role": "tool", "tool_name": "look", "content": result})
            else:
                messages.append({"role": kind, "content": told[0]})
        asked = [*messages, {"role": "user", "content": self.last}]
        return {"messages": asked, "options": {"num_predict": 64}, "stream": False}

    def completions(self):
        return {"prompt": self.last, "max_tokens": 64}


class Echo(FakeBackend):
    """Answers with what it was sent, as thoughts, text and the arguments of a call."""

    case = None
    cases: ClassVar[dict] = {}  # by what is sent, where several are under way

    def said(self, body):
        sent = body["prompt"] if "prompt" in body else body["messages"][-1]["content"]
        case = self.cases.get(normal_text([normal(body)]), self.case) if self.cases else self.case
        message = {"content": f"You said {sent} and I say {OWN} too"}
        if "prompt" not in body and case.thinks:
            message["reasoning_content"] = f"They said {sent}"
        if "prompt" not in body and case.calls:
            message["tool_calls"] = [("call_9", "send", json.dumps({"text": sent, "to": OWN}))]
        return message

    def whole(self, body, chat):
        said = self.said(body)
        message = {"role": "assistant", **{name: value for name, value in said.items() if name != "tool_calls"}}
        if calls := said.get("tool_calls"):
            message["tool_calls"] = [
                {"id": name, "type": "function", "function": {"name": kind, "arguments": arguments}}
                for name, kind, arguments in calls
            ]
        shown = {"message": message} if chat else {"text": said["content"]}
        choice = {"index": 0, **shown, "finish_reason": "tool_calls" if calls else "stop"}
        return {
            "id": "x",
            "object": "chat.completion",
            "created": 1,
            "model": "small",
            "choices": [choice],
            "usage": USAGE,
        }

    async def stream(self, request, body, chat):
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)
        said = self.said(body)
        deltas = [{"role": "assistant", "content": ""}] if chat else []
        for field in ("reasoning_content", "content"):
            deltas += ({field: piece} for piece in self.cut(said.get(field, "")))
        for name, kind, arguments in said.get("tool_calls", ()):
            deltas.append(tool({"id": name, "type": "function", "function": {"name": kind, "arguments": ""}}))
            deltas += (tool({"function": {"arguments": piece}}) for piece in self.cut(arguments))
        last = "tool_calls" if "tool_calls" in said else "stop"
        choices = [({"delta": each} if chat else {"text": each["content"]}, None) for each in deltas]
        for shown, finish in [*choices, ({"delta": {}} if chat else {"text": ""}, last)]:
            choice = {"index": 0, **shown, "finish_reason": finish}
            await self.send(response, {"choices": [choice]})
        await self.send(response, {"choices": [], "usage": USAGE})
        await response.write(b"data: [DONE]\n\n")
        return response

    async def send(self, response, event):
        head = {"id": "x", "object": "chat.completion.chunk", "created": 1, "model": "small"}
        await response.write(b"data: " + json.dumps({**head, **event}).encode() + b"\n\n")

    def cut(self, said):
        size = max(1, -(-len(said) // self.case.pieces))
        return [said[at : at + size] for at in range(0, len(said), size)]


def tool(call):
    return {"tool_calls": [{"index": 0, **call}]}


class Said:
    """What a client learns: thoughts, text, and calls as (name, parsed arguments)."""

    def __init__(self):
        self.thought = self.text = ""
        self.calls = []

    def __eq__(self, other):
        return vars(self) == vars(other)

    def __repr__(self):
        return repr(vars(self))


def of_chat(answer, stream):
    said, arguments = Said(), {}
    choices = (
        [e["choices"][0] for e in answer.events if isinstance(e, dict) and e.get("choices")]
        if stream
        else answer.json["choices"]
    )
    for choice in choices:
        told = choice.get("delta") or choice.get("message") or {}
        said.thought += told.get("reasoning_content") or ""
        said.text += told.get("content") or choice.get("text") or ""
        for call in told.get("tool_calls") or ():
            name, before = arguments.get(0, ("", ""))
            function = call["function"]
            arguments[0] = name + (function.get("name") or ""), before + (function.get("arguments") or "")
    said.calls = [(name, json.loads(told)) for name, told in arguments.values()]
    return said


def of_responses(answer, stream):
    said = Said()
    response = answer.json if not stream else None
    if stream:
        found = events(answer.body)
        assert [data["sequence_number"] for _, data in found] == list(range(len(found)))
        name, last = found[-1]
        assert name == "response.completed"
        response = last["response"]
        deltas = {"output_text": "", "reasoning_text": ""}
        for name, data in found:
            kind = name.removeprefix("response.").removesuffix(".delta")
            if name.endswith(".delta") and kind in deltas:
                deltas[kind] += data["delta"]
        said.thought, said.text = deltas["reasoning_text"], deltas["output_text"]
    whole = Said()
    for item in response["output"]:
        if item["type"] == "reasoning":
            whole.thought += item["content"][0]["text"]
        elif item["type"] == "message":
            whole.text += item["content"][0]["text"]
        else:
            whole.calls.append((item["name"], json.loads(item["arguments"])))
    assert not stream or (said.thought, said.text) == (whole.thought, whole.text), "the deltas are the whole"
    return whole


def of_messages(answer, stream):
    said, inputs = Said(), []
    blocks = [] if stream else answer.json["content"]
    for name, data in events(answer.body) if stream else ():
        assert name != "error"
        if name == "content_block_start":
            blocks.append(dict(data["content_block"]))
            inputs.append("")
        elif name == "content_block_delta":
            delta = data["delta"]
            for field in ("text", "thinking"):
                if field in delta:
                    blocks[data["index"]][field] += delta[field]
            inputs[data["index"]] += delta.get("partial_json", "")
    for number, block in enumerate(blocks):
        if block["type"] == "thinking":
            said.thought += block["thinking"]
        elif block["type"] == "text":
            said.text += block["text"]
        else:
            said.calls.append((block["name"], json.loads(inputs[number]) if stream else block["input"]))
    return said


def of_ollama(answer, stream):
    said = Said()
    for line in map(json.loads, answer.body.splitlines()):
        assert "error" not in line
        told = line["message"]
        said.thought += told.get("thinking", "")
        said.text += told["content"]
        said.calls += ((call["function"]["name"], call["function"]["arguments"]) for call in told.get("tool_calls", ()))
    return said


ROUTES = {
    "chat": ("/v1/chat/completions", Case.chat, of_chat),
    "responses": ("/v1/responses", Case.responses, of_responses),
    "messages": ("/v1/messages", Case.messages, of_messages),
    "ollama": ("/api/chat", Case.ollama, of_ollama),
    "completions": ("/v1/completions", Case.completions, of_chat),
}


@asynccontextmanager
async def tenants(tmp_path):
    backends = {f"{tenant}/eu-fr-par/{tenant}-1": Echo() for tenant in LIMITS}

    def set_up(made):
        for tenant, policy in LIMITS.items():
            kept = policy.replace("content: none", KEEPS)
            made.tenant(tenant, kept if kept != policy else f"{policy}retention: {{{KEEPS}}}\n")

    async with lab(tmp_path, set_up=set_up, backends=backends) as made:
        await made.gateway.health.report()  # asks each backend what it runs: a call that hears it is judged once more
        yield made


def normal(told):
    """`told` without what differs from call to call: the nonces of placeholders, and how JSON is spelt inside of it."""
    if isinstance(told, dict):
        made = {name: normal(value) for name, value in told.items() if name != "cache_salt"}
        if isinstance(made.get("arguments"), str):
            made["arguments"] = json.loads(made["arguments"])
        return made
    if isinstance(told, list):
        return [normal(each) for each in told]
    return NONCE.sub(r"\1", told) if isinstance(told, str) else told


def findings(made, tenant, path):
    """By label, what the last call found: in its prompt, and in its answer where it came to one."""
    with sqlite3.connect(made.data / "audit" / "log.db") as db:
        query = "select payload from leaf join tree on tree.id = leaf.tree where tenant = ? order by seq desc limit 4"
        last = [json.loads(payload) for (payload,) in db.execute(query, (tenant,))]
    asked = next(number for number, event in enumerate(last) if event.get("endpoint") == path)
    return [(event.get("redaction") or {}).get("counts_by_type") for event in last[: asked + 1]]


async def outcome(made, case, name, stream):
    """Verdict, what the backend got, what the client got, and the findings on record."""
    path, body, read = ROUTES[name]
    backend = made.backends[f"{case.tenant}-1"]
    backend.case = case
    backend.bodies.clear()
    asked = {"model": "small", **body(case), **({"stream": True} if stream else {})}
    answer = await made.post(asked, path, key=f"{case.tenant}/main")
    sent = [normal(each) for each in backend.bodies]
    found = findings(made, case.tenant, path)
    if answer.status != 200:
        code = answer.json["code"] if name == "ollama" else answer.error["code"]
        return {"verdict": code, "sent": sent, "found": found, "said": None}
    broken = b"answer_blocked" in answer.body  # after something was sent
    said = None if broken else read(answer, stream)
    return {"verdict": "answer_blocked" if broken else "allowed", "sent": sent, "found": found, "said": said}


@pytest.mark.campaign
async def test_a_conversation_has_the_same_outcome_on_every_route(tmp_path):
    draw = random.Random(seed_of(SEED))
    seen, chats = set(), []
    async with tenants(tmp_path) as made:
        for number in range(CASES):
            case = Case(draw)
            for stream in (False, True):
                chat = await outcome(made, case, "chat", stream)
                for name in ("responses", "messages", "ollama"):
                    other = await outcome(made, case, name, stream)
                    assert other == chat, (number, name, stream, case.tenant)
                if case.alone:
                    compare_completion(case, chat, await outcome(made, case, "completions", stream))
                if not stream:
                    chats.append((case, chat))
                seen.add((chat["verdict"], stream))
        for tenant in LIMITS:
            theirs = [each for each in chats if each[0].tenant == tenant]
            for first in range(0, len(theirs), LINES):
                await compare_batch(made, tenant, theirs[first : first + LINES])
    assert seen == {(verdict, stream) for verdict in VERDICTS for stream in (False, True)}, "all of them are met"


def compare_completion(case, chat, completion):
    """A completion has a text alone: the same placeholders leave, the same text comes back."""
    assert completion["verdict"] == chat["verdict"]
    for sent, told in zip(completion["sent"], chat["sent"], strict=True):
        assert sent["prompt"] == told["messages"][-1]["content"]
    if completion["said"] is not None:
        assert completion["said"].text == chat["said"].text


class Line:
    """The answer of a line of a batch, as `of_chat` reads answers."""

    def __init__(self, result):
        self.status, self.json = result["response"]["status_code"], result["response"]["body"]


async def compare_batch(made, tenant, cases):
    """`cases` as lines of one batch: each has the outcome that it had as a chat."""
    if not cases:
        return
    backend = made.backends[f"{tenant}-1"]
    backend.bodies.clear()
    backend.cases = {normal_text(chat["sent"]): case for case, chat in cases if chat["sent"]}
    lines = [
        {
            "custom_id": str(number),
            "method": "POST",
            "url": CHAT,
            "body": {"model": "small", **case.chat()},
        }
        for number, (case, _) in enumerate(cases)
    ]
    async with client(made, key=f"{tenant}/main") as sdk:
        _, results = await outcome_of_batch(sdk, await begin(sdk, *lines))
    sent = Counter(normal_text([normal(body)]) for body in backend.bodies)
    assert sent == Counter(normal_text(chat["sent"]) for _, chat in cases if chat["sent"])
    for number, (_, chat) in enumerate(cases):
        line = Line(results[str(number)])
        verdict = "allowed" if line.status == 200 else line.json["error"]["code"]
        assert verdict == chat["verdict"], (number, tenant)
        if line.status == 200:
            assert of_chat(line, False) == chat["said"], (number, tenant)
    backend.cases = {}


def normal_text(sent):
    """What left for a backend, but for its place in the queue."""
    return json.dumps(
        [{name: each for name, each in body.items() if name != "priority"} for body in sent], sort_keys=True
    )
