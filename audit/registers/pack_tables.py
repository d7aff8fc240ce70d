"""The tables of an evidence pack, gathered while its records pass by: CSV (RFC 4180, UTF-8 with a byte order mark).

They say what the records say and no more: a column that only a register outside the log could fill is left empty.
Without the byte order mark Excel in Europe reads a CSV file in the code page of its country (docs/evidence-pack.md).
"""

import csv
import io
import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

from audit.events.base import Event
from audit.events.event import (
    AdminChanged,
    AuthFailed,
    BackendAttested,
    BackendConnected,
    InferenceAborted,
    InferenceAccepted,
    InferenceCompleted,
    InferenceDenied,
    RequestRefused,
    RoutingDecision,
)
from audit.events.incident import AuthorityRequest, Incident
from audit.events.leaf import Leaf
from audit.events.privacy import (
    DsarRequest,
    RetentionRun,
)
from audit.incidents.incident import Case
from audit.incidents.subject_requests import Matter, take_request
from audit.private.certificate import Certificate
from audit.registers.systems import Systems

CALL = "inference.accepted"
BOM = "\ufeff"
"""Begins every CSV file that is made for people."""
FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n", "\uff1d", "\uff0b", "\uff0d", "\uff20")
"""What a spreadsheet may take for the beginning of a formula, full-width signs too (OWASP, CSV Injection)."""

_EVENT_HEADER = (
    "seq,ts,type,request_id,key_id,project,activity_id,ai_system_id,risk_class,endpoint,model_requested,model_served,"
    "region,backend_id,inference_country,storage_country,operator_entity,operator_hq,ultimate_parent_country,"
    "transfer_basis,outcome,status,reason,finish_reason,tokens_in,tokens_out,ttft_ms,latency_ms"
)
_EVENT_COLUMNS = _EVENT_HEADER.split(",")


TRANSFER_TOOLS = {
    "intra_eea": "no transfer",
    "adequacy": "GDPR 45",
    "scc": "GDPR 46(2)(c)",
    "bcr": "GDPR 47",
    "derogation": "GDPR 49",
}
"""What a call's place may rest on: within the EEA, or the tools of GDPR chapter V."""


