"""The way of a request, in ten steps. Read this file first.

Nothing leaves for a backend before its intent is on record, and no answer is complete before its outcome is (fail
closed, twice). Every step hands on or refuses; what policy refuses is recorded like an answer.
"""

import asyncio
import logging
import traceback
from dataclasses import dataclass
from pathlib import Path
from secrets import token_hex
from time import perf_counter
from typing import Any
from urllib.parse import quote

from pydantic_core import from_json, to_json

from audit.receipt import Receipt
from backend.wire import Usage, fingerprint_of
from gateway.authentication import Authenticator
from gateway.client import Client, ClientGone, Header
from gateway.content import Content, subject_of
from gateway.errors import (
    BackendFailed,
    BackendRefused,
    BackendTimeout,
    BackendUnavailable,
    GatewayError,
    InternalError,
    RedactionRefused,
)
from gateway.exchange import Exchange, Route
from gateway.identity.principal import Principal
from gateway.judge import Judge
from gateway.meter import Meter
from gateway.names import NameFinder
from gateway.openai.answer import StreamRewriter, rewrite_body
from gateway.openai.embeddings import read_embeddings
from gateway.openai.endpoint import Endpoint, parse_call
from gateway.openai.sse import sse_data
from gateway.parking import Parking
from gateway.prompt import Prompt, output_refused, prepare, unredacted
from gateway.recorder import Recorder
from gateway.relay import StreamRelay
from gateway.routes import Routes
from gateway.settings import Requests
from gateway.telemetry import Telemetry
from gateway.upstream import Answer, Upstream
from policy.decision import Decision
from policy.errors import RedactionError
from policy.redact.redactor import Redactor

logger = logging.getLogger("domicile.gateway")

