"""The life of a backend's two processes: start, drain, and every way to die."""

import asyncio
import contextlib
import json
import re
import signal
import ssl
import subprocess
import sys
from pathlib import Path
from typing import Any

import aiohttp
import psutil
import pytest
from cryptography import x509

from tests.backend.certificates import Authority
from tests.backend.running import ROOT, Backend
from tests.backend.tiny import tiny_model, write_folder

LONG = {"model": "tiny", "prompt": "the sea", "max_tokens": 3000, "ignore_eos": True, "temperature": 0}


def start(folder: Path, tmp_path: Path, *options: str) -> Backend:
    return Backend(tmp_path / "log", "--model", str(folder), "--served-name", "tiny", *options)


async def events_until_end(answer: aiohttp.ClientResponse) -> list[str]:
    return [line.decode().strip() async for line in answer.content if line.strip()]


async def metrics(http: aiohttp.ClientSession) -> str:
    async with http.get("/metrics") as answer:
        return await answer.text()


def gone(process: psutil.Process, within: float) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess, psutil.TimeoutExpired):
        process.wait(within)
    return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE


async def test_when_the_engine_dies_streams_end_with_an_error_and_requests_get_503(
    folder: Path, tmp_path: Path
) -> None:
    with start(folder, tmp_path, "--restarts", "0") as backend:
        async with aiohttp.ClientSession(backend.url) as http:
            answer = await http.post("/v1/completions", json={**LONG, "stream": True})
            await answer.content.readline()
            backend.engine.kill()
            lines = await events_until_end(answer)
            assert json.loads(lines[-1].removeprefix("data: "))["error"]["code"] == "engine_unavailable"
            assert "data: [DONE]" not in lines
            for path, body in (("/v1/completions", LONG), ("/v1/completions", {**LONG, "stream": True})):
                async with http.post(path, json=body) as refused:
                    assert refused.status == 503
                    assert (await refused.json())["error"]["code"] == "engine_unavailable"
            async with http.get("/readyz") as ready, http.get("/healthz") as alive, http.get("/metrics") as metrics:
                assert (ready.status, alive.status) == (503, 200)
                assert "domicile_backend_engine_up 0.0" in await metrics.text()
        assert backend.stop() == 0


async def test_a_hung_engine_is_noticed_its_requests_failed_and_its_process_ended(folder: Path, tmp_path: Path) -> None:
    with start(folder, tmp_path, "--step-timeout", "1", "--restarts", "0") as backend:
        engine = backend.engine
        async with aiohttp.ClientSession(backend.url) as http:
            answer = await http.post("/v1/completions", json={**LONG, "stream": True})
            await answer.content.readline()
            engine.suspend()
            lines = await asyncio.wait_for(events_until_end(answer), 60)
            assert "error" in json.loads(lines[-1].removeprefix("data: "))
            async with http.get("/readyz") as ready:
                assert ready.status == 503
        assert gone(engine, 10)


async def test_a_ping_that_is_not_answered_fails_readiness(folder: Path, tmp_path: Path) -> None:
    with start(folder, tmp_path, "--step-timeout", "1", "--restarts", "0") as backend:
        backend.engine.suspend()
        async with aiohttp.ClientSession(backend.url) as http, http.get("/readyz") as ready:
            assert ready.status == 503


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_stop_signal_lets_running_answers_end_and_leaves_nothing_behind(
    folder: Path, tmp_path: Path, number: signal.Signals
) -> None:
    with start(folder, tmp_path) as backend:
        engine = backend.engine
        async with aiohttp.ClientSession(backend.url) as http:
            answer = await http.post("/v1/completions", json={**LONG, "max_tokens": 600, "stream": True})
            await answer.content.readline()
            for process in (backend.process.pid, engine.pid):  # as Ctrl-C does: to the whole group
                psutil.Process(process).send_signal(number)
            lines = await events_until_end(answer)
            assert lines[-1] == "data: [DONE]"
        assert await asyncio.to_thread(backend.process.wait, 20) == 0
        assert gone(engine, 5)


