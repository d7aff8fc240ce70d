"""No request makes the gateway fail: whatever a body holds, it is answered, or refused as the client's mistake.

Over the whole gateway on loopback, under a policy that redacts and under limits in tokens and in money. A seeded sample
in every run, 50,000 requests for each endpoint in `make campaign`.
"""

import asyncio
import json
import random
from collections import Counter

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis import GenerationMode

from backend.wire import FIELDS
from gateway.apis.endpoints import ENDPOINTS
from gateway.openai.endpoints import ENDPOINTS as MODELLED
from tests.conftest import CAMPAIGN, seed_of
from tests.fakes.lab import POLICY, lab

CASES = 50_000 if CAMPAIGN else 120
SCHEMA_CASES = 500 if CAMPAIGN else 3
SEED = 20261129
AT_ONCE = 8
REDACTION = POLICY[POLICY.index("redaction:") : POLICY.index("retention:")]
LIMITED = POLICY + "limits: {rpm: 100000000, tpm: 100000000000000, eur_per_month: 1000000}\n"

NUMBERS = (
    0,
    1,
    -1,
    2,
    3,
    20,
    128,
    129,
    2**31 - 1,
    2**31,
    2**63,
    2**64,
    10**30,
    10**400,
    -(10**400),
    0.0,
    -0.0,
    0.5,
    1.5,
    1e308,
    -1e308,
    5e-324,
)
TEXTS = (
    "",
    "x",
    "user",
    "assistant",
    "tool",
    "\0",
    "\u200b",
    "\ud83d\ude00",
    "é" * 300,
    "carl@example.org",
    "DE89370400440532013000",
    "{",
    "]",
    '{"a": 1}',
    "text",
    "image_url",
    "function",
    "json_schema",
    "../..",
    "a" * 5000,
)
RAW = (
    b"",
    b"{",
    b"null",
    b"[]",
    b'"x"',
    b"NaN",
    b"\xff\xfe",
    b"\xef\xbb\xbf{}",
    b"[" * 3000,
    b'{"model":"small"',
    b'{"model":NaN}',
    b'{"model":"small","messages":[{"role":"user","content":"\\ud800"}]}',
    b'{"model":"small","x":1e999,"prompt":"x","input":"x"}',
    b'{"model":"small","x":Infinity,"prompt":"x","input":"x"}',
    b'{"a":1,"a":2}',
    b'{"model":"small","model":5}',
)
HEADERS = (
    {},
    {},
    {},
    {},
    {"x-domicile-subject": "Anna"},
    {"x-domicile-subject": "a" * 600},
    {"x-domicile-debug": "upstream"},
    {"content-encoding": "gzip"},
    {"traceparent": "00-zz"},
    {"content-type": "text/plain"},
    {"idempotency-key": "x"},
)
NAMES = sorted(
    FIELDS
    | {
        "metadata",
        "safety_identifier",
        "max_new_tokens",
        "n_predict",
        "tools",
        "input",
        "instructions",
        "text",
        "format",
        "summary",
        "encrypted_content",
        "call_id",
        "system",
        "thinking",
        "tool_use_id",
        "input_schema",
        "cache_control",
        "output_config",
        "tool_choice",
        "functions",
        "documents",
        "options",
        "parallel_tool_calls",
        "conversation_id",
        "input_type",
        "suffix",
        "extra",
        "__proto__",
        "model_extra",
        "",
    }
)
BASES = {
    "chat": {"model": "small", "messages": [{"role": "user", "content": "write to carl@example.org"}]},
    "completions": {"model": "small", "prompt": "write to carl@example.org"},
    "embeddings": {"model": "small", "input": "write to carl@example.org"},
    "responses": {
        "model": "small", "instructions": "x", "max_output_tokens": 9, "metadata": {"a": "b"}, "stream": False,
        "input": [
            {"role": "user", "content": [{"type": "input_text", "text": "write to carl@example.org"}]},
            {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "x"}]},
            {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c", "output": "x"},
        ],
        "tools": [{"type": "function", "name": "f", "parameters": {"type": "object"}, "strict": True}],
        "tool_choice": "auto", "reasoning": {"effort": "low"}, "include": ["reasoning.encrypted_content"],
        "text": {"format": {"type": "json_schema", "name": "n", "schema": {"type": "object"}}},
    },
    "messages": {
        "model": "small", "system": [{"type": "text", "text": "x"}], "max_tokens": 9, "metadata": {"user_id": "u"},
        "messages": [
            {"role": "user", "content": "write to carl@example.org"},
            {"role": "assistant", "content": [
                {"type": "thinking", "thinking": "x", "signature": ""},
                {"type": "tool_use", "id": "t", "name": "f", "input": {"a": 1}}]},
            {"role": "user", "content": [
                {"type": "tool_result", "tool_use_id": "t", "content": [{"type": "text", "text": "x"}]},
                {"type": "text", "text": "x", "cache_control": {"type": "ephemeral"}}]},
        ],
        "tools": [{"name": "f", "input_schema": {"type": "object"}}], "tool_choice": {"type": "auto"},
        "thinking": {"type": "enabled", "budget_tokens": 1024}, "stop_sequences": ["x"], "top_k": 5,
    },
    "count_tokens": {
        "model": "small", "system": "x", "messages": [{"role": "user", "content": [{"type": "text", "text": "x"}]}],
        "tools": [{"name": "f", "input_schema": {"type": "object"}}],
    },
    "tokenize": {"model": "small", "prompt": "write to carl@example.org", "add_special_tokens": True},
    "detokenize": {"model": "small", "tokens": [1, 2, 3]},
    "rerank": {"model": "small", "query": "x", "documents": ["carl@example.org", {"text": "x"}], "top_n": 1},
    "score": {"model": "small", "text_1": "x", "text_2": ["carl@example.org", "x"]},
    "ollama_chat": {
        "model": "small", "stream": False, "think": True, "format": {"type": "object"}, "keep_alive": "5m",
        "messages": [
            {"role": "user", "content": "write to carl@example.org"},
            {"role": "assistant", "thinking": "x", "tool_calls": [{"function": {"name": "f", "arguments": {"a": 1}}}]},
            {"role": "tool", "tool_name": "f", "content": "x"},
        ],
        "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}],
        "options": {"temperature": 0.5, "num_predict": 9, "stop": ["x"], "num_ctx": 4096},
    },
    "ollama_generate": {
        "model": "small", "stream": False, "prompt": "write to carl@example.org", "system": "x", "format": "json",
        "options": {"seed": 5, "num_predict": -1},
    },
    "ollama_embed": {"model": "small", "input": ["write to carl@example.org"], "truncate": True, "dimensions": 2},
}  # fmt: skip


