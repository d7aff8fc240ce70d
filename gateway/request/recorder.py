"""What the gateway puts on record about a request: the intent before it leaves, and one outcome after it.

Appends return only once the event is durable. If it cannot be made so, AuditUnavailable is raised and the caller
stops: nothing is forwarded without its intent, nothing is called complete without its outcome.
"""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from time import perf_counter
from typing import Any, Literal, Protocol

from audit import errors as audit_errors
from audit.events.base import Event
from audit.events.event import (
    BackendConnected,
    Decision,
    InferenceAborted,
    InferenceAccepted,
    InferenceCompleted,
    InferenceDenied,
    Redaction,
    RoutingDecision,
)
from audit.events.event import Reason as RecordedReason
from audit.events.private_value import Private
from audit.log.receipt import Receipt
from gateway.directory.directory import Address
from gateway.errors import AuditUnavailable, GatewayError, InternalError, PolicyDenied, RedactionRefused
from gateway.identity.principal import Principal
from gateway.request.exchange import Exchange, Route
from gateway.request.refusals import CLIENT_GONE, Refusal, Refusals, refusal_of
from gateway.request.telemetry import Telemetry
from gateway.upstream.http1 import Peer
from policy.decision.decision import Decision as PolicyDecision
from policy.reason import Reason
from policy.redact import ENGINE_VERSION
from regions.fleet.fleet import Backend

logger = logging.getLogger("domicile.gateway")
ADMIN = "/admin/v1"
"""The endpoint of failed authentications there: the paths hold names of tenants."""


class Log(Protocol):
    """`audit.AuditLog`, as far as it is needed here."""

    async def append(self, event: Event, private: Private | None = None) -> Receipt: ...


class Recorder:
    """`address_days`: how long the addresses of refused callers are kept."""

    def __init__(self, log: Log, telemetry: Telemetry, address_days: int = 30) -> None:
        self._log = log
        self._telemetry = telemetry
        self._refusals = Refusals(self._append, address_days)

    async def accepted(self, exchange: Exchange, route: Route) -> None:
        """Write ahead: the intent for the first backend, a routing decision for each one after it, and for each one
        that is called under another decision than the record says."""
        before, exchange.recorded = exchange.recorded, route
        if exchange.intent is not None:
            await self._moved(exchange, route, before)
            return
        reasons = exchange.decision.reasons if exchange.decision else ()
        notices = [notice.name for notice in exchange.decision.notices] if exchange.decision else []
        exchange.intent = await self._append(
            InferenceAccepted(
                **_call(exchange) | _route(exchange, route),
                decision=_decision("allow", reasons),
                art50_notice=notices[0] if notices else None,
            ),
            exchange.content.asked() if exchange.content else None,
        )
        exchange.redecided = False

    async def _moved(self, exchange: Exchange, route: Route, before: Route | None) -> None:
        if route == before and not exchange.redecided:
            return  # what is on record still holds
        moved = before is None or route.backend.id != before.backend.id
        event = RoutingDecision(
            **_route(exchange, route) | (_redecided(exchange, "allow") if exchange.redecided else {}),
            reason="backend_unavailable" if moved and exchange.attempt else "decision_changed",
        )
        await self._append(event, exchange.content.asked() if exchange.redecided and exchange.content else None)
        exchange.redecided = False

    async def completed(self, exchange: Exchange) -> Receipt:
        """Close the record. Raises AuditUnavailable; then the answer must not be called complete.

        Closed either way: an outcome that the log could not take, or whose caller left meanwhile, the log sees to.
        """
        exchange.closed = True
        reasons = exchange.finish_reasons
        return await self._append(
            InferenceCompleted(
                **_outcome(exchange, 200),
                finish_reason=reasons[-1] if reasons else None,
                fingerprint=exchange.fingerprint,
            ),
            exchange.content.answered() if exchange.content else None,
        )

    async def refused(self, exchange: Exchange, error: GatewayError) -> tuple[GatewayError, bool]:
        """Record why a call is refused or broke off; returns the error the client should see, and whether a record
        stands for the call.

        The error is another one only where the refusal cannot be recorded.
        """
        if exchange.intent is not None:
            await self.aborted(exchange, error.code or "gateway_error", error.http_status, _reasons_of(error))
            return error, True
        reasons = _reasons_of(error)
        if not reasons:
            return error, False
        try:
            event = InferenceDenied(**_call(exchange), decision=_decision("deny", reasons), status=error.http_status)
            await self._append(event)
        except GatewayError as unrecorded:
            return unrecorded, False
        return error, True

    async def aborted(
        self, exchange: Exchange, reason: str, status: int | None = None, reasons: Sequence[Reason] = ()
    ) -> None:
        """Close the record of an answer that did not end; `reasons`: those of a policy that refused it meanwhile. Does
        not raise: there is nobody left to tell.

        What the log cannot take now, it closes by itself once it is well again, or at the next start.
        """
        if exchange.intent is None or exchange.closed:
            return
        exchange.closed = True
        if status is None or status >= 500:  # a refusal is an answer
            self._telemetry.aborted.labels(self._telemetry.tenant_label(exchange.principal.tenant), reason).inc()
        try:
            await self._append(
                InferenceAborted(
                    **_outcome(exchange, status) | (_redecided(exchange, "deny", reasons) if reasons else {}),
                    reason=reason,
                ),
                exchange.content.answered() if exchange.content else None,
            )
        except GatewayError:
            logger.error("%s: its outcome could not be recorded yet", exchange.request_id)

    async def connected(self, backend: Backend, peer: Peer) -> None:
        """Residency evidence: who answered a new connection. Without TLS, on this host alone, there is none.

        Raises AuditUnavailable; then nothing may be sent on it.
        """
        if (event := connection_of(backend, peer)) is not None:
            await self._append(event)

    def auth_failed(self, reason: str, address: Address | None = None) -> None:
        """Count a caller of the admin API who could not be authenticated."""
        self._refusals.count(Refusal(401, reason, ADMIN), address)

    def turned_away(
        self, error: GatewayError, endpoint: str | None, address: Address | None, principal: Principal | None = None
    ) -> None:
        """Count a request that got `error` and that no record stands for."""
        self._refusals.count(_of_caller(refusal_of(error, endpoint), principal), address)

    def gone(self, endpoint: str, address: Address | None, principal: Principal | None) -> None:
        """Count a request whose client left before it was answered or recorded."""
        self._refusals.count(_of_caller(Refusal(CLIENT_GONE, "client_gone", endpoint), principal), address)

    async def close(self) -> None:
        """Record what was counted."""
        await self._refusals.close()

    async def _append(self, event: Event, private: Private | None = None) -> Receipt:
        began = perf_counter()
        try:
            return await self._log.append(event, private)
        except audit_errors.AuditUnavailable as error:
            raise AuditUnavailable("The call cannot be recorded, so it is not processed", retry_after_s=5) from error
        except audit_errors.AuditError as error:
            logger.error("the record refused %s: %s", event.type, type(error).__name__)
            raise InternalError("The call could not be recorded, so it was not processed") from error
        finally:
            self._telemetry.audit_append.observe(perf_counter() - began)