JSON: Header = (b"content-type", b"application/json")
EVENT_STREAM: tuple[Header, ...] = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),  # a proxy in front must not hold the stream back
)
DEBUG_HEADER = "x-domicile-debug"
MAX_ANSWER_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class Pipeline:
    """The parts a request passes; each can be replaced by another of the same shape."""

    authenticator: Authenticator
    meter: Meter
    judge: Judge
    routes: Routes
    parking: Parking
    recorder: Recorder
    upstream: Upstream
    names: NameFinder
    telemetry: Telemetry
    settings: Requests

    async def answer(self, endpoint: Endpoint, client: Client) -> None:
        """Answer one request. Errors become answers here; only the server's own cancellation goes on."""
        exchange: Exchange | None = None
        principal: Principal | None = None
        step = self.telemetry.step
        with self.telemetry.request_span(endpoint.operation, client.headers):
            try:
                with step("authenticate"):  # 1. before a byte of a stranger's body is read
                    principal = await self.authenticator.authenticate(client.headers, client.address)
                with step("parse"):  # 2.
                    raw = await client.body(self.settings.max_body_bytes, self.settings.body_timeout_s)
                    call = parse_call(endpoint, raw)
                    subject = subject_of(client.headers, call.body)
                trace_id = self.telemetry.trace_id(client.headers)
                exchange = Exchange(f"req-{token_hex(12)}", principal, call, subject, trace_id)
                client.cancel_when_gone()
                with step("limit"):  # 3.
                    held = await self.meter.reserve(exchange)
                async with held:  # settled with real usage on the way out
                    decision, prompt, routes = await self._find_way(exchange, client)  # 4 to 6
                    await self._forward(exchange, decision, prompt, routes, client)  # 7 to 10
            except ClientGone:
                self.recorder.gone(endpoint.path, client.address, principal)
            except GatewayError as error:
                await self._refuse(exchange, client, error, endpoint, principal)
            except RedactionError as error:
                await self._refuse(exchange, client, output_refused(error), endpoint, principal)
            except asyncio.CancelledError:
                if exchange is not None:
                    await self.recorder.aborted(exchange, "client_disconnected" if client.gone else "gateway_stopped")
                if exchange is None or exchange.intent is None:
                    self.recorder.gone(endpoint.path, client.address, principal)
                if not client.gone:
                    raise
            except Exception as error:
                logger.error("%s: %s", exchange.request_id if exchange else "request", _without_content(error))
                failed = InternalError("The gateway failed; the call was not completed")
                await self._refuse(exchange, client, failed, endpoint, principal)
            finally:
                client.stop_watching()
                self.telemetry.finished(endpoint, exchange, client.status)

    async def _find_way(self, exchange: Exchange, client: Client) -> tuple[Decision, Prompt, list[Route]]:
        """Once more from the beginning after waiting for a backend: key and policy may be others by then."""
        step = self.telemetry.step
        while True:
            with step("decide"):  # 4. pure: the policy and the facts
                decision, redactor = self.judge.decide(exchange)
            with step("redact"):  # 5. an error here denies, or leaves sovereign backends alone
                decision, prompt = await self._inspected(exchange, decision, redactor)
            try:
                with step("route"):  # 6. this tenant's backends that the decision allows, best first
                    return decision, prompt, self.routes.choose(exchange, decision)
            except BackendUnavailable:
                if not await self.parking.wait(exchange, client, [*EVENT_STREAM, *_provenance(exchange, None)]):
                    raise
                exchange.principal = await self.authenticator.authenticate(client.headers, client.address)
                exchange.decision = None  # made under what was in force before the wait

    async def _inspected(self, exchange: Exchange, decision: Decision, redactor: Redactor) -> tuple[Decision, Prompt]:
        call, principal = exchange.call, exchange.principal
        try:
            names = await self.names.names_in(call, redactor, principal.tenant)
            prompt = prepare(call, redactor, principal.project, names, decision.priority)
        except RedactionRefused as failure:
            narrowed = self.judge.narrowed(exchange, decision, failure)
            return narrowed, unredacted(call, redactor, principal.project, decision.priority)
        exchange.redactions_in = prompt.counts
        if days := decision.retention.content_days:  # never of a prompt that could not be inspected
            exchange.content = Content(call.raw, prompt.body, exchange.subject, days)
        return decision, prompt

    async def _forward(
        self, exchange: Exchange, decision: Decision, prompt: Prompt, routes: list[Route], client: Client
    ) -> None:
        step = self.telemetry.step
        for exchange.attempt, route in enumerate(routes):
            exchange.route = route
            self.judge.check_running(exchange)
            body = prompt.body_for(route.backend)
            if exchange.content is not None:
                exchange.content.leaves(body)
            with self.routes.in_flight(exchange, decision, route) as call:  # looked at again, for each attempt
                with step("write_ahead"):  # 7. durable before the first byte leaves
                    await self.recorder.accepted(exchange, route)
                try:
                    exchange.called = perf_counter()
                    with step("call"):  # 8. mutual TLS, exact identity
                        async with self.upstream.call(
                            self.routes.target(route.backend),
                            exchange.call.endpoint.path,
                            body,
                            exchange.request_id,
                            str(exchange.intent or ""),  # its token says that it is on record
                            exchange.principal.project or "",
                        ) as answer:
                            self.routes.answered(exchange, call)
                            await self._deliver(exchange, prompt, answer, client)  # 9 and 10
                    return
                except BackendRefused:
                    exchange.called = None
                    raise
                except (BackendUnavailable, BackendTimeout, BackendFailed) as error:
                    exchange.called = None  # it is not the caller who pays for a backend that failed
                    call.failed()
                    logger.warning("%s: backend %s: %s", exchange.request_id, route.backend.id, error.message)
                    unsent = isinstance(error, BackendUnavailable) and (client.held or not client.started)
                    if not unsent or exchange.attempt + 1 == len(routes):
                        raise

    async def _deliver(self, exchange: Exchange, prompt: Prompt, answer: Answer, client: Client) -> None:
        if exchange.call.stream:
            await self._deliver_stream(exchange, prompt, answer, client)
        else:
            await self._deliver_whole(exchange, prompt, answer, client)

    async def _deliver_whole(self, exchange: Exchange, prompt: Prompt, answer: Answer, client: Client) -> None:
        raw = await answer.body(MAX_ANSWER_BYTES)
        self.judge.check_running(exchange)
        exchange.first_byte = perf_counter()
        with self.telemetry.step("restore"):  # 9.
            if exchange.call.endpoint.generates:
                body = _generated(exchange, raw)
            else:
                body, exchange.usage = read_embeddings(raw)
                raw = to_json(body)
            if prompt.output is not None:
                rewrite_body(body, prompt.output.make)
                exchange.redactions_out = prompt.output.counts
                raw = to_json(body)
            if client.headers.get(DEBUG_HEADER) == "upstream":
                raw = to_json({**body, "domicile": {"upstream_request": prompt.fields}})
        if exchange.content is not None:
            exchange.content.hear(body)
        exchange.bytes_out = len(raw)
        with self.telemetry.step("record"):  # 10. durable before the body
            receipt = await self.recorder.completed(exchange)
        await client.start(200, [JSON, (b"content-length", b"%d" % len(raw)), *_provenance(exchange, receipt)])
        await client.end(raw)

    async def _deliver_stream(self, exchange: Exchange, prompt: Prompt, answer: Answer, client: Client) -> None:
        if not answer.is_event_stream:
            raise BackendFailed("The backend answered a stream with something else")
        relay = StreamRelay(exchange, StreamRewriter(prompt.output.make) if prompt.output else None)
        await client.start(200, [*EVENT_STREAM, *_provenance(exchange, exchange.intent)])
        with self.telemetry.step("restore"):  # 9. filtered as it comes
            try:
                async for piece in relay.pieces(answer.pieces()):
                    self.judge.check_running(exchange)
                    if exchange.first_byte is None:
                        exchange.first_byte = perf_counter()
                    exchange.bytes_out += len(piece)
                    if exchange.content is not None:
                        exchange.content.hear_piece(piece)
                    await client.write(piece)
            except (BackendFailed, BackendTimeout):
                rest = relay.remainder()  # what was said until then, through the filter
                if exchange.content is not None:
                    exchange.content.hear_piece(rest)
                await client.write(rest)
                raise
            finally:
                if prompt.output is not None:
                    exchange.redactions_out = prompt.output.counts
        with self.telemetry.step("record"):  # 10. durable before `[DONE]`
            await self.recorder.completed(exchange)
        await client.end(relay.ending())

    async def _refuse(
        self,
        exchange: Exchange | None,
        client: Client,
        error: GatewayError,
        endpoint: Endpoint,
        principal: Principal | None,
    ) -> None:
        """Record or count the refusal, then tell the client: as a status, or inside a stream that has begun as an
        event."""
        client.stop_watching()  # from here on nothing may be cut short: the outcome goes on record
        recorded = False
        if exchange is not None:
            error, recorded = await self.recorder.refused(exchange, error)
        if not recorded:
            self.recorder.turned_away(error, endpoint.path, client.address, principal)
        self.telemetry.errors.labels(error.code or "invalid_request").inc()
        if client.started:
            await client.end(sse_data(error.body()))  # and no `[DONE]`: the answer is not whole
            return
        body = error.body()
        headers = [JSON, (b"content-length", b"%d" % len(body)), *error.headers()]
        if exchange is not None:
            headers += [(b"x-request-id", exchange.request_id.encode()), *exchange.rates]
        await client.start(error.http_status, headers)
        await client.end(body)


