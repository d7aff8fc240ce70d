"""The form of an answer over the routes of a real backend: all its words, and what hostile ones cost."""

import asyncio
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import pytest_asyncio

from backend.models.checkpoints.checkpoint import Checkpoint
from tests.backend.asked import Asked, asked


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def backend(folder: Path) -> AsyncIterator[Asked]:
    async with asked(folder) as one:
        yield one


pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.mark.parametrize(
    ("asked_for", "pattern"),
    [
        ({"guided_regex": "[0-9]{4}"}, "[0-9]{4}"),
        ({"guided_choice": ["yes", 'n"o']}, 'yes|n"o'),
        ({"guided_choice": ["\x7f\x00"]}, "\x7f\x00"),
        ({"guided_grammar": 'root ::= "a" [0-9] "b"'}, "a[0-9]b"),
        ({"guided_grammar": 'start: "x" /[yz]/'}, "x[yz]"),
        ({"guided_json": {"type": "boolean"}}, "true|false"),
        ({"guided_json": '{"enum": [1, 2]}'}, "1|2"),
        ({"structured_outputs": {"regex": "a{2,3}"}}, "aa|aaa"),
        ({"structured_outputs": {"choice": ["p", "q"]}}, "p|q"),
        ({"structured_outputs": {"json": {"const": "k"}}}, '"k"'),
    ],
)
async def test_the_form_of_an_answer_in_all_its_words(backend: Asked, asked_for: dict[str, Any], pattern: str) -> None:
    answer = await backend.complete("the sea", max_tokens=20, ignore_eos=True, temperature=1.5, **asked_for)
    (choice,) = answer["choices"]
    assert choice["finish_reason"] == "stop"
    assert re.fullmatch(pattern, choice["text"])


