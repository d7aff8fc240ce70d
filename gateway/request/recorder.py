"""Records of a request: the intent before it is sent, and one outcome after it.

Appends return only when the event is durable. If it cannot be made durable, AuditUnavailable is raised and the caller
stops: nothing is forwarded without its intent, and nothing is completed without its outcome.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from time import perf_counter
from typing import Any, Literal, Protocol

from audit import errors as audit_errors
from audit.events.base import Event
from audit.events.event import (
    BackendAttested,
    BackendConnected,
    BackendKeyChanged,
    Decision,
    InferenceAborted,
    InferenceAccepted,
    InferenceCompleted,
    InferenceDenied,
    PrefillRoute,
    Redaction,
    RoutingDecision,
)
from audit.events.event import Reason as RecordedReason
from audit.events.private_value import Private
from audit.log.receipt import Receipt
from gateway.directory.directory import Address
from gateway.errors import AuditUnavailable, GatewayError, InternalError, PolicyDenied, RedactionRefused
from gateway.identity.principal import Principal
from gateway.request.answer.commitments import with_commitments
from gateway.request.answer.fingerprints import fingerprint
from gateway.request.answer.marking import outcome
from gateway.request.answer.received import ReceivedAnswer
from gateway.request.exchange import Exchange
from gateway.request.refusals import CLIENT_GONE, Refusal, Refusals, refusal_of
from gateway.request.stages import Accepted, Parsed, Redacted, Route, Routed
from gateway.request.telemetry import Telemetry
from gateway.upstream.http1 import Peer
from policy.decision.decision import Decision as PolicyDecision
from policy.facts import BackendFacts
from policy.reason import Reason
from policy.redact import ENGINE_VERSION
from regions.fleet.fleet import Backend

logger = logging.getLogger("domicile.gateway")
ADMIN = "/admin/v1"
"""Endpoint recorded for failed authentications at the admin API, whose paths contain names of tenants."""


class Log(Protocol):
    """The part of `audit.AuditLog` that is used here."""

    async def append(self, event: Event, private: Private | None = None) -> Receipt: ...


class Recorder:
    """`address_days`: retention of refused callers' addresses, in days."""

    def __init__(self, log: Log, telemetry: Telemetry, address_days: int = 30) -> None:
        self._log = log
        self._telemetry = telemetry
        self._refusals = Refusals(self._append, address_days)

    async def accepted(self, routed: Routed, before: Accepted | None) -> Accepted:
        """Write ahead: record the intent for the first backend.

        For a later attempt (`before`: what is on record), record a routing decision if the backend or the decision
        differs from the record. Raises AuditUnavailable; then nothing may be sent.
        """
        redacted = routed.redacted
        if before is not None:
            await self._moved(routed, before)
            return Accepted(routed.request, routed, before.intent)
        decision = redacted.allowed
        reasons, naming = decision.reasons, routed.request.naming
        if naming is not None:
            reasons = (*reasons, *naming.passed)
        notices = [notice.name for notice in decision.notices]
        intent = await self._append(
            InferenceAccepted(
                **_call(routed.request, decision, redacted.prompt.counts) | _route(routed),
                decision=_decision("allow", reasons),
                art50_notice=notices[0] if notices else None,
            ),
            redacted.content.asked() if redacted.content else None,
        )
        return Accepted(routed.request, routed, intent)

    async def _moved(self, routed: Routed, before: Accepted) -> None:
        redacted, recorded = routed.redacted, before.routed
        redecided = redacted.prompt is not recorded.redacted.prompt
        if not redecided and (routed.route == recorded.route or _route(routed) == _route(recorded)):
            return  # the record is still correct, also where the backend has shown more of itself since
        moved = routed.route.backend.id != recorded.route.backend.id
        reason = "backend_unavailable" if moved and routed.attempt else "decision_changed"
        if routed.request.call.model != before.request.call.model:
            reason = "model_fallback"
        event = RoutingDecision(**_route(routed) | (_allowed_again(redacted) if redecided else {}), reason=reason)
        await self._append(event, redacted.content.asked() if redecided and redacted.content else None)

    async def completed(self, accepted: Accepted, received: ReceivedAnswer) -> Receipt:
        """Record the outcome. Raises AuditUnavailable; then the answer must not be completed.

        The call counts as closed in both cases: the log itself closes a call whose outcome it could not accept, or
        whose client left meanwhile.
        """
        received.closed = True
        redacted = accepted.routed.redacted
        reasons, content = received.finish_reasons, redacted.content
        private = content.answered() if content else None
        storage = redacted.translation.storage if redacted.translation is not None and redacted.keeps else None
        return await self._append(
            InferenceCompleted(
                **_outcome(accepted, accepted.routed, received, 200),
                finish_reason=reasons[-1] if reasons else None,
                fingerprint=received.fingerprint,
                response_id=storage.response if storage is not None else None,
            ),
            with_commitments(private, accepted.routed, received) if redacted.allowed.commits else private,
        )

    async def refused(self, exchange: Exchange, error: GatewayError) -> tuple[GatewayError, bool]:
        """Record why a call is refused or was aborted.

        Returns the error for the client and whether the call is on record. The error differs from `error` only if the
        refusal cannot be recorded.
        """
        if exchange.accepted is not None:
            await self.aborted(exchange, error.code or "gateway_error", error.http_status, _reasons_of(error))
            return error, True
        reasons = _reasons_of(error)
        if not reasons or exchange.parsed is None:
            return error, False
        reasons = _with_passed(exchange.parsed, reasons)
        fields = _call(exchange.parsed, exchange.decision, exchange.redactions_in)
        try:
            await self._append(InferenceDenied(**fields, decision=_decision("deny", reasons), status=error.http_status))
        except GatewayError as unrecorded:
            return unrecorded, False
        return error, True

    async def aborted(
        self, exchange: Exchange, reason: str, status: int | None = None, reasons: Sequence[Reason] = ()
    ) -> None:
        """Record that an answer was aborted. `reasons`: of a policy that refused the call meanwhile.

        Does not raise, because no client is left to receive an error. What the log cannot accept now, it closes by
        itself when it has recovered, or at the next start.
        """
        accepted, received = exchange.accepted, exchange.received
        if accepted is None or received.closed:
            return
        routed = exchange.routed or accepted.routed  # another model's, if the last model was refused before its attempt
        received.closed = True
        if status is None or status >= 500:  # a refusal is an answer
            tenant = accepted.request.principal.tenant
            self._telemetry.aborted.labels(self._telemetry.tenant_label(tenant), reason).inc()
        if routed.salt is not None:
            await fingerprint(routed, received)
        fields = _outcome(accepted, routed, received, status)
        if reasons:
            fields |= _refused_again(exchange.decision, reasons)
        try:
            await self._append(
                InferenceAborted(**fields, reason=reason), exchange.content.answered() if exchange.content else None
            )
        except GatewayError:
            logger.error(
                "%s: its outcome could not be recorded yet; check the audit log, it is tried again",
                accepted.request.request_id,
            )

    async def connected(self, backend: Backend, peer: Peer) -> None:
        """Record the peer of a new connection, as residency evidence.

        Without TLS, which is used only on this host, there is no such evidence. Raises AuditUnavailable; then nothing
        may be sent on the connection.
        """
        if (event := connection_of(backend, peer)) is not None:
            await self._append(event)

    async def key_changed(self, event: BackendKeyChanged) -> None:
        """A managed service shows another key. Raises AuditUnavailable; then nothing may be sent to it."""
        await self._append(event)

    async def attested(self, event: BackendAttested) -> None:
        """A backend sent evidence of its hardware. Raises AuditUnavailable; then it does not count."""
        await self._append(event)

    def auth_failed(self, reason: str, address: Address | None = None) -> None:
        """Count a failed authentication at the admin API."""
        self._refusals.count(Refusal(401, reason, ADMIN), address)

    def turned_away(
        self, error: GatewayError, endpoint: str | None, address: Address | None, principal: Principal | None = None
    ) -> None:
        """Count a request that was answered with `error` and has no record."""
        self._refusals.count(_of_caller(refusal_of(error, endpoint), principal), address)

    def gone(self, endpoint: str, address: Address | None, principal: Principal | None) -> None:
        """Count a request whose client left before it was answered or recorded."""
        self._refusals.count(_of_caller(Refusal(CLIENT_GONE, "client_gone", endpoint), principal), address)

    async def close(self) -> None:
        """Record the remaining counts."""
        await self._refusals.close()

    async def _append(self, event: Event, private: Private | None = None) -> Receipt:
        began = perf_counter()
        try:
            return await self._log.append(event, private)
        except audit_errors.AuditUnavailable as error:
            raise AuditUnavailable(
                "The call cannot be recorded, so it is not processed; try again later", retry_after_s=5
            ) from error
        except audit_errors.AuditError as error:
            logger.error("the audit log rejected the event %s: %s; report it", event.type, type(error).__name__)
            raise InternalError("The call could not be recorded, so it was not processed; try again later") from error
        finally:
            self._telemetry.audit_append.observe(perf_counter() - began)