def value(chance, depth=0):
    """Any JSON value, of kinds that parsers and arithmetic stumble over."""
    kind = chance.randrange(9 if depth < 3 else 5)
    if kind < 2:
        return chance.choice(NUMBERS)
    if kind < 4:
        return chance.choice(TEXTS)
    if kind == 4:
        return chance.choice((None, True, False))
    if kind < 7:
        return [value(chance, depth + 1) for _ in range(chance.randrange(4))]
    return {chance.choice((*NAMES, *TEXTS)): value(chance, depth + 1) for _ in range(chance.randrange(4))}


def mutated(chance, body):
    """One thing in it replaced, removed or added, at any depth."""
    spots = [body]
    while (inner := chance.choice(list(spots[-1].values() if isinstance(spots[-1], dict) else spots[-1]) or [0])) and (
        isinstance(inner, dict | list) and inner and chance.random() < 0.6
    ):
        spots.append(inner)
    spot = spots[-1]
    if isinstance(spot, list):
        spot[chance.randrange(len(spot))] = value(chance)
    elif chance.random() < 0.15:
        spot.pop(chance.choice(list(spot)), None)
    else:
        spot[chance.choice((*NAMES, *spot)) if chance.random() < 0.8 else chance.choice(TEXTS)] = value(chance)