def nested(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(depth):
        schema = {"type": "object", "properties": {"x": schema}}
    return schema


HOSTILE: dict[str, dict[str, Any]] = {
    "deep": {"guided_json": nested(40)},
    "large": {"guided_json": {"enum": ["x" * 100] * 2000}},
    "wide": {
        "guided_json": {"allOf": [{"anyOf": [{"type": "string", "pattern": f"^a{i}b*$"} for i in range(30)]}] * 10}
    },
    "remote": {"guided_json": {"$ref": "http://127.0.0.1:1/schema"}},
    "not a schema": {"guided_json": {"type": 5}},
    "unsupported": {"guided_json": {"type": "array", "uniqueItems": True}},
    "not JSON": {"guided_json": "{"},
    "too many choices": {"guided_choice": [str(i) for i in range(1001)]},
    "a long regex": {"guided_regex": "a" * 70_000},
    "a grammar without a start": {"guided_grammar": 'a: "x"'},
    "an unknown word": {"structured_outputs": {"xml": "a"}},
}


@pytest.mark.parametrize("name", HOSTILE)
async def test_a_hostile_form_is_refused_quickly_and_not_quoted(backend: Asked, name: str) -> None:
    body = HOSTILE[name]
    began = asyncio.get_running_loop().time()
    status, answer = await backend.post("/v1/completions", prompt="x", **body)
    assert status == 400, answer
    assert asyncio.get_running_loop().time() - began < 5
    assert answer["error"]["param"].startswith(next(iter(body)))
    assert "127.0.0.1" not in answer["error"]["message"] and "xxx" not in answer["error"]["message"]


NAMED: dict[str, tuple[dict[str, Any], str]] = {
    "oneOf that overlaps": (
        {"oneOf": [{"type": "integer", "minimum": 0}, {"type": "integer", "maximum": 9}]}, "oneOf"),
    "oneOf of objects that overlap": (
        {"oneOf": [{"type": "object", "required": ["xxx"]}, {"type": "object", "required": ["b"]}]}, "oneOf"),
    "not": ({"not": {"type": "string"}}, '"not"'),
    "if and then": ({"if": {"type": "string"}, "then": {"minLength": 3}}, '"if", "then"'),
    "uniqueItems": ({"type": "array", "uniqueItems": True}, "uniqueItems"),
    "contains": ({"type": "array", "contains": {"const": "xxx"}}, "contains"),
    "propertyNames": ({"type": "object", "propertyNames": {"pattern": "^xxx"}}, "propertyNames"),
    "dependentSchemas": ({"type": "object", "dependentSchemas": {"a": {}}}, "dependentSchemas"),
    "unevaluatedProperties": ({"type": "object", "unevaluatedProperties": False}, "unevaluatedProperties"),
    "an unknown format": ({"type": "string", "format": "xxx"}, "format"),
    "look-ahead": ({"type": "string", "pattern": "^(?=xxx)b"}, "pattern"),
    "a reference to nothing": ({"$ref": "#/$defs/xxx"}, r"\$ref"),
    "a reference elsewhere": ({"$ref": "http://127.0.0.1:1/xxx"}, r"\$ref"),
    "a number beyond numbers": ({"type": "number", "minimum": 1e-300, "maximum": 1e300}, "maximum"),
    "nothing at all": ({"type": "integer", "minimum": 5, "maximum": 3}, "nothing can match"),
    "patterns of one name": (
        {"type": "object", "patternProperties": {"^a": {}, "^ab": {"const": "xxx"}}}, "patternProperties"),
    "fewest properties": ({"type": "object", "properties": {"xxx": {}}, "minProperties": 2}, "minProperties"),
}  # fmt: skip


@pytest.mark.parametrize("name", NAMED)
async def test_a_schema_that_cannot_be_enforced_is_refused_naming_the_keyword(backend: Asked, name: str) -> None:
    schema, keyword = NAMED[name]
    status, answer = await backend.post("/v1/completions", prompt="x", guided_json=schema)
    assert (status, answer["error"]["param"]) == (400, "guided_json")
    assert re.search(keyword, answer["error"]["message"])
    assert "xxx" not in answer["error"]["message"]


ENDLESS: dict[str, dict[str, Any]] = {
    "a reference to itself": {"$ref": "#"},
    "two that refer to each other": {
        "$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}},
    "all of itself": {"allOf": [{"$ref": "#"}]},
    "a tree": {"$ref": "#/$defs/n", "$defs": {"n": {"type": "object", "properties": {
        "kids": {"type": "array", "items": {"$ref": "#/$defs/n"}}}, "required": ["kids"]}}},
    "a deep object": nested(30),
    "an array without end": {"type": "array", "items": {"type": "integer"}, "minItems": 10**9},
    "a text without end": {"type": "string", "minLength": 10**5, "maxLength": 10**6},
    "thousands of properties": {"type": "object", "properties": {f"p{i}": {"type": "string"} for i in range(1500)}},
    "a pattern that runs away": {"type": "string", "pattern": "^(a|aa)+(b{1,500}c){1,500}$"},
    "thousands of values": {"enum": [f"v{i * 7919 % 10007:05d}" for i in range(6000)]},
}  # fmt: skip


@pytest.mark.parametrize("name", ENDLESS)
async def test_a_schema_without_end_costs_a_bounded_time_and_memory(backend: Asked, name: str) -> None:
    engine, server = psutil.Process(backend.engine.pid), psutil.Process()
    before = engine.memory_info().rss + server.memory_info().rss
    cpu = sum(sum(p.cpu_times()[:2]) for p in (engine, server))
    body = {"guided_json": ENDLESS[name], "max_tokens": 40, "temperature": 1.5, "seed": 1}
    hostile = backend.post("/v1/completions", prompt="x", **body)
    (status, answer), innocent = await asyncio.wait_for(asyncio.gather(hostile, backend.chat(max_tokens=20)), 20)
    assert status == 200 or answer["error"]["code"] in ("grammar_too_complex", "model_failed", None), answer
    assert innocent["usage"]["completion_tokens"] == 20
    assert engine.memory_info().rss + server.memory_info().rss - before < 200 << 20
    assert sum(sum(p.cpu_times()[:2]) for p in (engine, server)) - cpu < 10


@pytest.mark.parametrize("pattern", ["(a*)*b", "((a{1,1000}){1,1000}){1,1000}", "(.*a.{20}){20}", "(a|a)*" * 50])
async def test_a_hostile_regex_ends_for_its_own_request_alone(backend: Asked, pattern: str) -> None:
    hostile = backend.post("/v1/completions", prompt="x", guided_regex=pattern, max_tokens=40, temperature=1.5, seed=1)
    (status, answer), innocent = await asyncio.wait_for(asyncio.gather(hostile, backend.chat(max_tokens=20)), 20)
    assert status == 200 or answer["error"]["code"] in ("grammar_too_complex", "model_failed")
    assert innocent["usage"]["completion_tokens"] == 20


async def test_json_does_not_run_away_in_blanks(backend: Asked) -> None:
    space = Checkpoint(Path(backend.engine.config.model)).text.encode_completion(" ")[-1]
    answer = await backend.chat(
        response_format={"type": "json_object"}, max_tokens=300, logit_bias={str(space): 100}, temperature=1.0, seed=1
    )
    assert " " * 33 not in answer["choices"][0]["message"]["content"].split('"')[0]