def _of_caller(refusal: Refusal, principal: Principal | None) -> Refusal:
    if principal is None:
        return refusal
    return replace(refusal, tenant=principal.tenant, key_id=principal.key_id, project=principal.project or None)


def connection_of(backend: Backend, peer: Peer) -> BackendConnected | None:
    """Return the event for a peer, with its certificate; None if it showed none."""
    if peer.certificate_sha256 is None:
        return None
    return BackendConnected(
        tenant=backend.tenant,
        backend_id=backend.id,
        region=backend.region,
        kind=backend.kind,
        address=peer.address,
        peer_sha256=peer.certificate_sha256,
        peer_uri=peer.uri,
        tls_version=peer.tls_version,
    )


def _call(request: Parsed, decision: PolicyDecision | None, findings: Mapping[str, int]) -> dict[str, Any]:
    principal, call = request.principal, request.call
    fields: dict[str, Any] = {
        "tenant": principal.tenant,
        "request_id": request.request_id,
        "trace_id": request.trace_id,
        "key_id": principal.key_id,
        "project": principal.project,
        "activity_id": principal.project,
        "ai_system_id": principal.ai_system_id,
        "risk_class": principal.risk_class,
        "endpoint": call.endpoint.path,
        "stream": call.stream,
        "model_requested": (call.model if request.naming is None else request.naming.asked)[:256],
        "bytes_in": len(call.raw),
        "redaction": _redaction(findings),
    }
    if (line := request.client.batch) is not None:
        fields |= {"batch_id": line.batch, "batch_line": line.number}
    if decision is not None:
        fields |= _by(decision) | {"retention_class": f"metadata_{decision.retention.metadata_days}d"}
    return fields


