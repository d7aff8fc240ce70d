"""The path of a request in ten steps. Read this file first.

Nothing is sent to a backend before its intent is recorded, and no answer is completed before its outcome is. Each step
takes the stage that it needs and returns the next (`gateway.request.stages`), or raises an error that
`gateway.request.outcome` converts for the client.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from time import perf_counter

from audit.log.receipt import Receipt
from audit.random_pieces import RandomPieces
from gateway.api_format import CallState, GoesOn
from gateway.configuration.bounds import Bounds
from gateway.content.encoded_body import coding_of, unpacked
from gateway.content.inspection import Inspection
from gateway.content.retained_content import subject_of
from gateway.directory.model_names import Naming, next_model, resolved
from gateway.errors import BackendRefused, GatewayError
from gateway.openai.asgi_client import Client
from gateway.openai.checked_call import Call
from gateway.openai.endpoints import Endpoint
from gateway.records.adapters import AdapterRecord
from gateway.request.answer import commitments, fingerprints, manifests
from gateway.request.answer.attempt import MAX_BROKEN, Attempt
from gateway.request.answer.delivery import Delivery
from gateway.request.answer.headers import request_id
from gateway.request.answer.keep_alive import KeepAlive
from gateway.request.answer.kept_responses import KeptResponses, is_queued, queued_headers
from gateway.request.answer.marking import Marker
from gateway.request.answer.received import ReceivedAnswer
from gateway.request.answer.tenant_keys import TenantKeys
from gateway.request.authentication import Authenticator
from gateway.request.enforcement import PolicyEnforcement
from gateway.request.evaluation import Evaluation
from gateway.request.exchange import Exchange
from gateway.request.outcome import CallOutcome
from gateway.request.recorder import Recorder
from gateway.request.reservation import CallLimiter
from gateway.request.routes import Routes
from gateway.request.stages import Accepted, Authenticated, LastBytes, Parsed, Reserved, Routed
from gateway.request.telemetry import Telemetry
from gateway.upstream.adapters import BackendAdapters
from gateway.upstream.client import BackendAnswer, Target, Upstream

_random_id = RandomPieces(12)


@dataclass(frozen=True, slots=True)
class Pipeline:
    """The components that a request passes through. Each can be replaced by another with the same interface."""

    authenticator: Authenticator
    limiter: CallLimiter
    inspection: Inspection
    enforcement: PolicyEnforcement
    evaluation: Evaluation
    routes: Routes
    recorder: Recorder
    upstream: Upstream
    adapters: BackendAdapters
    delivery: Delivery
    outcome: CallOutcome
    telemetry: Telemetry
    bounds: Bounds
    responses: KeptResponses
    marker: Marker
    tenant_keys: TenantKeys

    def answer(self, endpoint: Endpoint, client: Client) -> Awaitable[None]:
        """Answer one request. Errors, and cancellation when the server stops, are converted to answers."""
        exchange = Exchange(endpoint, client)
        return self.outcome.of(exchange, self._steps(exchange))

    async def _steps(self, exchange: Exchange) -> None:
        step = self.telemetry.step
        with step("authenticate"):  # 1. authenticate: before a byte of the body is read
            exchange.authenticated = await self.authenticator.admit(exchange.endpoint, exchange.client)
        with step("parse"):  # 2. parse: within bounds
            exchange.parsed = await self._parse(exchange.authenticated)
        if exchange.parsed.call.translation is not None and is_queued(exchange.parsed):
            await self._queue(exchange.parsed, exchange)
            return
        with step("limit"):  # 3. limit: reserve now, settle with real usage when the block ends
            held = await self.limiter.reserve(exchange.parsed, exchange)
        async with held as reserved:
            exchange.reserved = reserved
            while True:  # one attempt; after a failure everything in force is evaluated again
                try:
                    decided = await self.evaluation.decide(reserved, exchange)  # 4. decide: by policy and facts
                    exchange.redacted = redacted = await self.evaluation.redact(decided, exchange)  # 5. redact: or deny
                    # 6. route: the best backend that is allowed
                    routed = await self.evaluation.route(redacted, exchange)
                    if routed is None:  # it has waited for a backend
                        continue
                    if redacted.allowed.marking or redacted.allowed.commits or redacted.content is not None:
                        routed = await self._with_keys(routed)
                    exchange.routed = routed
                    finished: Awaitable[None] | None = None
                    in_flight = self.routes.in_flight(routed.request, redacted.allowed, routed.route)
                    with in_flight as call, Attempt(exchange, routed, call):
                        with step("write_ahead"):  # 7. write_ahead: durable before the first byte leaves
                            exchange.accepted = accepted = await self.recorder.accepted(routed, exchange.accepted)
                        received = exchange.received
                        received.called = perf_counter()
                        silence = self.delivery.keep_alive(accepted, received)
                        with step("call"):  # 8. call: mutual TLS, exact identity
                            async with self._call(accepted, silence) as answer:
                                received.prefill = answer.prefill
                                # 9. restore
                                answered = await self.delivery.restore(accepted, answer, received, call, silence)
                                if routed.redacted.allowed.commits:
                                    commitments.confirm(routed, received)
                                if routed.redacted.allowed.marking:
                                    self._confirm_marks(routed, received)
                                with step("record"):  # 10. record: durable before the last byte
                                    if answered.kept is None:
                                        receipt = await self.recorder.completed(accepted, received)
                                    else:
                                        receipt = await self._kept(accepted, received, answered.kept)
                                finished = self.delivery.finish(answered, receipt)
                except GatewayError as error:  # a name may stand for other models, each evaluated like the first
                    reserved = self._next_model(exchange, reserved, error)
                    continue
                if finished is not None:  # the backend is released, however slowly the client reads
                    await finished
                    return

    async def _with_keys(self, routed: Routed) -> Routed:
        """Return the route with the keys of its marks, once those of retained content are loaded.

        Raises BackendUnavailable and AuditUnavailable; then nothing may be recorded or sent.
        """
        if routed.redacted.content is not None or routed.redacted.allowed.commits:
            await self.tenant_keys.ready(routed)
        if routed.redacted.allowed.marking:
            routed = await self.marker.told(routed)
            await self.delivery.manifests.require(routed)
        return routed

    def _confirm_marks(self, routed: Routed, received: ReceivedAnswer) -> None:
        """Raise BackendFailed or InternalError if a mark that policy demands is missing without a word."""
        self.marker.confirm(routed, received)
        fingerprints.confirm(routed, received)
        manifests.confirm(routed, received)

    def _next_model(self, exchange: Exchange, reserved: Reserved, error: GatewayError) -> Reserved:
        """Return the call for the next model that its name stands for.

        Raises `error` if there is none, if the client has already received part of an answer, or after MAX_BROKEN
        broken ones.
        """
        request = reserved.request if exchange.parsed is None else exchange.parsed
        unsent = request.client.held or not request.client.started
        if request.naming is None or not unsent or exchange.attempts.broken > MAX_BROKEN:
            raise error
        call, naming = next_model(request.call, request.naming, error)
        offered = self.enforcement.offers(request.principal.tenant, call.model)
        return exchange.falls_back(replace(request, call=call, naming=naming, offered=offered), reserved)

    async def _parse(self, authenticated: Authenticated) -> Parsed:
        """Read and check the body. From then on, the request is cancelled when its client disconnects.

        Raises InvalidRequest, and LimitReached if a large body comes from a caller over its limits.
        """
        client, principal = authenticated.client, authenticated.principal
        most = self.bounds.now.max_body_bytes
        coding = coding_of(client.headers) if "content-encoding" in client.headers else None
        raw = await client.body(most, self.bounds.now.body_timeout_s)
        if coding is not None:
            raw = await unpacked(coding, raw, most)
        async with self.limiter.admission(principal, len(raw)) as counted:
            call = await self._read(authenticated, raw)
        naming: Naming | None = None
        if principal.names and (record := principal.names.get(call.model)) is not None:
            call, naming = resolved(call, record)
        subject = subject_of(client.headers, call.body)
        trace_id = self.telemetry.trace_id(client.headers)
        offered = self.enforcement.offers(principal.tenant, call.model)
        client.cancel_when_gone()
        return Parsed(
            f"req-{_random_id().hex()}",
            client,
            principal,
            call,
            subject,
            trace_id,
            offered,
            counted,
            perf_counter(),
            naming,
        )

    async def _read(self, authenticated: Authenticated, raw: bytes) -> Call:
        """Return the call, including the stored items that it continues from. Raises InvalidRequest."""
        endpoint, principal, line = authenticated.endpoint, authenticated.principal, authenticated.client.batch
        if not endpoint.format.keeps_state:
            return await self.inspection.parsed(endpoint, raw, principal.tenant)
        state = CallState(principal.state_secret, response=None if line is None else line.response)
        try:
            return await self.inspection.parsed(endpoint, raw, principal.tenant, state)
        except GoesOn:
            raw, earlier = await self.responses.expanded(principal, raw)
            state = replace(state, earlier=earlier)
            return await self.inspection.parsed(endpoint, raw, principal.tenant, state)

    async def _queue(self, request: Parsed, exchange: Exchange) -> None:
        """Store a call that is to be answered later, if current policy and redaction allow it.

        Both are evaluated again when the call is executed.
        """
        decided = await self.evaluation.decide(Reserved(request, ()), exchange)
        exchange.redacted = redacted = await self.evaluation.redact(decided, exchange)
        body = await self.responses.queue(redacted)
        await request.client.start(200, queued_headers(body, request_id(request)))
        await request.client.end(body)

    async def _kept(self, accepted: Accepted, received: ReceivedAnswer, answer: LastBytes) -> Receipt:
        """Store the answer, then record the outcome, so that a client that has the id can retrieve the answer."""
        keeping = asyncio.ensure_future(self.responses.keep(accepted, answer.taken()))
        try:
            await asyncio.shield(keeping)
            return await self.recorder.completed(accepted, received)
        except BaseException:
            await asyncio.gather(keeping, return_exceptions=True)  # a running thread cannot be interrupted
            await asyncio.shield(self.responses.discard(accepted))
            raise

    def _call(self, accepted: Accepted, silence: KeepAlive | None) -> AbstractAsyncContextManager[BackendAnswer]:
        request, target = accepted.request, self.routes.target(accepted.routed.route.backend)
        adapter = request.principal.adapters.get(request.call.model)
        if adapter is None or self.routes.serves_as_named(request):
            return self._sent(accepted, target, silence)
        return self._adapted(accepted, target, silence, adapter)

    @asynccontextmanager
    async def _adapted(
        self, accepted: Accepted, target: Target, silence: KeepAlive | None, adapter: AdapterRecord
    ) -> AsyncIterator[BackendAnswer]:
        """With the adapter that the call names at the backend before anything of the call is."""
        await self.adapters.ensure(target, adapter, partial(self.evaluation.check, accepted.routed))
        try:
            async with self._sent(accepted, target, silence) as answer:
                yield answer
        except BackendRefused as refused:
            if refused.http_status == 404:
                self.adapters.forget(target, adapter)
            raise

    def _sent(
        self, accepted: Accepted, target: Target, silence: KeepAlive | None
    ) -> AbstractAsyncContextManager[BackendAnswer]:
        request, routed = accepted.request, accepted.routed
        return self.upstream.call(
            target,
            request.call.endpoint.upstream,
            routed.body,
            request.request_id,
            str(accepted.intent),  # the request token names it: our backends accept no call that is not on record
            request.principal.project,
            partial(self.evaluation.check, routed),  # at the moment of the connect
            silence,
            None if routed.mark is None else routed.mark.key,
            self.routes.prefill_place(routed.route),
            routed.redacted.allowed.commits and commitments.are_demanded(routed),
        )
