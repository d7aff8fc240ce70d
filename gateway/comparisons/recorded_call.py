"""A recorded call, for a replay or challenge: its intent, its outcome, and whether its content is stored.

A replay compares what a backend answers to the same body (`gateway.comparisons.replay`), a challenge what the client's
text gives by the weights (`gateway.comparisons.challenge`).
"""

from typing import Any, Protocol

from audit.errors import AuditError
from audit.events.base import Event
from audit.events.event import (
    InferenceAborted,
    InferenceAccepted,
    InferenceCompleted,
    InferenceDenied,
    RoutingDecision,
)
from audit.events.leaf import decode_leaf
from audit.keys.signer import key_of
from audit.private.audit_context import AuditContext
from audit.private.deletion import certificates_of
from audit.verification.disclosure import announced_certificates
from regions.fleet.fleet import Backend


class NotComparable(AuditError):
    """Nothing can be compared, and why, in a sentence that quotes no content."""


class Compared(Protocol):
    """A call of the record that is compared with what a backend says now. seq: of its intent."""

    @property
    def tenant(self) -> str: ...

    @property
    def request_id(self) -> str: ...

    @property
    def seq(self) -> int: ...


def fields_of(call: Compared, backend: Backend | None, actor: str) -> dict[str, Any]:
    """What every event of a comparison says. backend: that was asked; None for one that is none of the directory's."""
    place = {"backend_id": backend.id, "region": backend.region} if backend else {}
    return {"tenant": call.tenant, "request_id": call.request_id, "seq": call.seq, "actor": actor, **place}


def records_of(
    context: AuditContext, tenant: str, request_id: str
) -> tuple[int, InferenceAccepted, int, InferenceCompleted]:
    """Intent and outcome, with their seq."""
    found: dict[type[Event], tuple[int, Any]] = {}
    named = request_id.encode()
    with context.reading() as reader:
        for stored in reader.leaves(tenant):
            if named in stored.payload and (event := decode_leaf(stored.payload).event).request_id == request_id:
                found[type(event)] = stored.seq, event
    if InferenceDenied in found:
        raise NotComparable(f"the call {request_id} was refused and nothing left for a backend; name an answered call")
    if InferenceAccepted not in found:
        raise NotComparable(
            f"no record of {tenant} is of {request_id}, which never was or is over its time; check the x-request-id"
        )
    if found.get(InferenceAborted) or InferenceCompleted not in found:
        raise NotComparable(
            f"the call {request_id} has no whole answer, since it broke off or has not ended; name an answered call"
        )
    return (*found[InferenceAccepted], *found[InferenceCompleted])


def prepared_last(
    context: AuditContext, tenant: str, request_id: str, seq: int, intent: InferenceAccepted
) -> tuple[int, InferenceAccepted | RoutingDecision]:
    """The record with the prompt as it left last: a later decision, where the prompt was prepared again under one."""
    found: tuple[int, InferenceAccepted | RoutingDecision] = seq, intent
    named = request_id.encode()
    with context.reading() as reader:
        for stored in reader.leaves(tenant, seq):
            if named in stored.payload and (event := decode_leaf(stored.payload).event).request_id == request_id:
                if isinstance(event, RoutingDecision) and event.decision is not None:
                    found = stored.seq, event
                if isinstance(event, InferenceCompleted):
                    break
    return found


async def require_kept(context: AuditContext, seq: int, event: Event, field: str, instead: str) -> None:
    """Raises NotComparable, with `instead` as what to do, where the value is not there any more, or never was."""
    if field not in (event.commits or {}):
        what = "answer with any text" if (event.commits or {}).get("subject") else "content"
        raise NotComparable(f"no {what} of {event.request_id} was kept; set `retention` in its policy, and {instead}")

    def gone(side: Any) -> str | None:
        event_id = context.event_ids(event.tenant, [seq]).get(seq)
        values = side.kept(event.tenant, start=seq, end=seq + 1)
        kept = [one for one in values if one.field == field and one.event_id == event_id]
        if kept:
            over = kept[0].expires is not None and kept[0].expires <= context.now()
            return "is over its time" if over else None
        with context.reading() as reader:
            for one in announced_certificates(
                reader, key_of(context.signer), event.tenant, certificates_of(side, event.tenant)
            ):
                if seq < one.seq and one.certificate.covers(seq, field, event_id):
                    cause = "was erased" if one.certificate.cause == "erasure" else "is over its time and deleted"
                    return f"{cause} (certificate {one.certificate.id})"
        return "is gone, and no certificate gives the reason"

    if because := await context.with_values(gone):
        raise NotComparable(f"the {field} of {event.request_id} {because}; {instead}")