def _by(decision: PolicyDecision) -> dict[str, Any]:
    return {
        "policy_id": decision.policy_id,
        "policy_version": decision.version,
        "policy_hash": decision.hash,
        "countries_version": decision.countries_version,
        "catalogue_version": decision.catalogue_version,
    }


def _allowed_again(redacted: Redacted) -> dict[str, Any]:
    """Return the record fields of a later evaluation that allows the call."""
    decision = redacted.allowed
    return {
        **_by(decision),
        "decision": _decision("allow", _with_passed(redacted.request, decision.reasons)),
        "redaction": _redaction(redacted.prompt.counts),
    }


def _refused_again(decision: PolicyDecision | None, reasons: Sequence[Reason]) -> dict[str, Any]:
    """Return the record fields of a later evaluation that refuses the call. `decision`: None if not by policy."""
    return (_by(decision) if decision is not None else {}) | {"decision": _decision("deny", reasons)}


def _reasons_of(error: GatewayError) -> Sequence[Reason]:
    """Return the reasons of a refusal by policy or redaction; empty for other errors."""
    if isinstance(error, PolicyDenied):
        return error.reasons
    if isinstance(error, RedactionRefused):
        rule = (error.code or "redaction_refused").replace("_", ".", 1)
        return [Reason(rule, None, error.message[:400], "GDPR 5(1)(c), 32")]
    return ()


