"""The log of one AI system: what its provider or deployer must keep and hand over (AI Act 12, 19, 26(5) and (6)).

Calls of the system with their outcomes, changes of the model, acts of oversight, incidents: each as it was hashed, with
its number, so that an evidence pack over the same records proves it.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from audit.log.walk import as_plain, records
from audit.storage.store import Reader

FLOOR_DAYS = 184
"""The longest six calendar months: what Articles 19(1) and 26(6) ask at the least."""

CALL = "inference.accepted"
OF_A_CALL = frozenset({"routing.decision", "inference.completed", "inference.aborted"})
OF_A_SYSTEM = frozenset({"inference.denied", "model.changed", "oversight.stopped", "oversight.resumed"})
OF_A_SYSTEM |= {"oversight.overridden", "incident.opened", "incident.updated", "incident.notified", "incident.closed"}


@dataclass(slots=True)
class Summary:
    """`changes` names model.changed by what changed, `policies` the policy hashes under which it was called.

    `open_calls` had no outcome by the end of the period. `floor_met`: whether the records reach back for
    FLOOR_DAYS, None where the system has not been in use for that long as far as the log knows.
    """

    tenant: str
    ai_system_id: str
    first: str | None = None
    last: str | None = None
    events: Counter[str] = field(default_factory=Counter)
    risk_classes: Counter[str] = field(default_factory=Counter)
    models: Counter[str] = field(default_factory=Counter)
    policies: Counter[str] = field(default_factory=Counter)
    guardrail_hits: Counter[str] = field(default_factory=Counter)
    finish_reasons: Counter[str] = field(default_factory=Counter)
    changes: Counter[str] = field(default_factory=Counter)
    open_calls: int = 0
    expired: int = 0

    @property
    def floor_met(self) -> bool | None:
        if self.first is None or self.last is None:
            return None
        reaches = datetime.fromisoformat(self.last) - datetime.fromisoformat(self.first) >= timedelta(days=FLOOR_DAYS)
        return True if reaches else False if self.expired else None

    def as_json(self) -> dict[str, Any]:
        told = as_plain(self)
        return told | {"floor_days": FLOOR_DAYS, "floor_met": self.floor_met}


def extract(
    reader: Reader,
    tenant: str,
    ai_system_id: str,
    *,
    since: str | None = None,
    until: str | None = None,
    write: Callable[[int, dict[str, Any]], None] = lambda seq, event: None,
) -> Summary:
    """Give each record of the system to `write`, in order; returns what they come to."""
    summary = Summary(tenant, ai_system_id)
    for seq, event in _of_system(reader, tenant, ai_system_id, since, until, summary):
        write(seq, event)
        _count(summary, event)
    return summary


def _of_system(
    reader: Reader, tenant: str, ai_system_id: str, since: str | None, until: str | None, summary: Summary
) -> Iterator[tuple[int, dict[str, Any]]]:
    running: set[str] = set()
    incidents: set[str] = set()
    for seq, event in records(reader, tenant, since, until):
        kind, request = event.get("type"), str(event.get("request_id"))
        if kind == CALL and event.get("ai_system_id") == ai_system_id:
            running.add(request)
            yield seq, event
        elif kind in OF_A_CALL and request in running:
            if kind != "routing.decision":
                running.discard(request)
            yield seq, event
        elif kind == "model.changed" and event.get("ai_system_id") is None:
            yield seq, event  # of whatever the tenant calls, so of this system too
        elif kind in OF_A_SYSTEM and (
            event.get("ai_system_id") == ai_system_id or event.get("incident_id") in incidents
        ):
            if "incident_id" in event:
                incidents.add(event["incident_id"])  # later events of it need not name the system again
            yield seq, event
        elif kind == "retention.run":
            summary.expired += event.get("expired_records", 0)
    summary.open_calls = len(running)


def _count(summary: Summary, event: dict[str, Any]) -> None:
    summary.first = summary.first or event["ts"]
    summary.last = event["ts"]
    summary.events[event["type"]] += 1
    for into, name in (
        (summary.risk_classes, "risk_class"),
        (summary.models, "model_served"),
        (summary.policies, "policy_hash"),
        (summary.finish_reasons, "finish_reason"),
    ):
        if name in event:
            into[event[name]] += 1
    if event["type"] == "model.changed":
        summary.changes[event["what"]] += 1
    if event["type"] == "inference.denied":
        summary.guardrail_hits.update(one["rule"] for one in event["decision"]["reasons"])
    summary.guardrail_hits.update(event.get("redaction", {}).get("counts_by_type", {}))