class Tables:
    """`take` each record once; then `files`. Memory grows with distinct routes and administrative acts, not records."""

    EVENT_HEADER: ClassVar[bytes] = f"{BOM}{_EVENT_HEADER}\r\n".encode()

    def __init__(self) -> None:
        self.types: Counter[str] = Counter()
        self.counts: Counter[tuple[str, ...]] = Counter()  # day, type, and of refused requests what tells them apart
        self.days: Counter[tuple[str, str]] = Counter()  # (day, allowed or denied)
        self.denials: Counter[tuple[str, str, str]] = Counter()  # rule, article, because
        self.transfers: Counter[tuple[str, ...]] = Counter()
        self.redacted: Counter[str] = Counter()
        self.certificates: list[Certificate] = []
        self.cases: dict[str, Case] = {}
        self.matters: dict[str, Matter] = {}
        self.authority_requests: list[tuple[object, ...]] = []
        self.backends: set[str] = set()
        self.connections: dict[tuple[str, ...], Connections] = {}
        self.expired = 0
        self.activities: dict[str, Flows] = {}
        self._running: dict[str, str] = {}  # activity by request, of calls that have no outcome yet
        self._access: list[tuple[object, ...]] = []
        self._runs: list[tuple[object, ...]] = []
        self.policies: list[dict[str, Any]] = []
        self.policy_calls: Counter[str] = Counter()  # by hash
        self.deciders: Counter[tuple[str, str, str]] = Counter()  # policy, version, hash
        self._attestations: list[tuple[object, ...]] = []
        self.weights: dict[tuple[str, ...], Weighed] = {}
        self.months: set[str] = set()
        self.first = self.last = ""
        self.systems = Systems()

    def take(self, seq: int, leaf: Leaf) -> None:
        event, ts = leaf.event, leaf.stamp.ts
        self.types[event.type] += 1
        self.counts[ts[:10], event.type, *_refusal_key(event)] += (
            1 if (count := getattr(event, "count", None)) is None else count
        )
        self.systems.take(seq, leaf)
        self.months.add(ts[:7])
        self.first, self.last = self.first or ts, ts
        if event.is_access:
            self._take_access(seq, ts, event)
        for kinds, gather in _GATHERED:
            if isinstance(event, kinds):
                gather(self, seq, ts, event)

    def take_policy(self, seq: int, leaf: Leaf) -> None:
        """Alone, of a record before the range of the pack."""
        self._take_policy(seq, leaf.stamp.ts, leaf.event)

    def _take_policy(self, seq: int, ts: str, event: Event) -> None:
        if isinstance(event, AdminChanged) and event.type.startswith("admin.policy."):
            self.policies.append({"seq": seq, "ts": ts, **event.model_dump(mode="json", exclude_none=True)})

    def _take_decision(self, _seq: int, ts: str, event: InferenceAccepted | InferenceDenied) -> None:
        denied = isinstance(event, InferenceDenied)
        self.days[ts[:10], "denied" if denied else "allowed"] += 1
        name = event.activity_id or event.project
        activity = self.activities.setdefault(name, Flows())
        activity.calls += 1
        activity.projects.add(event.project)
        if event.policy_hash is not None:
            activity.policies.add(event.policy_hash)
        self.deciders[event.policy_id or "-", event.policy_version or "-", event.policy_hash or "-"] += 1
        self.policy_calls[event.policy_hash or ""] += not denied or event.policy_hash is not None
        if event.redaction is not None:
            self.redacted.update(event.redaction.counts_by_type)
            activity.data.update(event.redaction.counts_by_type)
        if event.retention_class is not None:
            activity.retention.add(event.retention_class)
        if isinstance(event, InferenceAccepted):
            self._running[event.request_id] = name

    def take_earlier(self, event: Mapping[str, Any]) -> None:
        """Alone, of an intent or outcome before the range of the pack, as JSON: whose call it is that moves on inside
        the range."""
        if event.get("type") == CALL:
            self._running[str(event.get("request_id"))] = str(event.get("activity_id") or event.get("project"))
        else:
            self._running.pop(str(event.get("request_id")), None)

    def _take_outcome(self, _seq: int, ts: str, event: InferenceCompleted | InferenceAborted) -> None:
        self._running.pop(event.request_id, None)
        if event.backend_id is not None:
            ran = event.model_served or "", event.backend_id, event.weights_sha256 or "", event.weights_source or ""
            self.weights.setdefault(ran, Weighed(ts)).take(ts)

    def _take_denial(self, _seq: int, _ts: str, event: InferenceDenied) -> None:
        self.denials.update((one.rule, one.article or "", one.because) for one in event.decision.reasons)

    def _take_route(self, _seq: int, ts: str, event: InferenceAccepted | RoutingDecision) -> None:
        route = event.inference_country, event.storage_country, event.operator_entity, event.operator_hq
        parent = event.ultimate_parent, event.ultimate_parent_country
        self.transfers[ts[:7], *route, *parent, event.region, event.transfer_basis] += 1
        self.backends.add(event.backend_id)
        if (name := self._running.get(event.request_id)) is not None:
            activity = self.activities.setdefault(name, Flows())
            activity.recipients.add(f"{event.operator_entity} ({event.operator_hq})")
            activity.transfers.update(_third_country(event))

    def _take_connection(self, _seq: int, ts: str, event: BackendConnected) -> None:
        seen = event.backend_id, event.region, event.kind, event.address, event.peer_sha256, event.peer_uri or ""
        self.connections.setdefault((*seen, event.tls_version or ""), Connections(ts)).take(ts)

    def _take_attestation(self, seq: int, ts: str, event: BackendAttested) -> None:
        bound = event.nonce, event.key_sha256, event.weights_sha256
        shown = event.backend_id, event.technology, event.measurement or ""
        self._attestations.append((seq, ts, event.type, *shown, *bound, event.reason or ""))

    def _take_incident(self, seq: int, ts: str, event: Incident) -> None:
        case = self.cases.setdefault(event.incident_id, Case(event.incident_id, event.tenant, ts))
        case.take(seq, {"ts": ts, **event.model_dump(mode="json", exclude_none=True)})

    def _take_subject_request(self, seq: int, ts: str, event: DsarRequest) -> None:
        take_request(self.matters, event.tenant, seq, {"ts": ts, **event.model_dump(mode="json", exclude_none=True)})

    def _take_authority_request(self, seq: int, ts: str, event: AuthorityRequest) -> None:
        asked = event.authority, event.country, event.legal_basis or "", event.outcome or ""
        self.authority_requests.append((seq, ts, event.type, event.matter_id, *asked))

    def _take_access(self, seq: int, ts: str, event: Event) -> None:
        about = event.model_dump(mode="json", exclude_none=True, exclude={"type", "tenant", "actor"})
        self._access.append((seq, ts, event.type, getattr(event, "actor", ""), json.dumps(about, sort_keys=True)))

    def _take_run(self, seq: int, ts: str, event: RetentionRun) -> None:
        records = event.expired_records or 0, event.held_records or 0
        kept = event.oldest_expiry or "", event.backups_until or "", event.certificate_sha256 or ""
        self._runs.append((seq, ts, event.run_id, event.due, event.deleted, event.held, event.orphans, *kept, *records))

    def files(self) -> dict[str, str]:
        """Name and content of every table, empty ones too: that nothing happened is an answer."""
        return {
            "counts.csv": table(
                "day,type,status,reason,endpoint,key_id,count",
                [(*kind, count) for kind, count in sorted(self.counts.items())],
            ),
            "transfer_report.csv": table(
                "month,inference_country,storage_country,operator_entity,operator_hq,ultimate_parent,"
                "ultimate_parent_country,region,transfer_basis,calls",
                [(*route, calls) for route, calls in sorted(self.transfers.items())] + self._without_calls(),
            ),
            "weights.csv": table(
                "model_served,backend_id,weights_sha256,weights_source,first,last,calls",
                ((*ran, one.first, one.last, one.calls) for ran, one in sorted(self.weights.items())),
            ),
            "attestations.csv": table(
                "seq,ts,type,backend_id,technology,measurement,nonce,key_sha256,weights_sha256,reason",
                self._attestations,
            ),
            "denied.csv": table(
                "rule,article,because,calls", ((*why, calls) for why, calls in sorted(self.denials.items()))
            ),
            "admin_access.csv": table("seq,ts,type,actor,what", self._access),
            "retention_run.csv": table(
                "seq,ts,run_id,due,deleted,held,orphans,oldest_expiry,backups_until,certificate_sha256,"
                "expired_records,held_records",
                self._runs,
            ),
        }

    def by_tool(self) -> dict[tuple[str, str], int]:
        """Calls by month and tool, those without any too. A call that rests on two tools is counted for each."""
        counts = {(month, tool): 0 for month in sorted(self.months) for tool in TRANSFER_TOOLS}
        for route, calls in self.transfers.items():
            for part in route[-1].split("+"):
                tool = part.partition(":")[0]
                counts[route[0], tool] = counts.get((route[0], tool), 0) + calls
        return counts

    def _without_calls(self) -> list[tuple[object, ...]]:
        """That nothing was transferred on some basis is said, month by month."""
        return [(month, *[""] * 7, tool, 0) for (month, tool), calls in self.by_tool().items() if not calls]

    @staticmethod
    def event_row(seq: int, event: dict[str, Any]) -> bytes:
        """One line of events.csv; of an expired record only its number."""
        decision = event.get("decision") or {}
        flat = event | {"seq": seq, "outcome": decision.get("outcome", "")}
        return _line([flat.get(name, "") for name in _EVENT_COLUMNS]).encode()


