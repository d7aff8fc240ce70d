"""A backend of the tiny model in this process, asked without a network: real engine process, real routes."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2

from backend.engine_config import EngineConfig
from backend.models.checkpoints.checkpoint import Checkpoint
from backend.process.engine_client import EngineClient
from backend.server.app import GenerationApi
from backend.server.base_api import Identity

MODEL = "tiny"
USER = [{"role": "user", "content": "the rain in the sea"}]


class Asked:
    """Whole answers and streams of one backend."""

    def __init__(self, http: httpx2.AsyncClient, engine: EngineClient) -> None:
        self.http = http
        self.engine = engine

    async def post(self, path: str, **body: Any) -> tuple[int, dict[str, Any]]:
        answer = await self.http.post(path, json={"model": MODEL, "max_tokens": 8, "temperature": 0, **body})
        return answer.status_code, answer.json()

    async def chat(self, **body: Any) -> dict[str, Any]:
        status, answer = await self.post("/v1/chat/completions", **{"messages": USER, **body})
        assert status == 200, answer
        return answer

    async def complete(self, prompt: Any, **body: Any) -> dict[str, Any]:
        status, answer = await self.post("/v1/completions", prompt=prompt, **body)
        assert status == 200, answer
        return answer

    async def chunks(self, path: str, **body: Any) -> list[dict[str, Any]]:
        """Every chunk of a stream that ends well."""
        answer = await self.http.post(
            path, json={"model": MODEL, "max_tokens": 8, "temperature": 0, "stream": True, **body}
        )
        *events, end = answer.text.split("\n\n")
        assert end == "" and events[-1] == "data: [DONE]", answer.text
        return [json.loads(event.removeprefix("data: ")) for event in events[:-1]]


@asynccontextmanager
async def asked(folder: Path, **changes: Any) -> AsyncIterator[Asked]:
    settings: dict[str, Any] = {"model": str(folder), "num_blocks": 600, "max_num_seqs": 16, "threads": 1}
    engine = EngineClient(EngineConfig(**{**settings, **changes}))
    await engine.start()
    app = GenerationApi(engine, Checkpoint(folder).text, MODEL, Identity("acme")).app()
    try:
        async with httpx2.AsyncClient(transport=httpx2.ASGITransport(app), base_url="http://backend") as http:
            yield Asked(http, engine)
    finally:
        await engine.stop()
