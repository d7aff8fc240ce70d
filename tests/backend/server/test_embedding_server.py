"""POST /v1/embeddings of a real backend on loopback, by plain HTTP and by OpenAI's own client."""

import asyncio
import base64
import io
import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
import openai
import pytest
import torch

from tests.backend.embedding_models import TEXTS, reference, write_decoder, write_encoder
from tests.backend.running import Backend
from tests.backend.server.test_app import metric, until_idle
from tests.backend.tiny import tiny_model, write_folder

MODEL = "vectors"
OPTIONS = ["--served-name", MODEL, "--max-num-seqs", "4", "--max-waiting", "4", "--max-num-batched-tokens", "32"]


@pytest.fixture(scope="module")
def theirs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    folder = tmp_path_factory.mktemp("embedding")
    return folder, write_decoder(folder)


@pytest.fixture(scope="module")
def backend(theirs: tuple[Path, Any], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Backend]:
    with Backend(tmp_path_factory.mktemp("log") / "log", "--model", str(theirs[0]), *OPTIONS) as running:
        yield running


@pytest.fixture
async def http(backend: Backend) -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(backend.url) as session:
        yield session


async def ask(http: aiohttp.ClientSession, path: str = "/v1/embeddings", **body: Any) -> tuple[int, dict[str, Any]]:
    data = io.BytesIO(json.dumps({"model": MODEL, **body}).encode())
    async with http.post(path, data=data) as answer:
        return answer.status, await answer.json()


async def vectors(http: aiohttp.ClientSession, **body: Any) -> list[Any]:
    status, answer = await ask(http, **body)
    assert status == 200, answer
    assert [each["index"] for each in answer["data"]] == list(range(len(answer["data"])))
    return [each["embedding"] for each in answer["data"]]


def tokens(folder: Path, text: str) -> list[int]:
    from backend.models.checkpoints.checkpoint import Checkpoint

    return Checkpoint(folder).embedding_text.encode(text)


def test_openais_client_gets_what_transformers_computes(backend: Backend, theirs: tuple[Path, Any]) -> None:
    folder, model = theirs
    with openai.OpenAI(base_url=f"{backend.url}/v1", api_key="none", max_retries=0) as client:
        answer = client.embeddings.create(model=MODEL, input=TEXTS)  # it asks for base64 by itself
    counts = []
    for text, found in zip(TEXTS, answer.data, strict=True):
        ids = tokens(folder, text)
        counts.append(len(ids))
        torch.testing.assert_close(
            torch.tensor(found.embedding), reference(model, ids, "lasttoken"), atol=1e-4, rtol=1e-4
        )
    assert (answer.usage.prompt_tokens, answer.usage.total_tokens, answer.model) == (sum(counts), sum(counts), MODEL)


async def test_base64_holds_the_same_floats(http: aiohttp.ClientSession) -> None:
    (floats,) = await vectors(http, input="the rain")
    (packed,) = await vectors(http, input="the rain", encoding_format="base64")
    assert np.frombuffer(base64.b64decode(packed), "<f4").tolist() == floats
    assert abs(np.linalg.norm(floats) - 1) < 1e-6


async def test_fewer_dimensions_are_the_first_ones_at_length_one(http: aiohttp.ClientSession) -> None:
    (whole,) = await vectors(http, input="the rain")
    (cut,) = await vectors(http, input="the rain", dimensions=8)
    expected = np.array(whole[:8]) / np.linalg.norm(whole[:8])
    assert len(cut) == 8
    assert np.allclose(cut, expected, atol=1e-6)


async def test_token_ids_are_taken_as_they_are(http: aiohttp.ClientSession, theirs: tuple[Path, Any]) -> None:
    ids = tokens(theirs[0], "the rain")
    by_text = await vectors(http, input=["the rain", "wind"])
    assert np.allclose(await vectors(http, input=ids), by_text[:1], atol=1e-6)
    assert np.allclose(await vectors(http, input=[ids, tokens(theirs[0], "wind")]), by_text, atol=1e-6)