_GATHERED: tuple[tuple[Any, Callable[[Tables, int, str, Any], None]], ...] = (
    (InferenceAccepted | InferenceDenied, Tables._take_decision),
    (InferenceDenied, Tables._take_denial),
    (InferenceAccepted | RoutingDecision, Tables._take_route),
    (InferenceCompleted | InferenceAborted, Tables._take_outcome),
    (BackendConnected, Tables._take_connection),
    (BackendAttested, Tables._take_attestation),
    (Incident, Tables._take_incident),
    (AuthorityRequest, Tables._take_authority_request),
    (DsarRequest, Tables._take_subject_request),
    (RetentionRun, Tables._take_run),
    (AdminChanged, Tables._take_policy),
)
"""Types of events, and what gathers them: of an event, all whose types it is of, in this order."""


def _refusal_key(event: Event) -> tuple[str, str, str, str]:
    """What a refused request is counted by beside its type: status, reason, endpoint, key."""
    if not isinstance(event, AuthFailed | RequestRefused):
        return "", "", "", ""
    status = str(event.status) if isinstance(event, RequestRefused) else ""
    return status, event.reason, event.endpoint or "", event.key_id or ""


class Weighed:
    """Calls that one backend answered from the same weights."""

    def __init__(self, first: str) -> None:
        self.first, self.last, self.calls = first, first, 0

    def take(self, ts: str) -> None:
        self.last, self.calls = ts, self.calls + 1


class Connections:
    """How often a backend showed itself the same way, and from when to when."""

    def __init__(self, first: str) -> None:
        self.first = self.last = first
        self.count = 0

    def take(self, ts: str) -> None:
        self.count += 1
        self.last = ts


class Transfer(NamedTuple):
    """A route that rests on a tool of GDPR chapter V: where calls were computed and stored, and the tool."""

    computed_in: str
    stored_in: str
    tool: str

    def __str__(self) -> str:
        return f"computed in {self.computed_in}, stored in {self.stored_in}: {self.tool}"


class Flows:
    """What was seen of one processing activity. `policies`: hashes of those that decided its calls."""

    def __init__(self) -> None:
        self.calls = 0
        self.projects: set[str] = set()
        self.data: set[str] = set()
        self.recipients: set[str] = set()
        self.transfers: set[Transfer] = set()
        self.retention: set[str] = set()
        self.policies: set[str] = set()


def _third_country(event: InferenceAccepted | RoutingDecision) -> Iterable[Transfer]:
    """The tools that a route rests on beside the EEA itself. Sub-processors of the route count in its basis."""
    tools = (tool for tool in event.transfer_basis.split("+") if tool != "intra_eea")
    return (Transfer(event.inference_country, event.storage_country, tool) for tool in tools)


def table(header: str, rows: Iterable[Sequence[object]]) -> str:
    """CSV for people, with `header` (names between commas) and a line for each of `rows`."""
    return BOM + plain_table(header, rows)


def plain_table(header: str, rows: Iterable[Sequence[object]]) -> str:
    """CSV for programs: as `table`, without the byte order mark."""
    return header + "\r\n" + "".join(map(_line, rows))


def _line(values: Sequence[object]) -> str:
    out = io.StringIO()
    csv.writer(out).writerow([_inert(value) for value in values])
    return out.getvalue()


def _inert(value: object) -> object:
    """A cell that a spreadsheet would take for a formula is made text: clients choose some of these words."""
    return f"'{value}" if isinstance(value, str) and value.startswith(FORMULA) else value