def _generated(exchange: Exchange, raw: bytes) -> dict[str, Any]:
    """A whole answer, parsed; its usage and ends are noted."""
    try:
        body: dict[str, Any] = from_json(raw)
        exchange.usage = Usage.model_validate(body["usage"]) if body.get("usage") else None
        exchange.fingerprint = fingerprint_of(body)
        exchange.finish_reasons += [str(choice["finish_reason"]) for choice in body["choices"]]
        for choice in body["choices"]:
            exchange.count_tool_calls(choice.get("message"))
    except (ValueError, KeyError, TypeError, AttributeError):
        raise BackendFailed("The backend's answer is not an OpenAI answer") from None
    return body


def _without_content(error: BaseException) -> str:
    """Type and place of an error, never what it says: that may quote the prompt."""
    places = traceback.extract_tb(error.__traceback__)[-3:]
    return f"{type(error).__name__} at " + " < ".join(f"{Path(p.filename).name}:{p.lineno}" for p in reversed(places))


def _provenance(exchange: Exchange, receipt: Receipt | None) -> list[Header]:
    """What the client may keep as evidence: where its call really ran, by which policy, and where that stands."""
    route, decision = exchange.route, exchange.decision
    headers = [(b"x-request-id", exchange.request_id.encode()), *exchange.rates]
    if receipt is not None:
        headers.append((b"x-domicile-receipt", str(receipt).encode()))
    if route is not None:
        headers.append((b"x-domicile-region", route.backend.region.encode()))
        headers.append((b"x-domicile-backend", route.backend.id.encode()))
        headers.append((b"x-domicile-country", (route.facts.compute_country or "").encode()))
        headers.append((b"x-domicile-operator", quote(route.facts.operator or "", safe=" ().,&'/-").encode()))
    if decision is not None:
        headers.append((b"x-domicile-decision", f"allow {decision.policy_id}@{decision.version}".encode()))
        headers += [
            (f"x-domicile-notice-{notice.name}".encode(), notice.text.encode())
            for notice in decision.notices
            if notice.channel == "header"
        ]
    return headers
