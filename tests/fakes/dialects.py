"""Servers that speak OpenAI's API each in their own way: what they send, as they send it, and what they refuse.

Written down from their sources and from a trial where one installs here (``transformers serve``,
bench/gateway/own_server.py).
"""

import json
from dataclasses import dataclass, field

from aiohttp import web

SAID = ("Bon", "jour")


@dataclass(frozen=True)
class Dialect:
    """`space`: after ``data:``. `done`: whether ``[DONE]`` ends a stream. `refuses`: fields that are an error."""

    name: str
    first: tuple = ()
    usage_with_end: bool = False
    end_with_text: bool = False
    space: bytes = b" "
    done: bool = True
    comment: bool = False
    refuses: frozenset = frozenset()
    more: dict = field(default_factory=dict)
    delta: dict = field(default_factory=dict)
    error: object = None
    busy: int = 429


USAGE = {"prompt_tokens": 7, "completion_tokens": 2, "total_tokens": 9}

VLLM = Dialect(
    "vLLM",
    first=({"role": "assistant", "content": ""},),
    refuses=frozenset({"priority"}),  # unless it is started with --scheduling-policy priority
    more={"logprobs": None, "stop_reason": None, "token_ids": None},
    error={"error": {"message": "no", "type": "BadRequestError", "param": None, "code": 400}},
)
SGLANG = Dialect(
    "SGLang",
    first=({"role": "assistant", "content": "", "reasoning_content": None, "tool_calls": None},),
    delta={"role": None, "reasoning_content": None, "tool_calls": None},
    more={"logprobs": None, "matched_stop": None},
    error={"object": "error", "message": "no", "type": "BadRequestError", "param": None, "code": 400},
    busy=503,
)
TGI = Dialect(
    "TGI",
    delta={"role": "assistant"},
    end_with_text=True,
    space=b"",
    done=False,
    comment=True,
    more={"logprobs": None},
    error={"error": "no", "error_type": "validation"},
)
OLLAMA = Dialect(
    "Ollama",
    delta={"role": "assistant"},
    error={"error": {"message": "no", "type": "api_error", "param": None, "code": None}},
    busy=503,
)
TRANSFORMERS = Dialect(
    "transformers serve",
    first=({"role": "assistant"},),
    usage_with_end=True,
    done=False,
    refuses=frozenset({"cache_salt", "priority"}),
    error={"detail": "no"},
)
DIALECTS = (VLLM, SGLANG, TGI, OLLAMA, TRANSFORMERS)


class Server:
    """On loopback by `running`. `fail`: a status to refuse with; `cut`: streams end before they say why."""

    def __init__(self, dialect):
        self.dialect, self.bodies, self.fail, self.cut = dialect, [], None, False

    async def generate(self, request):
        body = await request.json()
        self.bodies.append(body)
        status = self.fail or (400 if self.dialect.refuses & body.keys() else None)
        if status is not None:
            return web.json_response(self.dialect.error, status=status, headers={"retry-after": "3"})
        return await self.stream(request) if body.get("stream") else web.json_response(self.whole())

    def whole(self):
        message = {"role": "assistant", "content": "".join(SAID)}
        choice = {"index": 0, "message": message, "finish_reason": "stop", **self.dialect.more}
        usage = {**USAGE, "prompt_tokens_details": None}
        return {
            "id": "x",
            "object": "chat.completion",
            "created": 1,
            "model": "small",
            "choices": [choice],
            "usage": usage,
        }

    async def stream(self, request):
        response = web.StreamResponse(headers={"content-type": "text/event-stream; charset=utf-8"})
        await response.prepare(request)
        for event in self.events():
            if event is None:
                await response.write(b":\n\n")
                continue
            said = event if isinstance(event, bytes) else json.dumps(event).encode()
            await response.write(b"data:" + self.dialect.space + said + b"\n\n")
        await response.write_eof()
        return response

    def events(self):
        way = self.dialect
        yield from (self.chunk(delta) for delta in way.first)
        if way.comment:
            yield None
        for number, text in enumerate(SAID):
            last = number + 1 == len(SAID)
            if last and way.end_with_text and not self.cut:
                yield self.chunk({**way.delta, "content": text}, "stop")
            else:
                yield self.chunk({**way.delta, "content": text})
        if self.cut:
            return
        if not way.end_with_text:
            yield self.chunk({} if not way.delta else {**way.delta, "content": ""}, "stop", way.usage_with_end)
        if not way.usage_with_end:
            yield {**self.chunk({}), "choices": [], "usage": USAGE}
        if way.done:
            yield b"[DONE]"

    def chunk(self, delta, finish=None, usage=False):
        choice = {"index": 0, "delta": delta, **self.dialect.more}
        if finish or self.dialect is not TRANSFORMERS:
            choice["finish_reason"] = finish
        made = {"id": "x", "object": "chat.completion.chunk", "created": 1, "model": "small", "choices": [choice]}
        return {**made, "usage": USAGE} if usage else made

    async def models(self, request):
        return web.json_response({"object": "list", "data": [{"id": "small", "object": "model"}]})


async def start(server):
    """Gives the runner, to be cleaned up, and the URL."""
    app = web.Application()
    app.router.add_post("/v1/chat/completions", server.generate)
    app.router.add_get("/v1/models", server.models)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    return runner, f"http://127.0.0.1:{site._server.sockets[0].getsockname()[1]}"