def _with_passed(request: Parsed, reasons: Sequence[Reason]) -> Sequence[Reason]:
    """Return `reasons`, followed by the reasons why the models before this one did not answer."""
    return reasons if request.naming is None else (*reasons, *request.naming.passed)


def _route(routed: Routed) -> dict[str, Any]:
    route, facts, naming = routed.route, routed.route.facts, routed.request.naming
    adapter = routed.request.principal.adapters.get(routed.request.call.model)
    return ({} if naming is None else {"model_served": routed.request.call.model[:256]}) | {
        "adapter_sha256": None if adapter is None else adapter.sha256,
        "tenant": routed.request.principal.tenant,
        "request_id": routed.request.request_id,
        **_place(route),
        "subprocessors_version": facts.subprocessors_version,
        "fallback_index": routed.attempt,
        "prefill": _prefill(routed.route.prefill),
    }


def _place(route: Route) -> dict[str, Any]:
    facts = route.facts
    return {
        "backend_id": route.backend.id,
        "region": route.backend.region,
        "inference_country": facts.compute_country,
        "storage_country": facts.storage_country,
        "operator_entity": facts.operator,
        "operator_hq": facts.operator_hq,
        "ultimate_parent": facts.ultimate_parent,
        "ultimate_parent_country": facts.parent_country,
        "transfer_basis": route.transfer_basis[:512],
    }


def _prefill(route: Route | None) -> PrefillRoute | None:
    if route is None:
        return None
    return PrefillRoute(**_place(route))


def _outcome(accepted: Accepted, routed: Routed, received: ReceivedAnswer, status: int | None) -> dict[str, Any]:
    """Return the fields of an outcome. `routed`: the last attempt, recorded or not."""
    request, backend = accepted.request, routed.route.backend
    used = received.used(request.call)
    first_token_s = received.first_token_s(request.started)
    return {
        "tenant": request.principal.tenant,
        "request_id": request.request_id,
        "status": status,
        "backend_id": backend.id,
        "region": backend.region,
        "model_served": request.call.model,
        "fallback_index": routed.attempt,
        "prefill_backend_id": None if routed.route.prefill is None else routed.route.prefill.backend.id,
        "prefill_computed": None if routed.route.prefill is None else received.prefill,
        "tokens_in": used.prompt if used else None,
        "tokens_cached": used.cached if used else None,
        "tokens_out": used.answer if used else None,
        "tokens_estimated": True if used and used.estimated else None,
        "backend_ms": received.backend_ms,
        "energy_mj": received.energy_mj,
        "bytes_out": received.bytes_out,
        "tool_calls_count": received.tool_calls or None,
        "ttft_ms": None if first_token_s is None else round(first_token_s * 1000),
        "latency_ms": round((perf_counter() - request.started) * 1000),
        "redaction": _redaction(received.redactions),
        "watermark": outcome(routed, received) if routed.redacted.allowed.marking else None,
        "mark_period": None if routed.mark is None else routed.mark.period,
        "answer_prints": received.prints,
        "manifest": received.manifest,
        **({} if received.weights_differ else _weights(routed.route.facts)),
    }


def _weights(facts: BackendFacts) -> dict[str, Any]:
    return {"weights_sha256": facts.weights, "weights_source": facts.weights_source}


def _decision(outcome: Literal["allow", "deny"], reasons: Sequence[Reason]) -> Decision:
    said = (
        RecordedReason(rule=r.rule, because=r.because[:512], candidate=r.candidate, article=r.article or None)
        for r in reasons
    )
    return Decision(outcome=outcome, reasons=tuple(said))


def _redaction(counts: Mapping[str, int]) -> Redaction | None:
    return Redaction(engine_version=ENGINE_VERSION, counts_by_type=dict(counts)) if counts else None