async def test_2048_texts_of_one_call_come_in_order_through_a_queue_of_eight(http: aiohttp.ClientSession) -> None:
    texts = [[3 + i % 200, 5 + i // 200] for i in range(2048)]
    found = await vectors(http, input=texts)
    assert len(found) == 2048
    for i in (0, 7, 8, 1000, 2047):
        assert np.allclose(found[i], (await vectors(http, input=texts[i]))[0], atol=1e-5)


@pytest.mark.parametrize(
    ("body", "param", "code"),
    [
        ({"input": "x " * 300}, "input", "context_length_exceeded"),
        ({"input": ["a", "x " * 300]}, "input[1]", "context_length_exceeded"),
        ({"input": [3] * 257}, "input", "context_length_exceeded"),
        ({"input": [320]}, "input", None),
        ({"input": [[1], [-1]]}, "input[1]", None),
        ({"input": "a", "dimensions": 49}, "dimensions", None),
        ({"input": "a", "dimensions": 0}, "dimensions", None),
        ({"input": "a", "encoding_format": "hex"}, "encoding_format", None),
        ({"input": ["a"] * 2049}, "input", None),
        ({"input": []}, "input", None),
        ({"input": ""}, "input", None),
        ({"input": ["a", ""]}, "input", None),
        ({"input": "a", "temperature": 0.5}, "temperature", "unsupported_parameter"),
        ({"input": "a", "max_tokens": 3}, "max_tokens", "unsupported_parameter"),
        ({"input": "a", "stream": True}, "stream", None),
        ({"input": "a", "pooling": "max"}, "pooling", "unknown_parameter"),
        ({}, "input", None),
    ],
)
async def test_what_cannot_be_answered_is_a_400_that_names_it(
    http: aiohttp.ClientSession, body: dict[str, Any], param: str, code: str | None
) -> None:
    status, answer = await ask(http, **body)
    assert (status, answer["error"]["code"]) == (400, code), answer
    assert answer["error"]["param"].startswith(param), answer
    assert "x x" not in json.dumps(answer)


async def test_a_text_as_long_as_the_context_is_answered(http: aiohttp.ClientSession) -> None:
    assert len(await vectors(http, input=[3] * 256)) == 1


async def test_another_model_is_not_here(http: aiohttp.ClientSession) -> None:
    assert (await ask(http, model="other", input="a"))[1]["error"]["code"] == "model_not_found"


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
async def test_a_model_of_vectors_refuses_to_write_by_name(http: aiohttp.ClientSession, path: str) -> None:
    status, answer = await ask(http, path, messages=[{"role": "user", "content": "hi"}], prompt="hi")
    assert (status, answer["error"]["code"]) == (400, "embeddings_only")
    assert "'vectors' makes embeddings" in answer["error"]["message"]


async def test_a_model_that_writes_refuses_vectors_by_name(tmp_path: Path) -> None:
    write_folder(tmp_path / "tiny", tiny_model())
    with Backend(tmp_path / "log", "--model", str(tmp_path / "tiny"), "--served-name", MODEL) as running:
        async with aiohttp.ClientSession(running.url) as http:
            status, answer = await ask(http, input="a")
            async with http.post("/v1/rerank", json={"model": MODEL, "query": "a", "documents": ["b"]}) as ranking:
                refused = await ranking.json()
    assert (status, answer["error"]["code"]) == (400, "no_embeddings")
    assert "'vectors' writes text" in answer["error"]["message"]
    assert (ranking.status, refused["error"]["code"]) == (400, "no_scores")
    assert "scores no pairs of texts" in refused["error"]["message"]


async def test_a_client_that_leaves_takes_its_texts_along(http: aiohttp.ClientSession) -> None:
    before = await metric(http, "domicile_backend_steps_total")
    call = asyncio.create_task(ask(http, input=[[3 + i % 200] * 250 for i in range(2000)]))
    while await metric(http, "domicile_backend_steps_total") < before + 5:
        assert not call.done()
        await asyncio.sleep(0.01)
    call.cancel()
    await asyncio.gather(call, return_exceptions=True)
    await until_idle(http)
    steps = await metric(http, "domicile_backend_steps_total")
    await asyncio.sleep(0.3)
    assert await metric(http, "domicile_backend_steps_total") == steps


async def test_a_deadline_ends_a_call_between_its_texts(http: aiohttp.ClientSession) -> None:
    status, answer = await ask(http, input=[[3 + i % 200] * 250 for i in range(2000)], deadline_s=0.2)
    assert (status, answer["error"]["code"]) == (504, "deadline_exceeded")
    await until_idle(http)


async def test_a_large_call_does_not_keep_an_urgent_one_waiting(http: aiohttp.ClientSession) -> None:
    many = asyncio.create_task(ask(http, input=[[3 + i % 200] * 100 for i in range(400)], priority=1))
    await asyncio.sleep(0.2)
    for _ in range(20):  # while there is no place at all, a 503 says so
        status, _answer = await ask(http, input="wind", priority=-1)
        if status == 200:
            break
        assert status == 503
        await asyncio.sleep(0.05)
    assert status == 200
    assert not many.done()
    assert (await many)[0] == 200


async def test_what_was_read_is_counted(http: aiohttp.ClientSession) -> None:
    before = await metric(http, "gen_ai_server_request_duration_seconds_count")
    await vectors(http, input="wind")
    assert await metric(http, "gen_ai_server_request_duration_seconds_count") == before + 1


async def test_it_sleeps_wakes_and_scrubs_as_any_backend(http: aiohttp.ClientSession) -> None:
    before = await vectors(http, input="wind")
    async with http.post("/sleep", json={"grace_s": 1}) as answer:
        assert (answer.status, (await answer.json())["status"]) == (200, "asleep")
    assert (await ask(http, input="wind"))[1]["error"]["code"] == "backend_asleep"
    async with http.post("/wake") as answer:
        assert answer.status == 200
    assert np.allclose(await vectors(http, input="wind"), before, atol=1e-6)
    async with http.post("/scrub") as answer:
        assert (await answer.json())["residue_bytes"] == 0


@pytest.mark.parametrize(
    ("texts", "status", "code"), [(8, 200, None), (100, 503, "backend_leaving")], ids=["one part", "several"]
)
async def test_at_sigterm_a_part_that_began_ends_and_what_was_not_begun_is_for_another_backend(
    theirs: tuple[Path, Any], tmp_path: Path, texts: int, status: int, code: str | None
) -> None:
    with Backend(tmp_path / "log", "--model", str(theirs[0]), *OPTIONS) as running:
        async with aiohttp.ClientSession(running.url) as http:
            call = asyncio.create_task(ask(http, input=[[3 + i % 200] * 250 for i in range(texts)]))
            begun = await metric(http, "domicile_backend_steps_total")
            while await metric(http, "domicile_backend_steps_total") < begun + 16:  # of 64 for eight; the first is done
                await asyncio.sleep(0.002)
            stopped = asyncio.create_task(asyncio.to_thread(running.stop))
            found, answer = await call
        assert (found, answer.get("error", {}).get("code"), len(answer.get("data", ()))) == (
            status, code, texts if code is None else 0,
        )  # fmt: skip
        assert await stopped == 0


async def test_an_encoder_is_served_alike(tmp_path: Path) -> None:
    (tmp_path / "bert").mkdir()
    theirs = write_encoder(tmp_path / "bert", normalised=False)
    with Backend(tmp_path / "log", "--model", str(tmp_path / "bert"), *OPTIONS) as running:
        async with aiohttp.ClientSession(running.url) as http:
            (found,) = await vectors(http, input="the rain")
            status, answer = await ask(http, input="a " * 200)
    expected = reference(theirs, tokens(tmp_path / "bert", "the rain"), "mean", normalised=False)
    torch.testing.assert_close(torch.tensor(found), expected, atol=1e-4, rtol=1e-4)
    assert (status, answer["error"]["code"]) == (400, "context_length_exceeded")


async def test_a_project_with_a_small_share_has_its_many_texts_part_by_part(
    theirs: tuple[Path, Any], tmp_path: Path
) -> None:
    with Backend(tmp_path / "log", "--model", str(theirs[0]), *OPTIONS, "--max-per-project", "2") as running:
        async with aiohttp.ClientSession(running.url) as http:
            assert len(await vectors(http, input=TEXTS)) == len(TEXTS)