def drawn(chance, endpoint):
    if chance.random() < 0.05:
        return chance.choice(RAW)
    body = json.loads(json.dumps(BASES[endpoint.name]))
    for _ in range(chance.choice((0, 1, 1, 1, 2, 2, 3, 5))):
        if body:
            mutated(chance, body)
    raw = json.dumps(body, ensure_ascii=chance.random() < 0.5).encode("utf-8", "surrogatepass")
    if chance.random() < 0.05:
        at = chance.randrange(len(raw))
        raw = raw[:at] + chance.randbytes(chance.randrange(3)) + raw[at + chance.randrange(3) :]
    return raw


def gateway(tmp_path, endpoint=None):
    """Token ids, of which some routes consist, are refused where prompts are redacted."""
    policy = LIMITED if endpoint is None or endpoint.name != "detokenize" else LIMITED.replace(REDACTION, "")
    prices = {"small": {"input_eur_per_million": 1, "output_eur_per_million": 2}}
    return lab(tmp_path, set_up=lambda made: made.tenant("acme", policy), prices=prices)


@pytest.mark.campaign
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("endpoint", ENDPOINTS, ids=lambda endpoint: endpoint.name)
async def test_no_body_makes_the_gateway_fail(tmp_path, endpoint, record_property):
    seed = seed_of(SEED)
    record_property("examples", CASES)
    record_property("seed", seed)
    print(f"seed {seed}")  # shown where it fails
    chance, seen, failed = random.Random(seed), Counter(), []

    async def ask(made):
        raw, headers = drawn(chance, endpoint), chance.choice(HEADERS)
        answer = await made.post(None, path=endpoint.path, raw=raw, headers=headers)
        seen[answer.status] += 1
        if answer.status >= 500 or b'"internal_error"' in answer.body:
            failed.append((answer.status, answer.body[:300], raw[:2000], headers))

    async with gateway(tmp_path, endpoint) as made:
        for first in range(0, CASES, AT_ONCE):
            await asyncio.gather(*(ask(made) for _ in range(min(AT_ONCE, CASES - first))))
    for status, count in seen.items():
        record_property(f"status {status}", count)
    assert failed == []
    assert seen[200] > CASES / 20 and seen[400] > CASES / 20  # both sides of the border are tried


def document():
    """The data plane as an OpenAPI document, made of the models that requests are checked by."""
    paths, schemas = {}, {}
    for endpoint in MODELLED:
        schema = endpoint.request_type.model_json_schema(ref_template="#/components/schemas/{model}")
        schemas |= schema.pop("$defs", {})
        schema["properties"]["model"] = {"const": "small"}
        paths[endpoint.path] = {
            "post": {
                "requestBody": {"required": True, "content": {"application/json": {"schema": schema}}},
                "responses": {"200": {"description": "an answer"}, "4XX": {"description": "an error"}},
            }
        }
    info = {"title": "data plane", "version": "1"}
    return {"openapi": "3.1.0", "info": info, "paths": paths, "components": {"schemas": schemas}}


@pytest.mark.campaign
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("mode", GenerationMode)
@pytest.mark.parametrize("endpoint", MODELLED, ids=lambda endpoint: endpoint.name)
async def test_what_the_schema_says_or_denies_never_makes_the_gateway_fail(tmp_path, endpoint, mode, record_property):
    record_property("examples", SCHEMA_CASES)
    schema = schemathesis.openapi.from_dict(document())
    bodies = []

    @settings(
        max_examples=SCHEMA_CASES, phases=[Phase.generate], suppress_health_check=list(HealthCheck), database=None
    )
    @given(schema[endpoint.path]["POST"].as_strategy(generation_mode=mode))
    def collect(case):
        bodies.append(case.body)

    await asyncio.to_thread(collect)
    async with gateway(tmp_path) as made:
        statuses = Counter()
        for body in bodies:
            raw = json.dumps(body if isinstance(body, dict | list | str | int | float | bool | None) else str(body))
            answer = await made.post(None, path=endpoint.path, raw=raw.encode("utf-8", "surrogatepass"))
            statuses[answer.status] += 1
            assert answer.status < 500, (answer.body, body)
    assert statuses
