"""The HTTP face of a backend: OpenAI's endpoints, health and metrics, as plain Starlette routes.

A request is read, checked, turned into token ids, and handed to the engine; its tokens come back as events and become
text here. Whoever leaves is noticed at once, and the engine told. Logs hold no text of anybody's.
"""

import asyncio
import logging
import re
import time
import traceback
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

from pydantic import ValidationError
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from backend.answers import Answer, CompletionAnswer
from backend.chat_answer import chat_answer
from backend.choice import Choice
from backend.conversation import ChatModel
from backend.engine_client import Call, ClientGone, EngineClient
from backend.errors import EngineDead, InvalidRequest, ModelUnknown, Overloaded, RequestError
from backend.messages import Ready
from backend.metrics import CONTENT_TYPE, Metrics
from backend.models.tokenizer import TextModel
from backend.parameters import Job, completion_prompts, job, refuse_unsupported
from backend.tokenization import Tokenization
from backend.wire import (
    REQUEST_ID_HEADER,
    SSE_DONE,
    ChatCompletionRequest,
    CompletionRequest,
    ErrorBody,
    ErrorDetail,
    GenerationRequest,
    Model,
    ModelList,
    PromptTokensDetails,
    Usage,
    WireModel,
    sse_data,
)

log = logging.getLogger(__name__)

MAX_BODY_BYTES = 8 << 20
PING_TIMEOUT_S = 10.0
LONG_TEXT = 20_000  # characters; tokenising more than this would hold up other streams, so a thread does it
REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,128}")
JSON = "application/json"
G = TypeVar("G", bound=GenerationRequest)
R = TypeVar("R", bound=WireModel)
T = TypeVar("T")
E = TypeVar("E")


@dataclass(frozen=True, slots=True)
class Identity:
    """Whose backend this is; said in /v1/models and in logs, enforced by `tls`."""

    tenant: str = ""
    region: str = ""
    backend_id: str = ""


class Api:
    def __init__(
        self, engine: EngineClient, text_model: TextModel, served_name: str, identity: Identity,
        chats: ChatModel | None = None,
    ) -> None:  # fmt: skip
        """``chats``: by default what the model's template says."""
        self.engine = engine
        self.text_model = text_model
        self.chats = chats or ChatModel(text_model)
        self.served_name = served_name
        self.identity = identity
        self.metrics = Metrics(served_name, lambda: engine.stats, lambda: engine.alive)
        self._created = int(time.time())

    def app(self) -> Starlette:
        """An ASGI application. The engine's life is its owner's affair (`serving`)."""
        tokens = Tokenization(self._body, self.chats, self.text_model, lambda: self._ready().max_model_len)
        return Starlette(
            routes=[
                Route("/v1/chat/completions", self._guard(self.chat), methods=["POST"]),
                Route("/v1/completions", self._guard(self.completions), methods=["POST"]),
                Route("/tokenize", self._guard(tokens.tokenize), methods=["POST"]),
                Route("/detokenize", self._guard(tokens.detokenize), methods=["POST"]),
                Route("/v1/models", self.models),
                Route("/healthz", self.healthz),
                Route("/readyz", self.readyz),
                Route("/metrics", self.show_metrics),
            ],
            exception_handlers={404: _not_found, 405: _wrong_method},
        )

    def _guard(self, endpoint: Callable[[Request], Awaitable[Response]]) -> Callable[[Request], Awaitable[Response]]:
        """Every error becomes an OpenAI error body; what we did not foresee, a 500 that says nothing."""

        async def guarded(request: Request) -> Response:
            try:
                return await endpoint(request)
            except ClientDisconnect:
                self.metrics.count_request("aborted")
                return Response(status_code=499)
            except Exception as error:
                self.metrics.count_request("refused" if isinstance(error, RequestError) else "failed")
                return error_response(error)

        return guarded

    async def chat(self, request: Request) -> Response:
        arrived = time.monotonic()
        wire = await self._read(request, ChatCompletionRequest)
        turn = await self._aside(self.chats.turn, wire, sum(len(str(m.content or "")) for m in wire.messages))
        if turn.grammar:
            raise InvalidRequest("this backend cannot force a call", param="tool_choice", code="unsupported_parameter")
        answer = chat_answer(_request_id(request), self.served_name, turn, usage_in_chunks=wire.wants_usage_chunk)
        return self._generate(wire, self._job(wire, [turn.prompt], "messages"), answer, arrived, turn.text_model)

    async def completions(self, request: Request) -> Response:
        arrived = time.monotonic()
        wire = await self._read(request, CompletionRequest)
        prompts = [
            await self._aside(self.text_model.encode_completion, p, len(p)) if isinstance(p, str) else p
            for p in completion_prompts(wire)
        ]
        answer = CompletionAnswer(_request_id(request), self.served_name, usage_in_chunks=wire.wants_usage_chunk)
        return self._generate(wire, self._job(wire, prompts, "prompt"), answer, arrived, self.text_model)

    async def models(self, _: Request) -> Response:
        model = Model(id=self.served_name, created=self._created, owned_by=self.identity.tenant or "domicile")
        return Response(ModelList(data=[model]).model_dump_json(), media_type=JSON)

    async def healthz(self, _: Request) -> Response:
        """This process answers."""
        return Response('{"status":"ok"}', media_type=JSON)

    async def readyz(self, _: Request) -> Response:
        """The engine answers too: a round trip through its loop."""
        try:
            await self.engine.ping(PING_TIMEOUT_S)
        except EngineDead as error:
            return error_response(error)
        return Response('{"status":"ready"}', media_type=JSON)

    async def show_metrics(self, _: Request) -> Response:
        return Response(self.metrics.render(), headers={"content-type": CONTENT_TYPE})

    async def _read(self, request: Request, kind: type[G]) -> G:
        wire = await self._body(request, kind)
        refuse_unsupported(wire)
        return wire

    async def _body(self, request: Request, kind: type[R]) -> R:
        body = bytearray()
        async for chunk in request.stream():
            body += chunk
            if len(body) > MAX_BODY_BYTES:
                raise BodyTooLarge(f"the body is larger than {MAX_BODY_BYTES} bytes")
        try:
            wire = kind.model_validate_json(bytes(body))
        except ValidationError as invalid:
            raise _invalid(invalid) from None
        if getattr(wire, "model", None) not in (self.served_name, None):
            raise ModelUnknown(f"this backend serves {self.served_name!r} only", param="model")
        return wire

    async def _aside(self, work: Callable[[T], E], subject: T, length: int) -> E:
        """In a thread, if the text is long."""
        return await asyncio.to_thread(work, subject) if length > LONG_TEXT else work(subject)

    def _ready(self) -> Ready:
        if self.engine.ready is None:
            raise EngineDead("the engine of this backend has not started")
        return self.engine.ready

    def _job(self, wire: GenerationRequest, prompts: list[list[int]], param: str) -> Job:
        ready = self._ready()
        return job(wire, prompts, max_model_len=ready.max_model_len, vocab_size=ready.vocab_size, param=param)

    def _generate(
        self, wire: GenerationRequest, job: Job, answer: Answer, arrived: float, text_model: TextModel
    ) -> Response:
        call = self.engine.submit(job.sequences)
        return GenerationResponse(
            self, job, call, answer, arrived, stream=bool(wire.stream), usage=wire.wants_usage_chunk,
            text_model=text_model,
        )  # fmt: skip


