"""Who and what was concerned: the impact of a breach or failure, counted from the records of a period.

Answers what GDPR 33(3)(a), DORA 18(1) and NIS2 23(4) ask: which tenants and activities, how many calls and people,
which kinds of data, which countries and operators. People are counted by their data keys and not named.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from audit.incidents.pack_inputs import Party
from audit.log.walk import as_plain, records
from audit.private.certificate import spans
from audit.private.value_store import ValueStore
from audit.storage.store import Reader

CALL = "inference.accepted"
ROUTED = (CALL, "routing.decision")
ENDS = ("inference.completed", "inference.aborted")


@dataclass(frozen=True, slots=True)
class Scope:
    """The records in question: of a period (RFC 3339 UTC or prefixes), and only those that match what is given."""

    since: str | None = None
    until: str | None = None
    backend_id: str | None = None
    region: str | None = None
    key_id: str | None = None
    project: str | None = None
    ai_system_id: str | None = None

    def covers(self, call: dict[str, Any]) -> bool:
        asked = ("backend_id", "region", "key_id", "project", "ai_system_id")
        return all(getattr(self, name) in (None, call.get(name)) for name in asked)


@dataclass(slots=True)
class Impact:
    """`subjects` counts the people whose values are kept for these calls, `unnamed` the calls without one."""

    tenant: str
    calls: int = 0
    answered: int = 0
    first: str | None = None
    last: str | None = None
    subjects: int = 0
    unnamed: int = 0
    activities: Counter[str] = field(default_factory=Counter)
    keys: Counter[str] = field(default_factory=Counter)
    ai_systems: Counter[str] = field(default_factory=Counter)
    backends: Counter[str] = field(default_factory=Counter)
    countries: Counter[str] = field(default_factory=Counter)
    operators: Counter[str] = field(default_factory=Counter)
    data_kinds: Counter[str] = field(default_factory=Counter)
    seqs: list[int] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        told = as_plain(self)
        seqs = told.pop("seqs")
        return told | {"records": spans(seqs)}


def impact(reader: Reader, tenant: str, scope: Scope, side: ValueStore | None = None) -> Impact:
    """What `scope` covers of a tenant's records; without the value store no person is counted."""
    found = Impact(tenant)
    calls: dict[str, dict[str, Any]] = {}  # open ones: a call moves to other backends and ends later
    concerned: set[str] = set()
    for seq, event in records(reader, tenant, scope.since, scope.until):
        kind, request = event.get("type"), str(event.get("request_id"))
        if kind == CALL:
            calls[request] = event
        if kind in ROUTED and request in calls and scope.covers(calls[request] | _place(event)):
            _route(found, event)
            if request not in concerned:
                concerned.add(request)
                _call(found, seq, calls[request])
        if kind in ENDS:
            calls.pop(request, None)
            if request in concerned:
                concerned.discard(request)
                found.seqs.append(seq)
                found.answered += kind == "inference.completed"
                found.data_kinds.update(event.get("redaction", {}).get("counts_by_type", {}))
    if side is not None:
        _people(found, side)
    return found


def _place(event: dict[str, Any]) -> dict[str, Any]:
    return {name: event.get(name) for name in ("backend_id", "region")}


def _call(found: Impact, seq: int, event: dict[str, Any]) -> None:
    found.calls += 1
    found.seqs.append(seq)
    found.first = found.first or event["ts"]
    found.last = event["ts"]
    found.activities[event.get("activity_id") or event["project"]] += 1
    found.keys[event["key_id"]] += 1
    if "ai_system_id" in event:
        found.ai_systems[event["ai_system_id"]] += 1
    found.data_kinds.update(event.get("redaction", {}).get("counts_by_type", {}))


def _route(found: Impact, event: dict[str, Any]) -> None:
    found.backends[event["backend_id"]] += 1
    found.countries[event["inference_country"]] += 1
    found.operators[f"{event['operator_entity']} ({event['operator_hq']})"] += 1


def _people(found: Impact, side: ValueStore) -> None:
    wanted = set(found.seqs)
    if not wanted:
        return
    rows = side.rows(
        "SELECT DISTINCT seq, key_id, subject IS NOT NULL FROM value JOIN data_key ON data_key.id = key_id"
        " WHERE value.tenant = ? AND seq BETWEEN ? AND ?",
        (found.tenant, min(wanted), max(wanted)),
    )
    named = {seq: key_id for seq, key_id, is_person in rows if is_person and seq in wanted}
    found.subjects = len(set(named.values()))
    found.unnamed = sum(1 for seq, _, is_person in rows if not is_person and seq in wanted)


def draft(found: Iterable[Impact], scope: Scope, controllers: Mapping[str, Party] | None = None) -> str:
    """What GDPR 33(3) wants in a notification, as far as log and registers can say it; the rest is marked to be filled
    in. `controllers`: by tenant, as the registers have them."""
    known = controllers or {}
    lines = [
        "Notification of a personal data breach (GDPR 33(3)), draft from the log",
        "",
        f"Period: {scope.since or 'from the first record'} to {scope.until or 'now'}",
    ]
    for one in found:
        kinds = ", ".join(f"{name} ({count})" for name, count in one.data_kinds.most_common()) or "none recorded"
        lines += [
            "",
            f"Controller: {known.get(one.tenant, Party()).name or one.tenant}",
            f"(a) Nature: {one.calls} calls, {one.answered} of them answered; activities:"
            f" {', '.join(one.activities) or 'none'}",
            f"    Categories of data found in them: {kinds}",
            f"    Data subjects: {one.subjects} identified by the applications; {one.unnamed} records without a person;"
            " persons whose values were erased before are not counted",
            f"    Places: {', '.join(one.countries) or 'none'}; operators: {', '.join(one.operators) or 'none'}",
        ]
        lines.append(f"(b) Data protection officer or contact: {_contact(known.get(one.tenant, Party()))}")
    lines += [
        "",
        "(c) Likely consequences: [to be filled in]",
        "(d) Measures taken or proposed: [to be filled in]",
        "",
    ]
    return "\n".join(lines)


def _contact(party: Party) -> str:
    return ", ".join(one for one in (party.dpo, party.contact) if one) or "[to be filled in]"
