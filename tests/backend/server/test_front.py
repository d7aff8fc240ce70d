"""Several processes that serve HTTP before one engine are one backend: what one of them is told, all know."""

import asyncio
import io
import json
import re
import signal
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any

import aiohttp
import psutil
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from backend.engine_config import EngineConfig
from backend.errors import ConfigError
from backend.server.base_api import Identity
from backend.server.serving import ServerOptions, serve, server_options, told_of
from backend.server.tls import TlsFiles
from gateway.upstream.request_token import RequestSigner
from tests.backend.running import Backend

KEY = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
FRONTS = 3
CONNECTIONS = 12
ASKED = {"model": "tiny", "prompt": "the sea", "max_tokens": 8, "ignore_eos": True, "temperature": 0}
LONG = {**ASKED, "max_tokens": 600}


def start(folder: Path, at: Path, *options: str) -> Backend:
    return Backend(
        at / "log", "--model", str(folder), "--served-name", "tiny", "--http-processes", str(FRONTS), *options
    )


@pytest.fixture(scope="module")
def backend(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Backend]:
    with start(folder, tmp_path_factory.mktemp("open")) as made:
        yield made
        assert made.stop() == 0


@pytest.fixture(scope="module")
def guarded(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Backend]:
    """With a lock."""
    at = tmp_path_factory.mktemp("guarded")
    (at / "key.pem").write_bytes(KEY.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
    named = ("--tenant", "acme", "--backend-id", "acme-1")
    with start(folder, at, "--request-key", str(at / "key.pem"), *named) as made:
        yield made


def fronts(backend: Backend) -> list[psutil.Process]:
    return [child for child in backend.engines if "backend.server.front" in child.cmdline()]


@asynccontextmanager
async def connections(backend: Backend) -> AsyncIterator[list[aiohttp.ClientSession]]:
    """One each, kept open, to more than one of the processes."""
    sessions = [aiohttp.ClientSession(backend.url, connector=aiohttp.TCPConnector(limit=1)) for _ in range(CONNECTIONS)]
    try:
        for session in sessions:
            async with session.get("/healthz") as answer:
                assert answer.status == 200 and await answer.read()
        reached = [
            sum(one.status == psutil.CONN_ESTABLISHED for one in front.net_connections("tcp"))
            for front in fronts(backend)
        ]
        assert sum(reached) >= CONNECTIONS and sum(count > 0 for count in reached) > 1
        yield sessions
    finally:
        for session in sessions:
            await session.close()


async def posted(
    http: aiohttp.ClientSession, path: str, body: dict[str, Any] | None = None, **more: Any
) -> tuple[int, dict[str, Any]]:
    async with http.post(path, json=body, **more) as answer:
        return answer.status, await answer.json()


async def until(what: Any, within_s: float = 30.0) -> None:
    end = time.monotonic() + within_s
    while not await what():
        assert time.monotonic() < end, "it did not come to that"
        await asyncio.sleep(0.05)


async def gauge(http: aiohttp.ClientSession, name: str) -> float:
    """The sum of what has that name."""
    async with http.get("/metrics") as answer:
        text = await answer.text()
    return sum(map(float, re.findall(rf"^{name}(?:{{[^}}]*}})? (\S+)$", text, re.M)))


async def test_every_process_gives_the_answer_of_the_one_engine_whole_and_streamed(backend: Backend) -> None:
    async with connections(backend) as all_:
        answers = await asyncio.gather(*(posted(http, "/v1/completions", ASKED) for http in all_))
        texts = {answer["choices"][0]["text"] for _, answer in answers}
        assert {status for status, _ in answers} == {200} and len(texts) == 1
        for http in all_:
            async with http.post("/v1/completions", json={**ASKED, "stream": True, "n": 2}) as answer:
                lines = [line.decode().strip() async for line in answer.content if line.strip()]
            assert lines[-1] == "data: [DONE]"
            chunks = [json.loads(line[6:])["choices"][0] for line in lines[:-1]]
            for index in (0, 1):
                assert "".join(one["text"] for one in chunks if one["index"] == index) in texts


async def test_what_was_counted_is_the_sum_of_all_processes_whichever_is_asked(backend: Backend) -> None:
    async with connections(backend) as all_:
        name = "domicile_backend_requests_total"
        before = await gauge(all_[0], name)
        await asyncio.gather(*(posted(http, "/v1/completions", ASKED) for http in all_))

        async def counted() -> bool:
            return await gauge(all_[0], name) == before + CONNECTIONS

        await until(counted)
        assert {await gauge(http, name) for http in all_} == {before + CONNECTIONS}
        assert {await gauge(http, "domicile_backend_engine_up") for http in all_} == {1.0}


async def test_asleep_all_processes_refuse_and_awake_all_answer(backend: Backend) -> None:
    async with connections(backend) as all_:
        status, slept = await posted(all_[0], "/sleep", {"grace_s": 5})
        assert (status, slept["status"]) == (200, "asleep")
        refused = await asyncio.gather(*(posted(http, "/v1/completions", ASKED) for http in all_))
        assert {(status, answer["error"]["code"]) for status, answer in refused} == {(503, "backend_asleep")}
        for http in all_:
            async with http.get("/readyz") as ready:
                assert (ready.status, (await ready.json())["status"]) == (503, "asleep")
        assert (await posted(all_[-1], "/wake"))[0] == 200
        answered = await asyncio.gather(*(posted(http, "/v1/completions", ASKED) for http in all_))
        assert {status for status, _ in answered} == {200}


async def test_a_scrub_is_of_the_one_cache_and_finds_nothing(backend: Backend) -> None:
    async with connections(backend) as all_:
        for http in all_[:2]:
            status, scrubbed = await posted(http, "/scrub")
            assert status == 200 and scrubbed["blocks"] > 0 and scrubbed["residue_bytes"] == 0


async def test_errors_are_those_of_one_process_of_what_is_refused_here_and_by_the_engine(backend: Backend) -> None:
    async with connections(backend) as all_:
        for http in all_[:4]:
            assert (await posted(http, "/v1/completions", {**ASKED, "model": "other"}))[0] == 404
            assert (await posted(http, "/v1/completions", {**ASKED, "prompt": [999_999]}))[0] == 400
            too_many = await posted(http, "/v1/completions", {**ASKED, "n": 128, "prompt": ["the sea"] * 16})
            assert too_many[0] in (400, 503) and "error" in too_many[1]
            assert (await posted(http, "/v1/embeddings", {"input": "a"}))[1]["error"]["code"] == "no_embeddings"
            async with http.get("/nothing") as missing, http.get("/v1/models") as models:
                assert missing.status == 404 and (await models.json())["data"][0]["id"] == "tiny"
            async with http.post("/scrub", data=io.BytesIO(b"x" * (9 << 20))) as large:
                assert large.status == 413


async def test_a_client_that_leaves_any_process_stops_the_engine_and_its_deadline_too(backend: Backend) -> None:
    async with connections(backend) as all_:
        for http in all_[:4]:
            answer = await http.post("/v1/completions", json={**LONG, "stream": True})
            await answer.content.readline()
            answer.close()

        async def quiet() -> bool:
            return await gauge(all_[-1], "domicile_backend_sequences_running") == 0

        await until(quiet)


async def test_a_token_is_taken_once_whichever_processes_it_is_shown_to(guarded: Backend) -> None:
    body = json.dumps(ASKED).encode()
    signed = RequestSigner(KEY).field(
        tenant="acme",
        backend="acme-1",
        method="POST",
        path="/v1/completions",
        project="",
        decision="acme/7/ab",
        digest=sha256(body).digest(),
    )
    name, _, token = signed.partition(": ")
    headers = {name: token.strip(), "content-type": "application/json"}

    async def shown(http: aiohttp.ClientSession) -> int:
        async with http.post("/v1/completions", data=body, headers=headers) as answer:
            return answer.status

    async with connections(guarded) as all_:
        statuses = await asyncio.gather(*(shown(http) for http in all_))
        assert sorted(statuses) == [200, *[401] * (CONNECTIONS - 1)]
        assert {await shown(http) for http in all_} == {401}


async def test_what_is_of_the_whole_backend_needs_a_token_at_every_process(guarded: Backend) -> None:
    async with connections(guarded) as all_:
        for http in all_:
            for path in ("/scrub", "/sleep", "/wake", "/v1/chat/completions"):
                async with http.post(path, json={}) as refused:
                    assert refused.status == 401
            async with http.get("/metrics") as metrics, http.get("/readyz") as ready:
                assert (metrics.status, ready.status) == (401, 200)


async def test_a_process_that_dies_is_replaced_its_sequences_end_and_others_go_on(folder: Path, tmp_path: Path) -> None:
    with start(folder, tmp_path) as backend:
        async with connections(backend) as all_:
            streams = [await http.post("/v1/completions", json={**LONG, "stream": True}) for http in all_[:6]]
            for stream in streams:
                await stream.content.readline()
            victim = max(fronts(backend), key=lambda front: len(front.net_connections("tcp")))
            others = [front for front in fronts(backend) if front != victim]
            victim.kill()
            ended = await asyncio.gather(*(stream.content.read() for stream in streams), return_exceptions=True)
            whole = [isinstance(text, bytes) and text.rstrip().endswith(b"data: [DONE]") for text in ended]
            broken = [isinstance(text, aiohttp.ClientError) for text in ended]
            assert [a or b for a, b in zip(whole, broken, strict=True)] == [True] * 6

        async def replaced() -> bool:
            now = fronts(backend)
            return len(now) == FRONTS and victim not in now and all(front in now for front in others)

        await until(replaced)

        async def idle() -> bool:
            async with aiohttp.ClientSession(backend.url) as http:
                return await gauge(http, "domicile_backend_sequences_running") == 0

        await until(idle)
        for _ in range(6):
            async with aiohttp.ClientSession(backend.url) as http:
                assert (await posted(http, "/v1/completions", ASKED))[0] == 200
        # At a stop signal, also one to the whole group, running answers end whole and nothing stays behind.
        async with aiohttp.ClientSession(backend.url) as http:
            answer = await http.post("/v1/completions", json={**LONG, "max_tokens": 400, "stream": True})
            await answer.content.readline()
            everyone = [backend.process.pid, *(child.pid for child in backend.engines)]
            children = backend.engines
            for pid in everyone:
                psutil.Process(pid).send_signal(signal.SIGTERM)
            assert (await answer.content.read()).rstrip().endswith(b"data: [DONE]")
        assert await asyncio.to_thread(backend.process.wait, 30) == 0
        _, alive = psutil.wait_procs(children, 10)
        assert not alive


@pytest.mark.parametrize("role", ["prefill", "decode"])
def test_a_role_that_needs_one_process_is_refused_by_its_name(folder: Path, tmp_path: Path, role: str) -> None:
    authority = tmp_path / "files"
    options = ServerOptions(
        served_name="tiny", host="127.0.0.1", port=0, tls=None, identity=Identity(), http_processes=2, role=role
    )
    with pytest.raises(ConfigError, match="; "):
        serve(EngineConfig(model=str(folder)), options)
    assert not authority.exists()


def test_what_a_process_is_told_is_what_it_needs_of_the_options(tmp_path: Path) -> None:
    tls = TlsFiles(cert=tmp_path / "c", key=tmp_path / "k", ca=tmp_path / "a", peer_uri="spiffe://x")
    for options in (
        ServerOptions(served_name="a", host="h", port=1, tls=None, identity=Identity()),
        ServerOptions(
            served_name="b",
            host="h",
            port=1,
            tls=tls,
            identity=Identity("t", "r", "i"),
            request_key=tmp_path / "p",
            tool_call_parser="none",
            reasoning_parser="think",
            generation_config="none",
            data_parallel_size=2,
        ),
    ):
        back = server_options(json.loads(json.dumps(told_of(options))))
        for name in (
            "served_name", "tls", "identity", "request_key", "tool_call_parser", "reasoning_parser",
            "generation_config", "data_parallel_size",
        ):  # fmt: skip
            assert getattr(back, name) == getattr(options, name)
