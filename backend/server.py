"""The HTTP face of a backend: OpenAI's endpoints, health and metrics, as plain Starlette routes.

A request is read, checked, turned into token ids, and handed to the engine; its tokens come back as events and become
text here. Whoever leaves is noticed at once, and the engine told. Logs hold no text of anybody's.
"""

import asyncio
import re
import time
import uuid
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import msgspec
from pydantic import ValidationError
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from backend.answers import Answer, CompletionAnswer
from backend.chat_answer import chat_answer
from backend.conversation import ChatModel
from backend.engine.grammar import Grammars, GrammarTooComplex
from backend.engine_client import EngineClient
from backend.error_bodies import JSON, error_response
from backend.errors import EngineDead, InvalidRequest, ModelUnknown, RequestError
from backend.generation import GenerationResponse
from backend.gpu_meter import GpuMeter
from backend.lifecycle import Lifecycle, State
from backend.messages import Ready
from backend.metrics import CONTENT_TYPE, Metrics
from backend.models.tokenizer import TextModel
from backend.parameters import Job, bad_word_tokens, completion_prompts, job
from backend.structured import grammar_of
from backend.tokenization import Tokenization
from backend.unsupported import refuse_unsupported
from backend.wire import (
    FIELDS,
    PROJECT_HEADER,
    REQUEST_ID_HEADER,
    ChatCompletionRequest,
    CompletionRequest,
    GenerationRequest,
    Model,
    ModelList,
    WireModel,
)

MAX_BODY_BYTES = 8 << 20
SCRUB_TIMEOUT_S = 60.0
COMPILE_TIMEOUT_S = 5.0
LONG_TEXT = 20_000  # characters; tokenising more than this would hold up other streams, so a thread does it
REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,128}")
G = TypeVar("G", bound=GenerationRequest)
R = TypeVar("R", bound=WireModel)
T = TypeVar("T")
E = TypeVar("E")
MAX_PROJECT = 128


@dataclass(frozen=True, slots=True)
class Identity:
    """Whose backend this is; said in /v1/models and in logs, enforced by `tls`."""

    tenant: str = ""
    region: str = ""
    backend_id: str = ""