class BodyTooLarge(RequestError):
    status = 413
    code = "request_too_large"


class GenerationResponse(Response):
    """Sends the answer of one call, streamed or whole, while watching for the client's leaving.

    The first event is awaited before anything is sent, so that an engine which fails before its first token can still
    say so in the status.
    """

    def __init__(
        self, api: Api, job: Job, call: Call, answer: Answer, arrived: float, *, stream: bool, usage: bool,
        text_model: TextModel,
    ) -> None:  # fmt: skip
        self.background = None
        self._api = api
        self._job = job
        self._call = call
        self._answer = answer
        self._arrived = arrived
        self._stream = stream
        self._usage = usage
        self._choices = [Choice(text_model, job.stops) for _ in job.sequences]
        self._texts: list[list[str]] = [[] for _ in job.sequences]
        self._first: float | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        watch = asyncio.create_task(self._watch(receive))
        started = False
        outcome = "failed"
        try:
            index, text = await self._next()
            if self._stream:
                started = True
                await self._start(send, "text/event-stream")
                await self._send_stream(send, index, text)
            else:
                self._texts[index].append(text)
                while not self._call.done:
                    index, text = await self._next()
                    self._texts[index].append(text)
                await self._send_whole(send)
            outcome = "completed"
        except ClientGone:
            outcome = "aborted"
        except Exception as error:
            outcome = "refused" if isinstance(error, RequestError) else "failed"
            if started:  # too late for a status: the stream ends with the error, and without [DONE]
                frame = sse_data(error_body(error).model_dump_json().encode())
                await send({"type": "http.response.body", "body": frame, "more_body": False})
            else:
                await error_response(error)(scope, receive, send)
        finally:
            watch.cancel()
            self._call.close()
            self._account(outcome)

    async def _watch(self, receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        self._call.leave()

    async def _next(self) -> tuple[int, str]:
        index, progress = await self._call.next_event()
        if self._first is None:
            self._first = time.monotonic()
        choice = self._choices[index]
        text = choice.feed(progress)
        if choice.finish_reason == "error":
            raise ModelFailed("the model's output is not a number; this request cannot be answered")
        if choice.finish_reason is not None and progress.finish is None:
            self._call.stop(index)
        return index, text

    async def _send_stream(self, send: Send, index: int, text: str) -> None:
        opened: set[int] = set()
        while True:
            frames = []
            if index not in opened:
                opened.add(index)
                frames.append(self._answer.opening(index) or b"")
            reason = self._choices[index].finish_reason
            if text:
                frames.append(self._answer.chunk(index, text, None))
            if reason is not None:
                frames.append(self._answer.chunk(index, "", reason))
            if body := b"".join(frames):
                await send({"type": "http.response.body", "body": body, "more_body": True})
            if self._call.done:
                break
            index, text = await self._next()
        end = self._answer.usage_chunk(self.usage) if self._usage else b""
        await send({"type": "http.response.body", "body": end + SSE_DONE, "more_body": False})

    async def _send_whole(self, send: Send) -> None:
        texts = ["".join(parts) for parts in self._texts]
        reasons = [choice.finish_reason for choice in self._choices]
        await self._start(send, JSON)
        body = self._answer.body(list(zip(texts, reasons, strict=True)), self.usage)
        await send({"type": "http.response.body", "body": body, "more_body": False})

    async def _start(self, send: Send, content_type: str) -> None:
        headers = [
            (b"content-type", content_type.encode()),
            (b"cache-control", b"no-store"),
            (REQUEST_ID_HEADER.encode(), self._answer.id.partition("-")[2].encode()),
        ]
        await send({"type": "http.response.start", "status": 200, "headers": headers})

    @property
    def usage(self) -> Usage:
        completion = sum(choice.tokens for choice in self._choices)
        firsts = self._choices[:: self._job.n]  # one choice a prompt: the others find what it computed
        return Usage(
            prompt_tokens=self._job.prompt_tokens,
            completion_tokens=completion,
            total_tokens=self._job.prompt_tokens + completion,
            prompt_tokens_details=PromptTokensDetails(cached_tokens=sum(c.cached_tokens for c in firsts)),
        )

    def _account(self, outcome: str) -> None:
        metrics, usage, now = self._api.metrics, self.usage, time.monotonic()
        metrics.count_request(outcome)
        metrics.request_duration.observe(now - self._arrived)
        metrics.input_tokens.inc(usage.prompt_tokens)
        metrics.output_tokens.inc(usage.completion_tokens)
        if self._first is not None:
            metrics.time_to_first_token.observe(self._first - self._arrived)
            per_choice = usage.completion_tokens / len(self._choices)
            if per_choice > 1:
                metrics.time_per_output_token.observe((now - self._first) / (per_choice - 1))


class ModelFailed(Exception):
    """Its message may be shown."""


def error_body(error: Exception) -> ErrorBody:
    """What a client may know of an error. The only place that decides it."""
    match error:
        case RequestError():
            return ErrorBody(
                error=ErrorDetail(message=error.message, type=error.type, param=error.param, code=error.code)
            )
        case EngineDead():
            return ErrorBody(error=ErrorDetail(message=str(error), type="server_error", code="engine_unavailable"))
        case ModelFailed():
            return ErrorBody(error=ErrorDetail(message=str(error), type="server_error", code="model_failed"))
        case _:
            # Class and lines only: the message of an unforeseen error may quote a prompt.
            where = "; ".join(f"{f.filename}:{f.lineno}" for f in traceback.extract_tb(error.__traceback__))
            log.error("unforeseen %s at %s", type(error).__name__, where)
            return ErrorBody(error=ErrorDetail(message="internal error", type="server_error", code="internal_error"))


def error_response(error: Exception) -> Response:
    headers = {}
    status = 500
    if isinstance(error, RequestError):
        status = error.status
    elif isinstance(error, EngineDead):
        status = 503
    if isinstance(error, Overloaded):
        headers["retry-after"] = str(error.retry_after_s)
    return Response(error_body(error).model_dump_json(), status, headers, media_type=JSON)


async def _not_found(_request: Request, _: Exception) -> Response:
    return error_response(_no_route("no such path", 404))


async def _wrong_method(request: Request, _: Exception) -> Response:
    return error_response(_no_route(f"{request.method} is not allowed here", 405))


def _no_route(message: str, status: int) -> RequestError:
    error = InvalidRequest(message)
    error.status = status
    return error


def _invalid(invalid: ValidationError) -> InvalidRequest:
    """The first thing wrong with a body, naming the field and never quoting its value."""
    first = invalid.errors(include_url=False, include_context=False, include_input=False)[0]
    path = ""
    for part in first["loc"]:
        if isinstance(part, int):
            path += f"[{part}]"
        elif part.isidentifier() and part not in ("str", "int", "list"):  # pydantic names union members in the path
            path += f".{part}" if path else part
        else:
            break
    if first["type"] == "json_invalid":
        return InvalidRequest(f"the body is not valid JSON: {first['msg'].removeprefix('Invalid JSON: ')}")
    return InvalidRequest(f"{path}: {first['msg']}" if path else first["msg"], param=path or None)


def _request_id(request: Request) -> str:
    given = request.headers.get(REQUEST_ID_HEADER, "")
    return given if REQUEST_ID.fullmatch(given) else uuid.uuid4().hex
