"""POST /v1/rerank and /v1/score of a real backend on loopback, and their answers read as the gateway reads them."""

import asyncio
import io
import json
import math
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from gateway.apis.endpoints import RERANK, SCORE
from gateway.openai.checked_call import parse_call
from tests.backend.embedding_models import scored, write_scorer
from tests.backend.running import Backend

MODEL = "ranker"
OPTIONS = ["--served-name", MODEL, "--max-num-seqs", "4", "--max-waiting", "8"]
TEXTS = ["the rain in the sea", "wind", "a b c", "the hill"]


@pytest.fixture(scope="module")
def theirs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    folder = tmp_path_factory.mktemp("scoring")
    return folder, write_scorer(folder)


@pytest.fixture(scope="module")
def backend(theirs: tuple[Path, Any], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Backend]:
    with Backend(tmp_path_factory.mktemp("log") / "log", "--model", str(theirs[0]), *OPTIONS) as running:
        yield running


@pytest.fixture
async def http(backend: Backend) -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(backend.url) as session:
        yield session


async def ask(http: aiohttp.ClientSession, path: str, **body: Any) -> tuple[int, dict[str, Any]]:
    data = io.BytesIO(json.dumps({"model": MODEL, **body}).encode())
    async with http.post(path, data=data) as answer:
        return answer.status, await answer.json()


def expected(theirs: tuple[Path, Any], one: str, other: str) -> float:
    return 1 / (1 + math.exp(-scored(theirs[1], theirs[0], one, other)))


@pytest.mark.parametrize("path", ["/v1/rerank", "/v2/rerank", "/rerank"])
async def test_documents_are_ranked_as_transformers_scores_them(
    http: aiohttp.ClientSession, theirs: tuple[Path, Any], path: str
) -> None:
    status, answer = await ask(http, path, query="the wind", documents=TEXTS)
    assert status == 200
    scores = [expected(theirs, "the wind", text) for text in TEXTS]
    order = sorted(range(len(TEXTS)), key=lambda at: -scores[at])
    assert [each["index"] for each in answer["results"]] == order
    for each in answer["results"]:
        assert abs(each["relevance_score"] - scores[each["index"]]) < 1e-4
        assert each["document"]["text"] == TEXTS[each["index"]]
    assert answer["usage"]["total_tokens"] > 50
    _, best = await ask(http, path, query="the wind", documents=TEXTS, top_n=2)
    assert [each["index"] for each in best["results"]] == order[:2]


async def test_one_text_is_scored_with_each_or_pair_by_pair(
    http: aiohttp.ClientSession, theirs: tuple[Path, Any]
) -> None:
    _, each = await ask(http, "/v1/score", text_1="the wind", text_2=TEXTS)
    _, pairs = await ask(http, "/score", text_1=["the wind"] * len(TEXTS), text_2=TEXTS)
    assert [one["index"] for one in each["data"]] == [*range(len(TEXTS))]
    for one, other in zip(each["data"], pairs["data"], strict=True):
        assert abs(one["score"] - other["score"]) < 1e-5
    assert abs(each["data"][1]["score"] - expected(theirs, "the wind", TEXTS[1])) < 1e-4
    status, refused = await ask(http, "/score", text_1=["a", "b"], text_2=TEXTS)
    assert status == 400 and "differ in length" in refused["error"]["message"]


async def test_the_gateway_reads_both_answers(http: aiohttp.ClientSession) -> None:
    body = {"model": MODEL, "query": "the wind", "documents": TEXTS}
    call = parse_call(RERANK, json.dumps(body).encode())
    for path, endpoint, asked in (
        ("/v1/rerank", RERANK, call.body),
        ("/v1/score", SCORE, {"model": MODEL, "text_1": "x", "text_2": "y"}),
    ):
        async with http.post(path, data=io.BytesIO(json.dumps(asked).encode())) as answer:
            read = endpoint.answer.read(await answer.read())
        assert read.usage is not None and read.usage.prompt_tokens == read.usage.total_tokens > 0
        if endpoint is RERANK:
            assert call.translation is not None
            assert len(json.loads(call.translation.answer(read.body, read.usage))["results"]) == len(TEXTS)


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/v1/rerank", {"query": "a", "documents": []}, "documents"),
        ("/v1/rerank", {"query": "a"}, "documents"),
        ("/v1/rerank", {"query": "a", "documents": ["b", "c " * 200]}, "documents[1]"),
        ("/v1/rerank", {"query": "a [SEP] b", "documents": ["c"]}, "documents[0]"),
        ("/v1/rerank", {"query": "a " * 200, "documents": ["c"], "truncate_prompt_tokens": -1}, "documents[0]"),
        ("/v1/rerank", {"query": "a", "documents": ["c"], "temperature": 1}, "temperature"),
        ("/v1/score", {"text_1": "a", "text_2": "b", "truncate_prompt_tokens": 0}, "truncate_prompt_tokens"),
        ("/v1/embeddings", {"input": "x"}, "model"),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}]}, "model"),
    ],
)
async def test_what_cannot_be_scored_is_refused_by_its_place(
    http: aiohttp.ClientSession, path: str, body: dict[str, Any], param: str
) -> None:
    status, answer = await ask(http, path, **body)
    assert status == 400 and answer["error"]["param"] == param, answer


async def test_many_documents_take_their_turn_and_the_list_says_what_the_model_can(http: aiohttp.ClientSession) -> None:
    found = await asyncio.gather(*(ask(http, "/rerank", query="sea", documents=TEXTS * 20) for _ in range(2)))
    assert {status for status, _ in found} <= {200, 503} and any(status == 200 for status, _ in found)
    cut = {"query": "a", "documents": ["c " * 200], "truncate_prompt_tokens": -1}
    assert (await ask(http, "/v1/rerank", **cut))[0] == 200
    async with http.get("/v1/models") as answer:
        [model] = (await answer.json())["data"]
    assert model["capabilities"]["rerank"] and not model["capabilities"]["embeddings"] and model["max_model_len"] == 128
