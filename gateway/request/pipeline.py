"""The way of a request, in ten steps. Read this file first.

Nothing leaves for a backend before its intent is on record, and no answer is complete before its outcome is (fail
closed, twice). Every step hands on or refuses; what policy refuses is recorded like an answer. Steps 4 to 6 are in
`gateway.request.evaluation`, since what they find is checked again before each connect.
"""

import asyncio
import logging
import traceback
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from secrets import token_hex
from time import perf_counter
from urllib.parse import quote

from audit.log.receipt import Receipt
from gateway.configuration.settings import Requests
from gateway.content.inspection import Inspection
from gateway.content.kept_content import subject_of
from gateway.content.prompt import Prompt, output_refused
from gateway.content.whole_answer import Handling
from gateway.errors import (
    BackendFailed,
    BackendRefused,
    BackendTimeout,
    BackendUnavailable,
    GatewayError,
    GatewayStopping,
    InternalError,
    forget_frames,
)
from gateway.identity.principal import Principal
from gateway.openai.asgi_client import Client, ClientGone, Header
from gateway.openai.endpoint import Endpoint
from gateway.openai.finite_json import write
from gateway.openai.sse import sse_data
from gateway.openai.stream_filter import StreamRewriter
from gateway.request.authentication import Authenticator
from gateway.request.enforcement import Judge
from gateway.request.evaluation import Evaluation, Overtaken, Way
from gateway.request.exchange import Exchange
from gateway.request.parking import Parking
from gateway.request.recorder import Recorder
from gateway.request.relay import StreamRelay
from gateway.request.reservation import Meter
from gateway.request.routes import Routes
from gateway.request.telemetry import Telemetry
from gateway.request.whole_answer import note
from gateway.upstream.client import Answer, Upstream
from policy.errors import RedactionError
from regions.fleet.fleet import Call

logger = logging.getLogger("domicile.gateway")

JSON: Header = (b"content-type", b"application/json")
EVENT_STREAM: tuple[Header, ...] = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    (b"x-accel-buffering", b"no"),  # a proxy in front must not hold the stream back
)
DEBUG_HEADER = "x-domicile-debug"
MAX_ANSWER_BYTES = 64 << 20
MAX_BROKEN = 1  # answers of a call that may fail in a backend before the client is told


