"""The HTTP API that all backends share: how a body is read and an error is answered, the model's
name, health, metrics, and the owner's commands. Logs contain no text of requests or answers."""

import asyncio
import re
import time
import uuid
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

import msgspec
from pydantic import BaseModel, ValidationError
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from backend.answer.error_bodies import JSON, error_response
from backend.answer.weights import Weights
from backend.errors import ContextLengthExceeded, EngineDead, InvalidRequest, ModelUnknown, RequestError
from backend.process.gpu_meter import GpuMeter
from backend.process.messages import Ready
from backend.process.metrics import CONTENT_TYPE, Metrics
from backend.process.replicas import Engines
from backend.server.evidence import EvidenceSource
from backend.server.lifecycle import Lifecycle, LifecycleState
from backend.wire import (
    ADAPTER_SEPARATOR,
    EVIDENCE_PATH,
    FIELDS,
    PROJECT_HEADER,
    REQUEST_ID_HEADER,
    WEIGHTS_PATH,
    EvidenceReport,
    EvidenceRequest,
    Model,
    ModelList,
)

MAX_BODY_BYTES = 8 << 20
SCRUB_TIMEOUT_S = 60.0
SHRINKING = 3  # a tokenizer may normalise: NFC makes at most three bytes one (UAX 15, section 3)
LONG_TEXT = 20_000  # characters; tokenising more than this would hold up other streams, so a thread does it
REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,128}")
MAX_PROJECT = 128
R = TypeVar("R", bound=BaseModel)
T = TypeVar("T")
E = TypeVar("E")
Endpoint = Callable[[Request], Awaitable[Response]]


@dataclass(frozen=True, slots=True)
class Identity:
    """Whose backend this is; said in /v1/models and in logs, enforced by `tls`."""

    tenant: str = ""
    region: str = ""
    backend_id: str = ""


MODEL_ROUTES: Final = (
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/embeddings",
    "/v1/rerank",
    "/v2/rerank",
    "/rerank",
    "/v1/score",
    "/score",
    "/tokenize",
    "/detokenize",
)
"""Routes of all kinds of models."""


class BaseApi:
    """The parts that endpoints share. meter: of the engine's card."""

    def __init__(self, engine: Engines, served_name: str, identity: Identity, meter: GpuMeter | None = None) -> None:
        self.engine = engine
        self.served_name = served_name
        self.identity = identity
        self.weights = Weights(None)  # none until the server says which (`serving`)
        self.speculation: str | None = None  # how tokens are guessed; likewise
        self.evidence = EvidenceSource()
        self.lifecycle = Lifecycle(engine, error_response)
        self.metrics = Metrics(
            served_name,
            lambda: engine.stats,
            lambda: engine.alive,
            lambda: self.lifecycle.state is LifecycleState.ASLEEP,
            meter,
        )
        self._created = int(time.time())

    def app_of(self, endpoints: dict[str, Endpoint], of_others: Endpoint, also: Sequence[Route] = ()) -> Starlette:
        """An ASGI application of these, by path and all of them POST, beside what every backend answers. `of_others`
        refuses what a model of another kind would answer; `also` are further routes. The engine's life is its owner's
        affair (`serving`)."""
        routes = dict.fromkeys(MODEL_ROUTES, of_others) | endpoints
        return Starlette(
            routes=[
                *(Route(path, self._guard(endpoint), methods=["POST"]) for path, endpoint in routes.items()),
                *also,
                Route("/v1/models", self.models),
                Route("/healthz", self.healthz),
                Route(WEIGHTS_PATH, self.show_weights),
                Route(EVIDENCE_PATH, self._guard(self.attest), methods=["POST"]),
                *self.lifecycle.routes(),
                Route("/metrics", self.show_metrics),
                Route("/scrub", self._guard(self.scrub), methods=["POST"]),
            ],
            exception_handlers={404: _not_found, 405: _wrong_method},
        )

    def _guard(self, endpoint: Endpoint) -> Endpoint:
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

    async def models(self, _: Request) -> Response:
        ready = self.engine.ready
        model = Model(
            id=self.served_name,
            created=self._created,
            owned_by=self.identity.tenant or "domicile",
            max_model_len=None if ready is None else ready.max_model_len,
            capabilities=self.capabilities,
            speculation=self.speculation,
        )
        adapted = [
            model.model_copy(update={"id": f"{self.served_name}{ADAPTER_SEPARATOR}{adapter.name}"})
            for adapter in self.engine.adapters
        ]
        return Response(ModelList(data=[model, *adapted]).model_dump_json(exclude_none=True), media_type=JSON)

    @property
    def capabilities(self) -> dict[str, bool]:
        """What the model can be asked for, by the words of ``/v1/models``."""
        return {}

    async def close(self) -> None:
        """End what the API started besides the engine."""

    async def show_weights(self, _: Request) -> Response:
        """Which weights are served: their digests and the signature beside them."""
        if not self.weights.is_known:
            return Response(status_code=503, headers={"retry-after": "1"})
        return Response((await self.weights.report()).model_dump_json(exclude_none=True), media_type=JSON)

    async def attest(self, request: Request) -> Response:
        """What the hardware attests, for the nonce of the request."""
        asked = await self.body(request, EvidenceRequest)
        weights = (await self.weights.report()).sha256
        if weights is None:
            raise InvalidRequest(
                "the digest of the weights is not known, so nothing can be bound to it; see GET /weights"
            )
        pieces = await self.evidence.collect(bytes.fromhex(asked.nonce), weights)
        return Response(EvidenceReport(evidence=pieces).model_dump_json(), media_type=JSON)

    async def healthz(self, _: Request) -> Response:
        """This process answers."""
        return Response('{"status":"ok"}', media_type=JSON)

    async def show_metrics(self, _: Request) -> Response:
        return Response(self.metrics.render(), headers={"content-type": CONTENT_TYPE})

    async def scrub(self, _: Request) -> Response:
        """Drop unused prefixes and zero the free KV blocks; returns what reading them back found."""
        done = await self.engine.scrub(SCRUB_TIMEOUT_S)
        return Response(msgspec.json.encode({"blocks": done.blocks, "residue_bytes": done.residue}), media_type=JSON)

    async def body(self, request: Request, kind: type[R]) -> R:
        """Raises RequestError for what is too large, no such request, or for another model."""
        body = bytearray()
        async for chunk in request.stream():
            body += chunk
            if len(body) > MAX_BODY_BYTES:
                raise BodyTooLarge(f"the body is larger than {MAX_BODY_BYTES} bytes; send a smaller body")
        try:
            wire = kind.model_validate_json(bytes(body))
        except ValidationError as invalid:
            raise _invalid(invalid) from None
        self.require_model(getattr(wire, "model", None), project_of(request))
        return wire

    def require_model(self, model: str | None, project: str) -> None:
        """Raises ModelUnknown for a name that is not served here."""
        if model not in (self.served_name, None):
            raise ModelUnknown(f"this backend serves {self.served_name!r} only; send this name as model", param="model")

    async def run_in_thread_if_long(self, work: Callable[[T], E], subject: T, length: int) -> E:
        """In a thread, if the text is long."""
        return await asyncio.to_thread(work, subject) if length > LONG_TEXT else work(subject)

    def require_short(self, characters: int, most_bytes_of_a_token: int, param: str) -> None:
        """Raises ContextLengthExceeded for a text that no tokenizer can fit into the context, before any work on it."""
        most = self.ready().max_model_len
        if characters > most * most_bytes_of_a_token * SHRINKING:
            raise ContextLengthExceeded(
                f"This model's maximum context length is {most} tokens; {characters} characters are more than that",
                param=param,
            )

    def require_few(self, messages: int) -> None:
        """Raises ContextLengthExceeded for more messages than the context has tokens: each takes at least one."""
        most = self.ready().max_model_len
        if messages > most:
            raise ContextLengthExceeded(
                f"This model's maximum context length is {most} tokens; {messages} messages are more than that",
                param="messages",
            )

    def ready(self) -> Ready:
        """What the engine said of itself. Raises EngineDead while there is none."""
        if self.engine.ready is None:
            raise EngineDead("the engine of this backend has not started; try again when /readyz answers 200")
        return self.engine.ready