class Api:
    def __init__(
        self, engine: EngineClient, text_model: TextModel, served_name: str, identity: Identity,
        chats: ChatModel | None = None, meter: GpuMeter | None = None,
    ) -> None:  # fmt: skip
        """``chats``: by default what the model's template says. ``meter``: of the engine's card."""
        self.engine = engine
        self.text_model = text_model
        self.chats = chats or ChatModel(text_model)
        self.served_name = served_name
        self.identity = identity
        self.lifecycle = Lifecycle(engine, error_response)
        self.metrics = Metrics(
            served_name, lambda: engine.stats, lambda: engine.alive, lambda: self.lifecycle.state is State.ASLEEP, meter
        )
        self.fingerprint: str | None = None  # see `backend.fingerprint`; until it is known, answers have none
        self._created = int(time.time())
        self._grammars: Grammars | None = None

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
                *self.lifecycle.routes(),
                Route("/metrics", self.show_metrics),
                Route("/scrub", self._guard(self.scrub), methods=["POST"]),
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
        answer = chat_answer(
            _request_id(request), self.served_name, turn, usage_in_chunks=wire.wants_usage_chunk,
            fingerprint=self.fingerprint,
        )  # fmt: skip
        job = await self._job(
            request, wire, [turn.prompt], "messages", calls=turn.grammar, thoughts_end=turn.thoughts_end
        )
        return self._generate(wire, job, answer, arrived, turn.text_model)

    async def completions(self, request: Request) -> Response:
        arrived = time.monotonic()
        wire = await self._read(request, CompletionRequest)
        encode = partial(self.text_model.encode_completion, add_special_tokens=wire.add_special_tokens is not False)
        prompts = [await self._aside(encode, p, len(p)) if isinstance(p, str) else p for p in completion_prompts(wire)]
        answer = CompletionAnswer(
            _request_id(request), self.served_name, usage_in_chunks=wire.wants_usage_chunk,
            fingerprint=self.fingerprint,
        )  # fmt: skip
        job = await self._job(request, wire, prompts, "prompt")
        return self._generate(wire, job, answer, arrived, self.text_model)

    async def models(self, _: Request) -> Response:
        model = Model(id=self.served_name, created=self._created, owned_by=self.identity.tenant or "domicile")
        return Response(ModelList(data=[model]).model_dump_json(), media_type=JSON)

    async def healthz(self, _: Request) -> Response:
        """This process answers."""
        return Response('{"status":"ok"}', media_type=JSON)

    async def show_metrics(self, _: Request) -> Response:
        return Response(self.metrics.render(), headers={"content-type": CONTENT_TYPE})

    async def scrub(self, _: Request) -> Response:
        """Empty the prefix cache and zero the KV blocks of nobody; says what reading them back found."""
        done = await self.engine.scrub(SCRUB_TIMEOUT_S)
        return Response(msgspec.json.encode({"blocks": done.blocks, "residue_bytes": done.residue}), media_type=JSON)

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

    async def _job(
        self, request: Request, wire: GenerationRequest, prompts: list[list[int]], param: str, *,
        calls: str = "", thoughts_end: int | None = None,
    ) -> Job:  # fmt: skip
        """calls: the grammar of forced calls. thoughts_end: the token behind which a grammar begins to hold."""
        ready = self._ready()
        return job(
            wire,
            prompts,
            max_model_len=ready.max_model_len,
            vocab_size=ready.vocab_size,
            param=param,
            project=_project(request),
            grammar=await self._grammar(wire, calls),
            grammar_after=thoughts_end,
            bad_words=bad_word_tokens(wire.bad_words or (), self.text_model.encode_words),
        )

    async def _grammar(self, wire: GenerationRequest, calls: str) -> str:
        """Compiled once here, in a thread, so that the caller hears what is wrong with it before anything runs."""
        grammar, param = await asyncio.to_thread(grammar_of, wire)
        if calls:
            if grammar:
                raise InvalidRequest("an answer cannot be a call and of another form at once", param="tool_choice")
            grammar, param = calls, "tool_choice"
        if grammar:
            if not self.text_model.eos_ids:
                raise InvalidRequest("this model has no end token, so it cannot be held to a form", param=param)
            if self._grammars is None:
                self._grammars = await asyncio.to_thread(Grammars, self.text_model, self.text_model.vocab_size)
            try:
                await asyncio.wait_for(asyncio.wrap_future(self._grammars.compiled(grammar)), COMPILE_TIMEOUT_S)
            except InvalidRequest as refused:
                raise type(refused)(refused.message, param=param) from None
            except TimeoutError:
                raise GrammarTooComplex("compiling the grammar takes too long", param=param) from None
        return grammar

    def _generate(
        self, wire: GenerationRequest, job: Job, answer: Answer, arrived: float, text_model: TextModel
    ) -> Response:
        if wire.skip_special_tokens is False:
            text_model = text_model.outspoken
        call = self.engine.submit(job.sequences)
        return GenerationResponse(
            text_model, self.metrics, job, call, answer, arrived,
            stream=bool(wire.stream), usage=wire.wants_usage_chunk,
        )  # fmt: skip


class BodyTooLarge(RequestError):
    status = 413
    code = "request_too_large"


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
        elif part in FIELDS and part not in ("str", "int", "list"):  # pydantic names union members in the path
            path += f".{part}" if path else part
        else:
            break
    if first["type"] == "json_invalid":
        return InvalidRequest(f"the body is not valid JSON: {first['msg'].removeprefix('Invalid JSON: ')}")
    return InvalidRequest(f"{path}: {first['msg']}" if path else first["msg"], param=path or None)


def _request_id(request: Request) -> str:
    given = request.headers.get(REQUEST_ID_HEADER, "")
    return given if REQUEST_ID.fullmatch(given) else uuid.uuid4().hex


def _project(request: Request) -> str:
    return request.headers.get(PROJECT_HEADER, "")[:MAX_PROJECT]
