"""Adapters over HTTP, with a backend as a user starts it: one engine, one on two ranks, two engines."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from backend.models.checkpoints.checkpoint import Checkpoint
from backend.models.loader import load_model
from tests.backend.adapters_on_disk import merged, write_adapter
from tests.backend.running import Backend
from tests.backend.tiny import generate, tiny_engine

PROMPT = "the rain in the sea and the wind on the hill"
ROADS: dict[str, list[str]] = {
    "one engine": [],
    "two ranks": ["--tensor-parallel-size", "2"],
    "two engines": ["--data-parallel-size", "2"],
}


@pytest.fixture(scope="module")
def root(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    found, config = tmp_path_factory.mktemp("adapters"), Checkpoint(folder).config
    write_adapter(found / "french", config, 1)
    write_adapter(found / "legal" / "v2", config, 2, rank=8, rslora=True)
    write_adapter(found / "dora", config, 3, use_dora=True)
    return found


@pytest.fixture(scope="module", params=ROADS)
def backend(
    request: pytest.FixtureRequest, folder: Path, root: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Backend]:
    log = tmp_path_factory.mktemp("server") / "log"
    options = ["--model", str(folder), "--served-name", "tiny", "--max-adapters", "2", "--adapters", str(root)]
    with Backend(log, *options, "--max-model-len", "512", "--kv-blocks", "300", *ROADS[request.param]) as running:
        yield running


@pytest.fixture(scope="module")
def expected(folder: Path, root: Path) -> dict[str, str]:
    """What each merged model says, alone."""
    checkpoint = Checkpoint(folder)
    model, prompt = load_model(checkpoint, "float32"), checkpoint.text.encode_completion(PROMPT)
    models = {
        "tiny": model, "tiny:french": merged(model, root / "french"), "tiny:legal": merged(model, root / "legal/v2"),
    }  # fmt: skip
    return {name: checkpoint.text.decode(generate(tiny_engine(own), [prompt])[0]) for name, own in models.items()}


@pytest.fixture
async def http(backend: Backend) -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(backend.url) as session:
        yield session
        async with session.get("/adapters") as answer:
            left = (await answer.json())["data"]
        for adapter in left:
            for _ in range(300):  # an engine may be on its way back
                async with session.post(
                    "/adapters/unload", json={k: adapter[k] for k in ("name", "project")}
                ) as answer:
                    if answer.status in (200, 404):
                        break
                await asyncio.sleep(0.1)
            assert answer.status in (200, 404)


async def complete(http: aiohttp.ClientSession, model: str, project: str = "", **body: Any) -> tuple[int, Any]:
    asked = {"model": model, "prompt": PROMPT, "max_tokens": 12, "temperature": 0, "ignore_eos": True, **body}
    headers = {"x-domicile-project": project} if project else {}
    async with http.post("/v1/completions", json=asked, headers=headers) as answer:
        return answer.status, await answer.json()


async def load(http: aiohttp.ClientSession, name: str, path: str, **more: Any) -> tuple[int, Any]:
    async with http.post("/adapters", json={"name": name, "path": path, **more}) as answer:
        return answer.status, await answer.json()


async def test_loaded_adapters_answer_beside_the_base_each_as_its_merged_model(
    http: aiohttp.ClientSession, expected: dict[str, str]
) -> None:
    assert (await load(http, "french", "french"))[0] == 200
    status, legal = await load(http, "legal", "legal/v2")
    assert status == 200 and legal["rank"] == 8 and len(legal["sha256"]) == 64
    names = ["tiny", "tiny:french", "tiny:legal", "tiny", "tiny:legal", "tiny:french"]
    found = await asyncio.gather(*(complete(http, name) for name in names))
    assert [body["choices"][0]["text"] for _, body in found] == [expected[name] for name in names]
    assert [body["model"] for _, body in found] == names
    assert len(set(expected.values())) == 3
    async with http.get("/v1/models") as answer:
        listed = [model["id"] for model in (await answer.json())["data"]]
    assert listed == ["tiny", "tiny:french", "tiny:legal"]


async def test_chats_and_streams_name_the_adapter(http: aiohttp.ClientSession) -> None:
    await load(http, "french", "french")
    asked = {"model": "tiny:french", "messages": [{"role": "user", "content": PROMPT}], "max_tokens": 3}
    async with http.post("/v1/chat/completions", json=asked) as answer:
        assert (await answer.json())["model"] == "tiny:french"
    async with http.post("/v1/chat/completions", json={**asked, "stream": True}) as answer:
        assert '"model":"tiny:french"' in await answer.text()


async def test_the_fingerprint_tells_adapters_apart(http: aiohttp.ClientSession) -> None:
    status, french = await load(http, "french", "french")
    await load(http, "legal", "legal/v2")
    for _ in range(100):  # until the checkpoint is read
        found = [(await complete(http, name))[1].get("system_fingerprint") for name in ("tiny", "tiny:french")]
        if all(found):
            break
        await asyncio.sleep(0.05)
    assert found[1] == f"{found[0]}_{french['sha256'][:16]}"
    assert status == 200


@pytest.mark.parametrize("named", ["tiny:other", "tiny:", "other", "other:french", ":french", "tiny:french:x", "TINY"])
async def test_a_name_that_is_not_loaded_is_a_404(named: str, http: aiohttp.ClientSession) -> None:
    await load(http, "french", "french")
    status, body = await complete(http, named)
    assert (status, body["error"]["code"], body["error"]["param"]) == (404, "model_not_found", "model")


async def test_another_projects_adapter_is_answered_as_one_that_is_not_there(http: aiohttp.ClientSession) -> None:
    await load(http, "french", "french", project="shop")
    assert (await complete(http, "tiny:french", project="shop"))[0] == 200
    theirs = await complete(http, "tiny:french", project="bank")
    nobodys = await complete(http, "tiny:french")
    absent = await complete(http, "tiny:latin", project="bank")
    assert theirs == nobodys
    assert theirs[0] == absent[0] == 404
    assert theirs[1]["error"]["message"] == absent[1]["error"]["message"].replace("latin", "french")


async def test_what_cannot_be_loaded_says_why_and_leaves_its_place_free(http: aiohttp.ClientSession) -> None:
    for name, path, status, said in (
        ("dora", "dora", 400, "DoRA"),
        ("none", "nowhere", 400, "there is no folder 'nowhere'"),
        ("out", "../adapters", 400, "leads out of the folder"),
        ("a:b", "french", 400, "the name of an adapter is"),
    ):
        found, body = await load(http, name, path)
        assert found == status and said in body["error"]["message"], body
    for body in (b"", b"[]", b'{"name": "a"}', b'{"name": "a", "path": "b", "more": 1}', b"x" * 9000):
        async with http.post("/adapters", data=body) as answer:
            assert answer.status == 400
    assert (await load(http, "french", "french"))[0] == 200
    assert (await load(http, "legal", "legal/v2"))[0] == 200
    status, body = await load(http, "third", "french")
    assert (status, body["error"]["code"]) == (409, "adapters_full")
    status, body = await load(http, "french", "legal/v2")
    assert (status, body["error"]["code"]) == (409, "adapter_in_use")
    async with http.post("/adapters/unload", json={"name": "third"}) as answer:
        assert answer.status == 404


async def test_a_digest_that_differs_in_one_digit_is_refused_and_the_right_one_taken_twice(
    http: aiohttp.ClientSession,
) -> None:
    _, french = await load(http, "french", "french")
    async with http.post("/adapters/unload", json={"name": "french"}) as answer:
        assert answer.status == 200
    wrong = french["sha256"][:-1] + ("0" if french["sha256"][-1] != "0" else "1")
    status, body = await load(http, "french", "french", sha256=wrong)
    assert status == 400 and "has the digest" in body["error"]["message"]
    for _ in range(2):
        assert await load(http, "french", "french", sha256=french["sha256"]) == (200, french)


async def test_one_in_use_is_not_unloaded(http: aiohttp.ClientSession) -> None:
    await load(http, "french", "french")
    asked = {"model": "tiny:french", "prompt": PROMPT, "max_tokens": 460, "ignore_eos": True, "stream": True}
    async with http.post("/v1/completions", json=asked) as running:
        await running.content.readany()
        async with http.post("/adapters/unload", json={"name": "french"}) as answer:
            assert (answer.status, (await answer.json())["error"]["code"]) == (409, "adapter_in_use")
    for _ in range(200):  # the client has left
        async with http.post("/adapters/unload", json={"name": "french"}) as answer:
            if answer.status == 200:
                break
        await asyncio.sleep(0.02)
    assert (await complete(http, "tiny:french"))[0] == 404


async def test_adapters_are_there_after_sleep_and_after_the_engine_died(
    backend: Backend, http: aiohttp.ClientSession, expected: dict[str, str]
) -> None:
    await load(http, "legal", "legal/v2")
    async with http.post("/sleep") as answer:
        assert answer.status == 200
    assert (await load(http, "french", "french"))[1]["error"]["code"] == "backend_asleep"
    async with http.post("/wake") as answer:
        assert answer.status == 200
    assert (await complete(http, "tiny:legal"))[1]["choices"][0]["text"] == expected["tiny:legal"]
    for engine in backend.engines:
        if "engine_process" in " ".join(engine.cmdline()):
            os.kill(engine.pid, signal.SIGKILL)
    for _ in range(600):
        status, body = await complete(http, "tiny:legal")
        if status == 200:
            break
        assert status == 503, body
        await asyncio.sleep(0.1)
    assert body["choices"][0]["text"] == expected["tiny:legal"]
