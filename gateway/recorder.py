"""What the gateway puts on record about a request: the intent before it leaves, and one outcome after it.

Appends return only once the event is durable. If it cannot be made so, AuditUnavailable is raised and the caller
stops: nothing is forwarded without its intent, nothing is called complete without its outcome.
"""

import logging
from time import perf_counter
from typing import Any, Protocol

from audit import errors as audit_errors
from audit.event import (
    Decision,
    Event,
    InferenceAborted,
    InferenceAccepted,
    InferenceCompleted,
    InferenceDenied,
    Reason,
    Redaction,
    RoutingDecision,
)
from audit.log import Receipt
from gateway.errors import AuditUnavailable, InternalError
from gateway.exchange import Exchange
from gateway.telemetry import Telemetry
from policy.decision import Reason as PolicyReason

logger = logging.getLogger("domicile.gateway")


class Log(Protocol):
    """`audit.AuditLog`, as far as it is needed here."""

    async def append(self, event: Event) -> Receipt: ...


class Recorder:
    def __init__(self, log: Log, telemetry: Telemetry) -> None:
        self._log = log
        self._telemetry = telemetry

    async def accepted(self, exchange: Exchange) -> None:
        """Write ahead: the intent for the first backend, a routing decision for each one after it."""
        route = _route(exchange)
        if exchange.intent is None:
            assert exchange.decision is not None
            event: Event = InferenceAccepted(
                **_call(exchange),
                **route,
                decision=_decision("allow", exchange.decision.reasons),
                art50_notice=exchange.decision.art50_notice,
            )
            exchange.intent = await self._append(event)
        else:
            await self._append(RoutingDecision(**route, reason="backend_unavailable"))

    async def denied(self, exchange: Exchange, reasons: tuple[PolicyReason, ...], status: int) -> Receipt:
        return await self._append(
            InferenceDenied(**_call(exchange), decision=_decision("deny", reasons), status=status)
        )

    async def completed(self, exchange: Exchange) -> Receipt:
        """Close the record. Raises AuditUnavailable; then the answer must not be called complete."""
        reasons = exchange.finish_reasons
        receipt = await self._append(
            InferenceCompleted(**_outcome(exchange, 200), finish_reason=reasons[-1] if reasons else None)
        )
        exchange.closed = True
        return receipt

    async def aborted(self, exchange: Exchange, reason: str, status: int | None = None) -> None:
        """Close the record of an answer that did not end. Does not raise: there is nobody left to tell.

        If the log fails here the intent stays open, and is closed as aborted when the gateway starts again.
        """
        if exchange.intent is None or exchange.closed:
            return
        exchange.closed = True
        assert exchange.principal is not None
        self._telemetry.aborted.labels(self._telemetry.tenant_label(exchange.principal.tenant), reason).inc()
        try:
            await self._append(InferenceAborted(**_outcome(exchange, status), reason=reason))
        except AuditUnavailable:
            logger.error("request %s stays open on record until the next start", exchange.request_id)

    async def _append(self, event: Event) -> Receipt:
        began = perf_counter()
        try:
            return await self._log.append(event)
        except audit_errors.AuditUnavailable as error:
            raise AuditUnavailable("The call cannot be recorded, so it is not processed", retry_after_s=5) from error
        except audit_errors.AuditError as error:
            logger.error("the record refused %s: %s", event.type, type(error).__name__)
            raise InternalError("The call could not be recorded, so it was not processed") from error
        finally:
            self._telemetry.audit_append.observe(perf_counter() - began)


def _call(exchange: Exchange) -> dict[str, Any]:
    principal, call, decision = exchange.principal, exchange.call, exchange.decision
    assert principal is not None and call is not None
    fields: dict[str, Any] = {
        "tenant": principal.tenant,
        "request_id": exchange.request_id,
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
        fields |= {
            "policy_id": decision.policy_id,
            "policy_version": decision.policy_version,
            "policy_hash": decision.policy_hash,
            "retention_class": decision.retention_class,
        }
    return fields


def _route(exchange: Exchange) -> dict[str, Any]:
    principal, backend, facts, decision = exchange.principal, exchange.backend, exchange.facts, exchange.decision
    assert principal is not None and backend is not None and facts is not None and decision is not None
    return {
        "tenant": principal.tenant,
        "request_id": exchange.request_id,
        "backend_id": backend.id,
        "region": backend.region,
        "inference_country": facts.compute_country,
        "storage_country": facts.storage_country,
        "operator_entity": facts.operator,
        "operator_hq": facts.operator_hq,
        "ultimate_parent": facts.ultimate_parent,
        "ultimate_parent_country": facts.parent_country,
        "transfer_basis": decision.transfer_basis[backend.id],
        "fallback_index": exchange.attempt,
    }


def _outcome(exchange: Exchange, status: int | None) -> dict[str, Any]:
    principal, backend, usage = exchange.principal, exchange.backend, exchange.usage
    assert principal is not None and exchange.call is not None
    return {
        "tenant": principal.tenant,
        "request_id": exchange.request_id,
        "status": status,
        "backend_id": backend.id if backend else None,
        "region": backend.region if backend else None,
        "model_served": exchange.call.model,
        "fallback_index": exchange.attempt,
        "tokens_in": usage.prompt_tokens if usage else None,
        "tokens_out": usage.completion_tokens if usage else None,
        "bytes_out": exchange.bytes_out,
        "ttft_ms": exchange.ttft_ms,
        "latency_ms": exchange.latency_ms,
        "redaction": _redaction(exchange.redactions_out),
    }


def _decision(outcome: Any, reasons: tuple[PolicyReason, ...]) -> Decision:
    said = tuple(
        Reason(rule=reason.rule, because=reason.because, candidate=reason.candidate, article=reason.article)
        for reason in reasons
    )
    return Decision(outcome=outcome, reasons=said)


def _redaction(counts: Any) -> Redaction | None:
    return Redaction(engine_version=ENGINE_VERSION, counts_by_type=dict(counts)) if counts else None
