"""Requests of data subjects: received, extended once with a reason, answered; each step and deadline recorded.

GDPR 12(3): the answer is due within one month of receipt. The period may be extended by two months if the person is
informed of this and of the reasons within the first month. The end is the same day of a later month. Weekends and
holidays would move it to the next working day (Regulation 1182/71 Art. 3(4)); this is not applied, so the earlier end
is shown. The record holds a commitment to the person, not the identifier.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

from audit.errors import AuditError, NoteError
from audit.events.privacy import DsarRequest
from audit.events.private_value import Private
from audit.events.stamp import rfc3339
from audit.law.deadlines import later
from audit.log.walk import parsed
from audit.private.audit_context import AuditContext
from audit.private.certificate import open_certificate
from audit.private.erasure import certificates
from audit.private.value_store import ValueStore
from audit.storage.store import Reader

OF_REQUESTS: Final = (b'"type":"dsar.', b'"type":"erasure.completed"')
STEPS: Final = ("dsar.received", "dsar.extended", "dsar.closed")
ACTS: Final[Mapping[str, tuple[str, ...]]] = {
    "access": ("dsar.answered",),
    "rectification": ("dsar.rectified",),
    "erasure": ("erasure.completed",),
    "restriction": ("dsar.restricted", "dsar.unrestricted"),
    "portability": ("dsar.answered",),
    "objection": ("dsar.restricted", "erasure.completed"),
    "human_review": (),
}
"""By what a person may ask for (GDPR 15 to 22): the events that may answer it."""
ARTICLES: Final[Mapping[str, str]] = {
    "access": "GDPR 15",
    "rectification": "GDPR 16",
    "erasure": "GDPR 17",
    "restriction": "GDPR 18",
    "portability": "GDPR 20",
    "objection": "GDPR 21",
    "human_review": "GDPR 22(3)",
}
EXTENSIONS: Final = ("complexity", "number_of_requests")
"""The grounds of GDPR 12(3)."""
OUTCOMES: Final = ("answered", "answered_elsewhere", "refused", "withdrawn")
MONTHS, EXTENDED_MONTHS = 1, 3
KEPT_MONTHS: Final = 36
"""How long after the end the person's identifier is kept: the time in which a complaint or claim has to be met."""


@dataclass(slots=True)
class Matter:
    """A request as its records have it so far; moments in RFC 3339. `candidates`: acts on record since then that may
    answer it, as (seq, ts, type)."""

    matter_id: str
    tenant: str
    right: str
    received_at: str
    due_at: str
    extended: str | None = None
    extension_reason: str | None = None
    closed: str | None = None
    outcome: str | None = None
    reason: str | None = None
    act_seq: int | None = None
    records: list[int] = field(default_factory=list)
    candidates: list[tuple[int, str, str]] = field(default_factory=list)

    def take(self, seq: int, event: dict[str, Any]) -> None:
        self.records.append(seq)
        self.due_at = event["due_at"]
        if event["type"] == "dsar.extended":
            self.extended, self.extension_reason = event["ts"], event.get("reason")
        if event["type"] == "dsar.closed":
            self.closed, self.outcome = event["ts"], event.get("outcome")
            self.reason, self.act_seq = event.get("reason"), event.get("act_seq")

    def state(self, now: str) -> str:
        """`running` or `overdue` while it is open, else `met` or `late`."""
        if self.closed is None:
            return "running" if now <= self.due_at else "overdue"
        return "met" if self.closed <= self.due_at else "late"

    def as_row(self, now: str) -> dict[str, Any]:
        """For tables and JSON: the state as of `now`, and the candidates while the request is open."""
        return {
            "id": self.matter_id,
            "right": self.right,
            "article": ARTICLES.get(self.right, ""),
            "received_at": self.received_at,
            "due_at": self.due_at,
            "state": self.state(now),
            "extended_at": self.extended,
            "extension_reason": self.extension_reason,
            "closed_at": self.closed,
            "outcome": self.outcome,
            "reason": self.reason,
            "act_seq": self.act_seq,
            "records": list(self.records),
            "candidates": [{"seq": seq, "ts": ts, "type": kind} for seq, ts, kind in self.candidates],
        }