@dataclass(frozen=True, slots=True)
class Pipeline:
    """The parts a request passes; each can be replaced by another of the same shape."""

    authenticator: Authenticator
    meter: Meter
    judge: Judge
    evaluation: Evaluation
    inspection: Inspection
    routes: Routes
    parking: Parking
    recorder: Recorder
    upstream: Upstream
    telemetry: Telemetry
    settings: Requests

    async def answer(self, endpoint: Endpoint, client: Client) -> None:
        """Answer one request. Errors become answers here, and so does the server's cancellation when it ends."""
        exchange: Exchange | None = None
        principal: Principal | None = None
        refused_model = ""
        step = self.telemetry.step
        with self.telemetry.request_span(endpoint.operation, client.headers):
            try:
                with step("authenticate"):  # 1. before a byte of a stranger's body is read
                    principal = await self.authenticator.authenticate(client.headers, client.address)
                with step("parse"):  # 2.
                    raw = await client.body(self.settings.max_body_bytes, self.settings.body_timeout_s)
                    async with self.meter.admission(principal, len(raw)) as counted:
                        call = await self.inspection.parsed(endpoint, raw, principal.tenant)
                    subject = subject_of(client.headers, call.body)
                trace_id = self.telemetry.trace_id(client.headers)
                exchange = Exchange(f"req-{token_hex(12)}", principal, call, subject, trace_id)
                exchange.offered = self.judge.offers(principal.tenant, call.model)
                client.cancel_when_gone()
                with step("limit"):  # 3.
                    held = await self.meter.reserve(exchange, counted)
                async with held:  # settled with real usage on the way out
                    way = await self._find_way(exchange, client)  # 4 to 6
                    await self._forward(exchange, way, client)  # 7 to 10
            except ClientGone:
                self.recorder.gone(endpoint.path, client.address, principal)
            except GatewayError as error:
                if principal is not None and error.model and self.judge.offers(principal.tenant, error.model):
                    refused_model = error.model
                await self._refuse(exchange, client, error, endpoint, principal)
                forget_frames(error)
            except RedactionError as error:
                await self._refuse(exchange, client, output_refused(error), endpoint, principal)
                forget_frames(error)
            except asyncio.CancelledError:
                if not client.gone:  # the server ends, and has waited as long as it does
                    stopping = GatewayStopping(
                        "The gateway is stopping and cut this call; send it again", retry_after_s=1
                    )
                    await self._refuse(exchange, client, stopping, endpoint, principal)
                    return
                if exchange is not None:
                    await self.recorder.aborted(exchange, "client_disconnected")
                if exchange is None or exchange.intent is None:
                    self.recorder.gone(endpoint.path, client.address, principal)
            except Exception as error:
                logger.error("%s: %s", exchange.request_id if exchange else "request", _without_content(error))
                failed = InternalError("The gateway failed; the call was not completed")
                await self._refuse(exchange, client, failed, endpoint, principal)
            finally:
                client.stop_watching()
                tenant = principal.tenant if principal else ""
                self.telemetry.finished(endpoint, exchange, client.status, tenant, refused_model)

    async def _find_way(self, exchange: Exchange, client: Client) -> Way:
        """Evaluated from the beginning after waiting for a backend: key and policy may be others by then. Where nobody
        starts one, a backend that is left alone after failures is tried."""
        while True:
            way = await self.evaluation.first(exchange)
            if way.routes:
                return way
            if not await self.parking.wait(exchange, client, [*EVENT_STREAM, *_provenance(exchange, None)]):
                way.routes.extend(self.routes.trials(exchange, way.allowed))
                if not way.routes:
                    raise BackendUnavailable(
                        "None of the backends that may answer this is up; try again", retry_after_s=2
                    )
                return way
            await self.evaluation.authenticate_again(exchange, client)

    async def _forward(self, exchange: Exchange, way: Way, client: Client) -> None:
        step = self.telemetry.step
        failure: GatewayError | None = None
        while True:
            route = exchange.route = way.take()
            exchange.attempt = len(way.tried) - 1
            body = way.prompt.body_for(route.backend)
            if exchange.content is not None:
                exchange.content.leaves(body)
            with self.routes.in_flight(exchange, way.allowed, route) as call:  # looked at again, for each attempt
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
                            partial(self.evaluation.check, exchange, way),  # at the moment of the connect
                        ) as answer:
                            await self._deliver(exchange, way.prompt, answer, client, call)  # 9 and 10
                    call.completed()
                    return
                except Overtaken:
                    exchange.called = None
                    way.tried.pop()  # it may be called under what is in force now
                except (BackendRefused, BackendUnavailable, BackendTimeout, BackendFailed) as error:
                    failure = self._failed(exchange, way.prompt, client, call, error)
            way = await self.evaluation.again(exchange, client, way)
            way.routes[:] = [route for route in way.routes if self.routes.may_help(failure, route)]
            if not (way.routes or isinstance(failure, BackendRefused)):
                way.routes.extend(self.routes.trials(exchange, way.allowed, way.tried))
            if not way.routes:
                raise failure or BackendUnavailable("No backend that may answer this is up; try again", retry_after_s=2)

    def _failed(
        self, exchange: Exchange, prompt: Prompt, client: Client, call: Call, error: GatewayError
    ) -> GatewayError:
        """Count a failed attempt against its backend. Returns what the client sees where no other backend can answer;
        raises it where none may be asked."""
        exchange.called = None  # the caller does not pay for a backend that failed
        if isinstance(error, BackendRefused):
            error = prompt.filtered(error)
            exchange.redactions_out = prompt.refusal_counts
            if error.is_busy:
                call.busy(error.retry_after_s)
        else:
            call.failed()
            exchange.broken += isinstance(error, BackendFailed)
        logger.warning("%s: backend %s: %s", exchange.request_id, exchange.backend_id, error.log_line)
        unsent = client.held or not client.started
        # A request that breaks the server that takes it must not break all of them, one after the other.
        if not (unsent and error.elsewhere) or exchange.broken > MAX_BROKEN:
            raise error
        exchange.forget_answer()
        return error

    async def _deliver(self, exchange: Exchange, prompt: Prompt, answer: Answer, client: Client, call: Call) -> None:
        if exchange.call.stream:
            await self._deliver_stream(exchange, prompt, answer, client, call)
        else:
            await self._deliver_whole(exchange, prompt, answer, client, call)

    async def _deliver_whole(
        self, exchange: Exchange, prompt: Prompt, answer: Answer, client: Client, call: Call
    ) -> None:
        raw = await answer.body(MAX_ANSWER_BYTES)
        self.judge.check_running(exchange)
        with self.telemetry.step("restore"):  # 9.
            handling = Handling(exchange.call.endpoint.generates, keeps=exchange.content is not None)
            whole = await self.inspection.whole_answer(raw, handling, prompt.output, exchange.principal.tenant)
            note(exchange, whole.told)
            self.routes.answered(exchange, call)
            if prompt.output is not None:
                exchange.redactions_out = prompt.output.counts
            raw = whole.passed()
            if client.headers.get(DEBUG_HEADER) == "upstream":
                raw = b'%s,"domicile":%s}' % (raw.rstrip()[:-1], write({"upstream_request": prompt.fields}))
        if exchange.content is not None and whole.said is not None:
            exchange.content.hear(whole.said)
        exchange.bytes_out = len(raw)
        with self.telemetry.step("record"):  # 10. durable before the body
            receipt = await self.recorder.completed(exchange)
        await client.start(200, [JSON, (b"content-length", b"%d" % len(raw)), *_provenance(exchange, receipt)])
        await client.end(raw)

    async def _deliver_stream(
        self, exchange: Exchange, prompt: Prompt, answer: Answer, client: Client, call: Call
    ) -> None:
        if not answer.is_event_stream:
            raise BackendFailed("The backend answered a stream with something else")
        relay = StreamRelay(exchange, StreamRewriter(prompt.output.make) if prompt.output else None)
        head = [*EVENT_STREAM, *_provenance(exchange, exchange.intent)]
        begun = False
        with self.telemetry.step("restore"):  # 9. filtered as it comes
            try:
                async for piece in relay.pieces(answer.pieces()):
                    self.judge.check_running(exchange)
                    if not begun:  # until here another backend may still take the call
                        begun = True
                        self.routes.answered(exchange, call)
                        await client.start(200, head)
                    await self._send_piece(exchange, client, piece)
            except (BackendFailed, BackendTimeout):
                if begun:  # what was said until then, through the filter
                    await self._send_piece(exchange, client, relay.remainder())
                raise
            finally:
                if prompt.output is not None:
                    exchange.redactions_out = prompt.output.counts
        if not begun:  # a whole answer that says nothing
            await client.start(200, head)
        with self.telemetry.step("record"):  # 10. durable before `[DONE]`
            await self.recorder.completed(exchange)
        await client.end(relay.ending())

    async def _send_piece(self, exchange: Exchange, client: Client, piece: bytes) -> None:
        exchange.bytes_out += len(piece)
        if exchange.content is not None:
            exchange.content.hear_piece(piece)
        await client.write(piece)

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
        # A backend makes up its own codes, and each would be another series.
        label = "backend_refused" if isinstance(error, BackendRefused) else error.code or "invalid_request"
        self.telemetry.errors.labels(label).inc()
        if client.started:
            await client.end(sse_data(error.body()))  # and no `[DONE]`: the answer is not whole
            return
        body = error.body()
        headers = [JSON, (b"content-length", b"%d" % len(body)), *error.headers()]
        if exchange is not None:
            headers += [(b"x-request-id", exchange.request_id.encode()), *exchange.rates]
        await client.start(error.http_status, headers)
        await client.end(body)


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