async def test_at_a_stop_signal_what_waits_for_its_turn_is_refused_at_once_and_what_runs_ends_whole(
    folder: Path, tmp_path: Path
) -> None:
    with start(folder, tmp_path, "--max-num-seqs", "1") as backend:
        async with aiohttp.ClientSession(backend.url) as http:
            alone = await http.post("/v1/completions", json={**LONG, "max_tokens": 400})
            whole = (await alone.json())["choices"][0]["text"]
            running = await http.post("/v1/completions", json={**LONG, "max_tokens": 400, "stream": True})
            lines = [(await running.content.readline()).decode().strip()]
            waiting = [
                asyncio.create_task(http.post("/v1/completions", json={**LONG, "stream": streamed}))
                for streamed in (False, True)
            ]
            while not re.search(r"^domicile_backend_sequences_waiting\S* 2", await metrics(http), re.M):
                await asyncio.sleep(0.02)
            backend.process.send_signal(signal.SIGTERM)
            for refused in await asyncio.wait_for(asyncio.gather(*waiting), 5):
                assert refused.status == 503
                assert (await refused.json())["error"]["code"] == "backend_leaving"
                assert int(refused.headers["retry-after"]) >= 1
            lines += await events_until_end(running)
            assert lines[-1] == "data: [DONE]"
            said = [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: {")]
            assert "".join(chunk["choices"][0]["text"] for chunk in said) == whole
            assert said[-1]["choices"][0]["finish_reason"] == "length"
        assert await asyncio.to_thread(backend.process.wait, 20) == 0


async def test_the_engine_does_not_outlive_a_killed_server(folder: Path, tmp_path: Path) -> None:
    with start(folder, tmp_path) as backend:
        engine = backend.engine
        async with aiohttp.ClientSession(backend.url) as http:
            answer = await http.post("/v1/completions", json={**LONG, "stream": True})
            await answer.content.readline()
            assert backend.stop(signal.SIGKILL) == -signal.SIGKILL
            assert gone(engine, 5)
            answer.close()


async def test_over_mutual_tls_the_one_peer_is_served_and_streams(folder: Path, tmp_path: Path) -> None:
    authority = Authority(tmp_path / "ca")
    peer = "spiffe://domicile.test/tenant/acme/gateway"
    mine = authority.issue("backend", [x509.UniformResourceIdentifier("spiffe://domicile.test/backend")])
    gateway = authority.issue("gateway", [x509.UniformResourceIdentifier(peer)])
    stranger = authority.issue("stranger", [x509.UniformResourceIdentifier(peer.replace("acme", "globex"))])

    def context(files: Any) -> ssl.SSLContext:
        made = ssl.create_default_context(cafile=str(authority.cert))
        made.check_hostname = False
        made.load_cert_chain(files.cert, files.key)
        return made

    options = ["--cert", str(mine.cert), "--key", str(mine.key), "--ca", str(authority.cert), "--peer-uri", peer]
    with start(folder, tmp_path, *options) as backend:
        url = backend.url.replace("http:", "https:")
        async with aiohttp.ClientSession(url) as http:
            body = {**LONG, "max_tokens": 20, "stream": True}
            async with http.post("/v1/completions", json=body, ssl=context(gateway)) as answer:
                assert (await events_until_end(answer))[-1] == "data: [DONE]"
            for refused in (context(stranger), ssl.create_default_context(cafile=str(authority.cert))):
                refused.check_hostname = False
                with pytest.raises(aiohttp.ClientError):
                    await http.get("/healthz", ssl=refused)
            with pytest.raises(aiohttp.ClientError):
                await http.get(backend.url + "/healthz")  # without TLS
        assert backend.stop() == 0


def refuse(*options: str) -> str:
    """Run a backend that will not start; what it says."""
    done = subprocess.run(
        [sys.executable, "-m", "backend", "serve", "--port", "0", *options], cwd=ROOT, capture_output=True, timeout=60
    )
    assert done.returncode == 1, done.stderr
    assert done.stdout == b""
    assert b"Traceback" not in done.stderr
    return done.stderr.decode()


def test_an_open_address_without_tls_is_refused_naming_the_options(folder: Path) -> None:
    assert "--peer-uri" in refuse("--model", str(folder), "--host", "0.0.0.0")


def test_a_model_that_is_not_there_is_a_clear_error(tmp_path: Path) -> None:
    assert f"no model at {tmp_path / 'absent.gguf'}" in refuse("--model", str(tmp_path / "absent.gguf"))


def test_a_context_that_does_not_fit_is_refused_naming_the_number_that_would(folder: Path) -> None:
    said = refuse("--model", str(folder), "--kv-blocks", "10", "--max-model-len", "1000")
    assert "needs 63 KV blocks" in said
    assert "lower max_model_len to 160" in said


def test_a_broken_checkpoint_found_by_the_engine_process_is_told_by_the_server(tmp_path: Path) -> None:
    model = tiny_model()
    model.norm.fill_(float("nan"))
    assert "model.norm.weight holds NaN" in refuse("--model", str(write_folder(tmp_path / "broken", model)))


def test_help_shows_how_to_begin() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "backend", "serve", "--help"], cwd=ROOT, capture_output=True, timeout=60, check=True
    )
    assert b"--model demo" in done.stdout
    assert b"--peer-uri" in done.stdout


def test_the_http_process_never_imports_torch() -> None:
    heavy = "torch", "triton", "transformers"
    code = f"import sys, backend.server.serving; print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, timeout=60, check=True)
    assert done.stdout.strip() == b"[]"


def test_the_command_line_itself_imports_nothing_heavy() -> None:
    code = (
        "import sys, backend.cli.serve; print([m for m in ('torch', 'uvicorn', 'numpy', 'gguf') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, timeout=60, check=True)
    assert done.stdout.strip() == b"[]"