def matters(reader: Reader, tenant: str) -> list[Matter]:
    """The requests of a tenant, in the order in which they came on record."""
    found: dict[str, Matter] = {}
    take_requests(found, reader, tenant)
    return list(found.values())


def take_requests(
    found: dict[str, Matter], reader: Reader, tenant: str, start: int = 0, end: int | None = None
) -> None:
    """Add what the records from `start` to before `end` say to the requests by id in `found`."""
    for leaf in reader.leaves(tenant, start, end):
        if any(part in leaf.payload for part in OF_REQUESTS):
            take_request(found, tenant, leaf.seq, parsed(leaf.payload))


def take_request(found: dict[str, Matter], tenant: str, seq: int, event: dict[str, Any]) -> None:
    """Add one record to the requests by id in `found`, whatever it is of."""
    kind = event.get("type")
    if kind in STEPS:
        begun = Matter(event["matter_id"], tenant, event["right"], event["received_at"], event["due_at"])
        found.setdefault(event["matter_id"], begun).take(seq, event)
        return
    for one in found.values():
        if one.closed is None and kind in ACTS.get(one.right, ()):
            one.candidates.append((seq, event["ts"], str(kind)))


def matter_of(reader: Reader, tenant: str, matter_id: str) -> Matter:
    """Raises AuditError if there is no such request."""
    return chosen(matters(reader, tenant), tenant, matter_id)


def chosen(known: Iterable[Matter], tenant: str, matter_id: str) -> Matter:
    """Raises AuditError if there is no such request."""
    for one in known:
        if one.matter_id == matter_id:
            return one
    raise AuditError(f"tenant {tenant} has no request {matter_id}; see `domicile audit request list`")


async def receive(
    context: AuditContext,
    tenant: str,
    *,
    right: str,
    subject: str,
    received_at: str | None = None,
    actor: str = "system",
) -> str:
    """Put a request on record; returns its id. `received_at` in RFC 3339 UTC with milliseconds, now if it is not given.

    Raises AuditError, with nothing on record, for a right that there is not or a moment in the future.
    """
    now = rfc3339(context.now())
    received_at = received_at or now
    if right not in ACTS:
        raise AuditError(f"{right!r} is no right of a person; name one of {', '.join(ACTS)}")
    if received_at > now:
        raise AuditError(f"the request cannot come in the future ({received_at}); it is {now} now: correct it")
    matter_id, due_at = context.new_id(), later(received_at, MONTHS)
    event = DsarRequest(
        type="dsar.received",
        tenant=tenant,
        matter_id=matter_id,
        actor=actor,
        right=right,
        received_at=received_at,
        due_at=due_at,
    )
    await context.record(event, Private({}, subject, "request", _kept_until(due_at)))
    return matter_id


async def extend(context: AuditContext, matter: Matter, *, reason: str, actor: str = "system") -> None:
    """Record that the person was informed of an extension by up to two months and of the reason. Raises AuditError
    where that is too late, was done before, or is for another reason than GDPR 12(3) has."""
    now = rfc3339(context.now())
    _require_open(matter)
    if reason not in EXTENSIONS:
        raise AuditError(f"{reason!r} extends no request; GDPR 12(3) knows {' and '.join(EXTENSIONS)}: name one")
    if matter.extended is not None:
        raise AuditError(f"the request {matter.matter_id} was extended at {matter.extended}; answer it")
    if now > matter.due_at:
        raise AuditError(
            f"the first month of request {matter.matter_id} ended at {matter.due_at}, and the person had to be informed"
            " of an extension within it (GDPR 12(3)); answer it now"
        )
    due_at = later(matter.received_at, EXTENDED_MONTHS)
    await context.record(_step(matter, "dsar.extended", actor, due_at=due_at, reason=reason))