class BodyTooLarge(RequestError):
    status = 413
    code = "request_too_large"


async def _not_found(_request: Request, _: Exception) -> Response:
    return error_response(_no_route("no such path; see docs/api.md", 404))


async def _wrong_method(request: Request, _: Exception) -> Response:
    return error_response(_no_route(f"{request.method} is not allowed here; see docs/api.md", 405))


def _no_route(message: str, status: int) -> RequestError:
    error = InvalidRequest(message)
    error.status = status
    return error


KIND_MISMATCHES = frozenset({"string_type", "int_type", "float_type", "bool_type", "list_type", "dict_type"})
UNION_MEMBER = re.compile(r"str|int|list|(?:list|dict|function-\w+|constrained-\w+)\[.*")


def _invalid(invalid: ValidationError) -> InvalidRequest:
    """What is wrong with the first bad field of a body, naming the field and never quoting its value.

    Of a field that may be several kinds of value pydantic reports an error for each kind; the one that fits the kind
    that was sent says what is wrong.
    """
    errors = invalid.errors(include_url=False, include_context=False, include_input=False)
    of_field = [one for one in errors if one["loc"][:1] == errors[0]["loc"][:1]]
    error = max(of_field, key=lambda one: (one["type"] not in KIND_MISMATCHES, len(one["loc"])))
    path = ""
    for part in error["loc"]:
        if isinstance(part, int):
            path += f"[{part}]"
        elif part in FIELDS and part not in ("str", "int", "list"):
            path += f".{part}" if path else part
        elif not UNION_MEMBER.fullmatch(part):  # pydantic names union members in the path
            break
    if error["type"] == "json_invalid":
        return InvalidRequest(
            f"the body is not valid JSON: {error['msg'].removeprefix('Invalid JSON: ')}; send valid JSON"
        )
    said = error["msg"].removeprefix("Value error, ")
    if error["type"] != "value_error":
        said = f"the value is not valid; {said[:1].lower()}{said[1:]}"
    return InvalidRequest(f"{path}: {said}" if path else said, param=path or None)


def request_id(request: Request) -> str:
    given = request.headers.get(REQUEST_ID_HEADER, "")
    return given if REQUEST_ID.fullmatch(given) else uuid.uuid4().hex


def project_of(request: Request) -> str:
    return request.headers.get(PROJECT_HEADER, "")[:MAX_PROJECT]