def _of_caller(refusal: Refusal, principal: Principal | None) -> Refusal:
    if principal is None:
        return refusal
    return replace(refusal, tenant=principal.tenant, key_id=principal.key_id, project=principal.project or None)


def connection_of(backend: Backend, peer: Peer) -> BackendConnected | None:
    """Who answered, as its certificate says; None where it showed none."""
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


def _call(exchange: Exchange) -> dict[str, Any]:
    principal, call, decision = exchange.principal, exchange.call, exchange.decision
    fields: dict[str, Any] = {
        "tenant": principal.tenant,
        "request_id": exchange.request_id,
        "trace_id": exchange.trace_id,
        "key_id": principal.key_id,
        "project": principal.project,
        "activity_id": principal.project,
        "ai_system_id": principal.ai_system_id,
        "risk_class": principal.risk_class,
        "endpoint": call.endpoint.path,
        "stream": call.stream,
        "model_requested": call.model[:256],
        "bytes_in": len(call.raw),
        "redaction": _redaction(exchange.redactions_in),
    }
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


def _redecided(exchange: Exchange, outcome: Literal["allow", "deny"], reasons: Sequence[Reason] = ()) -> dict[str, Any]:
    """What a later evaluation found, for the record."""
    decision = exchange.decision
    fields: dict[str, Any] = {} if decision is None else _by(decision)
    fields["decision"] = _decision(outcome, reasons or (decision.reasons if decision else ()))
    if outcome == "allow":
        fields["redaction"] = _redaction(exchange.redactions_in)
    return fields


def _reasons_of(error: GatewayError) -> Sequence[Reason]:
    """Those of a refusal by policy or redaction; none of any other error."""
    if isinstance(error, PolicyDenied):
        return error.reasons
    if isinstance(error, RedactionRefused):
        rule = (error.code or "redaction_refused").replace("_", ".", 1)
        return [Reason(rule, None, error.message[:400], "GDPR 5(1)(c), 32")]
    return ()


def _route(exchange: Exchange, route: Route) -> dict[str, Any]:
    facts = route.facts
    return {
        "tenant": exchange.principal.tenant,
        "request_id": exchange.request_id,
        "backend_id": route.backend.id,
        "region": route.backend.region,
        "inference_country": facts.compute_country,
        "storage_country": facts.storage_country,
        "operator_entity": facts.operator,
        "operator_hq": facts.operator_hq,
        "ultimate_parent": facts.ultimate_parent,
        "ultimate_parent_country": facts.parent_country,
        "subprocessors_version": facts.subprocessors_version,
        "transfer_basis": route.transfer_basis[:512],
        "fallback_index": exchange.attempt,
    }


def _outcome(exchange: Exchange, status: int | None) -> dict[str, Any]:
    route, used = exchange.route, exchange.used
    return {
        "tenant": exchange.principal.tenant,
        "request_id": exchange.request_id,
        "status": status,
        "backend_id": route.backend.id if route else None,
        "region": route.backend.region if route else None,
        "model_served": exchange.call.model,
        "fallback_index": exchange.attempt,
        "tokens_in": used.prompt if used else None,
        "tokens_cached": used.cached if used else None,
        "tokens_out": used.answer if used else None,
        "tokens_estimated": True if used and used.estimated else None,
        "backend_ms": exchange.backend_ms,
        "energy_mj": exchange.energy_mj,
        "bytes_out": exchange.bytes_out,
        "tool_calls_count": exchange.tool_calls or None,
        "ttft_ms": exchange.ttft_ms,
        "latency_ms": exchange.latency_ms,
        "redaction": _redaction(exchange.redactions_out),
    }


def _decision(outcome: Literal["allow", "deny"], reasons: Sequence[Reason]) -> Decision:
    said = (
        RecordedReason(rule=r.rule, because=r.because[:512], candidate=r.candidate, article=r.article or None)
        for r in reasons
    )
    return Decision(outcome=outcome, reasons=tuple(said))


def _redaction(counts: Mapping[str, int]) -> Redaction | None:
    return Redaction(engine_version=ENGINE_VERSION, counts_by_type=dict(counts)) if counts else None
