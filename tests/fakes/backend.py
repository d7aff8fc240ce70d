"""A backend without an engine: says what it is told to, and keeps what reached it. OpenAI-shaped, on loopback."""

import asyncio
import json
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from aiohttp import web

USAGE = {"prompt_tokens": 7, "completion_tokens": 5, "total_tokens": 12}


@dataclass
class FakeBackend:
    """`say`: the answer, or a function of the request body that gives it. `pieces`: how a stream cuts it."""

    model: str = "small"
    say: object = "The capital is Paris."
    pieces: int = 3
    url: str = ""
    bodies: list = field(default_factory=list)
    headers: list = field(default_factory=list)
    status: int = 200
    error: dict | None = None
    retry_after: str | None = None
    die_after: int | None = None
    fail_inside: bool = False
    delay_s: float = 0.0
    left: int = 0
    ready: bool = True
    hangs_s: float = 0.0  # before it answers a probe
    joules: object = None  # what it says that a call took; None: it does not measure
    fingerprint: object = None
    tokenizes: bool = True
    card: dict | None = None  # what it says of its model
    adapters: list = field(default_factory=list)  # that it has loaded, as it was asked for them
    places: int = 0  # for adapters
    loads: list = field(default_factory=list)  # names of those that it was asked to load
    busy: set = field(default_factory=set)  # names of those that are in use
    digests: dict = field(default_factory=dict)  # by path, of adapters that are not what is asked for
    metrics: object = None  # what it tells at /metrics, or a function that does; None: it has no such page
    weights: object = None  # what it says at /weights, or the status of a refusal; None: it has no such page
    first_token_ms: object = None  # what it says of its time to first token; None: it does not

    @property
    def usage(self):
        told = {"energy_joules": self.joules, "first_token_ms": self.first_token_ms}
        return {**USAGE, **{name: value for name, value in told.items() if value is not None}}

    async def abandoned(self, calls):
        """Whether `calls` clients left before their answers were whole; waits up to 10 s, as closing takes its time."""
        for _ in range(500):
            if self.left >= calls:
                break
            await asyncio.sleep(0.02)
        return self.left == calls

    @property
    def received(self):
        return json.dumps(self.bodies)

    async def exposition(self, request):
        return web.Response(text=self.metrics() if callable(self.metrics) else self.metrics)

    def text(self, body):
        return self.say(body) if callable(self.say) else self.say

    async def generate(self, request):
        body = await request.json()
        self.bodies.append(body)
        self.headers.append(dict(request.headers))
        if self.status != 200:
            headers = {"retry-after": self.retry_after} if self.retry_after else {}
            return web.json_response({"error": self.error}, status=self.status, headers=headers)
        if (told := self.read(request.path, body)) is not None:
            return web.json_response(told)
        if request.path.endswith("/embeddings"):
            vector = {"object": "embedding", "index": 0, "embedding": [0.5, -1]}
            return web.json_response({"object": "list", "model": self.model, "data": [vector], "usage": USAGE})
        chat = request.path.endswith("/chat/completions")
        try:
            if body.get("stream"):
                return await self.stream(request, body, chat)
            await asyncio.sleep(self.delay_s)
        except (asyncio.CancelledError, ConnectionResetError):
            self.left += 1
            raise
        return web.json_response(self.whole(body, chat))

    async def load(self, request):
        asked = await request.json()
        self.loads.append(asked["name"])
        same = [a for a in self.adapters if (a["name"], a["project"]) == (asked["name"], asked["project"])]
        found = self.digests.get(asked["path"], asked["sha256"])
        if same and same[0]["sha256"] != asked["sha256"]:
            return _refused(409, "adapter_in_use")
        if found != asked["sha256"]:
            return _refused(400, "adapter_refused")
        if not same and len(self.adapters) == self.places:
            return _refused(409, "adapters_full")
        self.adapters += [] if same else [asked]
        return web.json_response({**asked, "rank": 8, "bytes": 1})

    async def list_adapters(self, request):
        return web.json_response({"max_adapters": self.places, "data": self.adapters})

    async def unload(self, request):
        asked = await request.json()
        if asked["name"] in self.busy:
            return _refused(409, "adapter_in_use")
        self.adapters = [a for a in self.adapters if (a["name"], a["project"]) != (asked["name"], asked["project"])]
        return await self.list_adapters(request)

    def read(self, path, body):
        """What it says on routes that read a text and write none: a token is a word, and a score is a length."""
        if path == "/tokenize":
            said = body["prompt"] if body.get("prompt") is not None else json.dumps(body["messages"])
            words = said.split()
            return {"count": len(words), "max_model_len": 4096, "tokens": [*map(len, words)], "token_strs": words}
        if path == "/detokenize":
            return {"prompt": self.say if isinstance(self.say, str) else " ".join(map(str, body["tokens"]))}
        if path.endswith("/rerank"):
            ranked = sorted(range(len(body["documents"])), key=lambda at: -len(body["documents"][at]))
            scores = [{"index": at, "relevance_score": len(body["documents"][at]) / 100} for at in ranked]
            results = [{**score, "document": {"text": body["documents"][score["index"]]}} for score in scores]
            return {"id": "r", "results": results, "usage": {"total_tokens": 7}}
        if path.endswith("/score"):
            others = [body["text_2"]] if isinstance(body["text_2"], str) else body["text_2"]
            data = [{"index": at, "score": len(other) / 100, "echo": other} for at, other in enumerate(others)]
            return {"data": data, "model": self.model, "usage": USAGE}
        return None

    def whole(self, body, chat):
        said = {"message": {"role": "assistant", "content": self.text(body)}} if chat else {"text": self.text(body)}
        return {
            "id": "x", "object": "chat.completion" if chat else "text_completion", "created": 1, "model": self.model,
            **self.more, "choices": [{"index": 0, **said, "finish_reason": "stop"}], "usage": self.usage,
        }  # fmt: skip

    @property
    def more(self):
        return {} if self.fingerprint is None else {"system_fingerprint": self.fingerprint}

    async def stream(self, request, body, chat):
        response = web.StreamResponse(headers={"content-type": "text/event-stream"})
        await response.prepare(request)

        async def send(choices, **more):
            kind = "chat.completion.chunk" if chat else "text_completion"
            event = {
                "id": "x",
                "object": kind,
                "created": 1,
                "model": self.model,
                "choices": choices,
                **self.more,
                **more,
            }
            await response.write(b"data: " + json.dumps(event).encode() + b"\n\n")

        def choice(text, finish=None, **more):
            said = (
                {"delta": {**more, **({"content": text} if text is not None else {})}} if chat else {"text": text or ""}
            )
            return [{"index": 0, **said, "finish_reason": finish}]

        text = self.text(body)
        size = max(1, -(-len(text) // self.pieces))
        if chat:
            await send(choice("", role="assistant"))
        for number, at in enumerate(range(0, len(text), size)):
            if number == self.die_after:
                if self.fail_inside:
                    await response.write(b'data: {"error": {"message": "boom", "type": "server_error"}}\n\n')
                    await response.write_eof()
                    return response
                request.transport.close()
                return response
            await asyncio.sleep(self.delay_s)
            await send(choice(text[at : at + size]))
        await send(choice(None, "stop"))
        if (body.get("stream_options") or {}).get("include_usage"):
            await send([], usage=self.usage)
        await response.write(b"data: [DONE]\n\n")
        await response.write_eof()
        return response

    async def tell_weights(self, request):
        if isinstance(self.weights, dict):
            return web.json_response(self.weights)
        return web.Response(status=self.weights or 404)

    async def readiness(self, request):
        await asyncio.sleep(self.hangs_s)
        return web.Response(status=200 if self.ready else 503)

    async def models(self, request):
        await asyncio.sleep(self.hangs_s)
        listed = {"id": self.model, "object": "model", **(self.card or {})}
        return web.json_response({"object": "list", "data": [listed]}, status=200 if self.ready else 503)


def _refused(status, code):
    return web.json_response({"error": {"message": "no", "code": code}}, status=status)


@asynccontextmanager
async def running(backend, port=0):
    app = web.Application(client_max_size=64 << 20)
    app.router.add_post("/v1/chat/completions", backend.generate)
    app.router.add_post("/v1/completions", backend.generate)
    app.router.add_post("/v1/embeddings", backend.generate)
    for path in ("/v1/rerank", "/v1/score", *(("/tokenize", "/detokenize") if backend.tokenizes else ())):
        app.router.add_post(path, backend.generate)
    app.router.add_post("/adapters", backend.load)
    app.router.add_get("/adapters", backend.list_adapters)
    app.router.add_post("/adapters/unload", backend.unload)
    app.router.add_get("/readyz", backend.readiness)
    app.router.add_get("/weights", backend.tell_weights)
    if backend.metrics is not None:
        app.router.add_get("/metrics", backend.exposition)
    app.router.add_get("/v1/models", backend.models)  # by what a server that is not our engine is asked
    runner = web.AppRunner(app, access_log=None, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", port)
    await site.start()
    backend.url = f"http://127.0.0.1:{site._server.sockets[0].getsockname()[1]}"
    try:
        yield backend
    finally:
        await runner.cleanup()