async def settle(
    context: AuditContext,
    matter: Matter,
    *,
    outcome: str,
    act_seq: int | None = None,
    reason: str | None = None,
    actor: str = "system",
) -> None:
    """The request is answered by the act of record `act_seq`, answered elsewhere, refused or withdrawn.

    Raises AuditError where the record is no act that answers such a request, or is one of another person.
    """
    _require_open(matter)
    if outcome not in OUTCOMES:
        raise AuditError(f"{outcome!r} is no outcome of a request; name one of {', '.join(OUTCOMES)}")
    if (outcome == "answered") != (act_seq is not None):
        raise AuditError(
            "an answer of this log names the record of the act, and no other outcome does; give the record's number"
            f" (--act) with the outcome 'answered', or one of {', '.join(OUTCOMES[1:])}"
        )
    if outcome == "refused" and reason is None:
        raise AuditError("a refused request needs the reason that the person gets (GDPR 12(4)); give a reason")
    if act_seq is not None:
        await _require_answers(context, matter, act_seq)
    await context.record(
        _step(matter, "dsar.closed", actor, due_at=matter.due_at, outcome=outcome, act_seq=act_seq, reason=reason)
    )


def _step(matter: Matter, kind: str, actor: str, **fields: Any) -> DsarRequest:
    said = {"matter_id": matter.matter_id, "right": matter.right, "received_at": matter.received_at}
    return DsarRequest.model_validate({"type": kind, "tenant": matter.tenant, "actor": actor, **said, **fields})


def _require_open(matter: Matter) -> None:
    if matter.closed is not None:
        raise AuditError(
            f"the request {matter.matter_id} was closed at {matter.closed}; create a new one, if the person asks again"
        )


def _kept_until(due_at: str) -> int:
    """Milliseconds since the epoch."""
    return int(datetime.fromisoformat(later(due_at, KEPT_MONTHS)).timestamp() * 1000)


async def _require_answers(context: AuditContext, matter: Matter, act_seq: int) -> None:
    """Raises AuditError unless record `act_seq` is an act that answers the request, of the same person as far as that
    is still known: where the person's identifier was erased, the certificate of the erasure names the request."""
    event = await context.in_thread(lambda: _event_at(context, matter.tenant, act_seq))
    fitting = ACTS[matter.right]
    if event.get("type") not in fitting:
        raise AuditError(
            f"record {act_seq} answers no request of {matter.right}; name a record of"
            f" {' or '.join(fitting) or 'no act of this log: the outcome is answered_elsewhere'}"
        )
    asked = await context.with_values(lambda side: _kept(side, matter.tenant, matter.records[0]))
    if event["type"] == "erasure.completed":
        same = event["scope"] != "subject" or (not asked and await _covers(context, matter, event))
    else:
        acted = await context.with_values(lambda side: _kept(side, matter.tenant, act_seq))
        same = _is_same(asked, {str(event["key_id"])} if "key_id" in event else acted)
    if not same:
        raise AuditError(f"record {act_seq} is of another person than the request; name the act that answers this one")


def _kept(side: ValueStore, tenant: str, seq: int) -> set[str]:
    """The data keys under which values of the record are kept."""
    return {one.key_id for one in side.kept(tenant, start=seq, end=seq + 1)}


def _is_same(asked: set[str], acted: set[str]) -> bool:
    """Whether both are under one key, or one of them is under none any more."""
    return not asked or not acted or not asked.isdisjoint(acted)


async def _covers(context: AuditContext, matter: Matter, event: dict[str, Any]) -> bool:
    """Whether the certificate of the erasure names the person's identifier in the record of the request. One that an
    earlier key of the log signed is not opened, and counts."""
    received = await context.in_thread(lambda: _event_at(context, matter.tenant, matter.records[0]))
    for note in await certificates(context, matter.tenant):
        try:
            opened = open_certificate(note, context.origin(matter.tenant), context.signer.public_key)
        except NoteError:
            continue
        if opened.id == event["erasure_id"]:
            return opened.covers(matter.records[0], "subject", received.get("event_id"))
    return True


def _event_at(context: AuditContext, tenant: str, seq: int) -> dict[str, Any]:
    with context.reading() as reader:
        leaf = next(iter(reader.leaves(tenant, seq, seq + 1)), None)
    return {} if leaf is None or leaf.seq != seq else parsed(leaf.payload)
