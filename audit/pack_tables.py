"""The tables of an evidence pack, gathered while its records pass by: CSV (RFC 4180, UTF-8).

They say what the records say and no more: a column that only a register outside the log could fill is left empty.
"""

import csv
import io
import json
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

from audit.certificate import Certificate
from audit.event import AdminChanged, InferenceAccepted, InferenceDenied, RoutingDecision
from audit.leaf import Leaf
from audit.privacy_event import (
    ContentAccessed,
    DsarAnswered,
    DsarRectified,
    DsarRestricted,
    ErasureCompleted,
    ErasureRefused,
    ErasureRequested,
    LegalHold,
    LogExported,
    RetentionRun,
)

ACCESS = (
    AdminChanged
    | LegalHold
    | ErasureRequested
    | ErasureRefused
    | ErasureCompleted
    | DsarAnswered
    | DsarRectified
    | DsarRestricted
    | ContentAccessed
    | LogExported
)

_EVENT_HEADER = (
    "seq,ts,type,request_id,key_id,project,activity_id,ai_system_id,risk_class,endpoint,model_requested,model_served,"
    "region,backend_id,inference_country,storage_country,operator_entity,operator_hq,ultimate_parent_country,"
    "transfer_basis,outcome,status,reason,finish_reason,tokens_in,tokens_out,ttft_ms,latency_ms"
)
_EVENT_COLUMNS = _EVENT_HEADER.split(",")


class Tables:
    """`take` each record once; then `files`. Memory grows with distinct routes and administrative acts, not records."""

    EVENT_HEADER: ClassVar[bytes] = f"{_EVENT_HEADER}\r\n".encode()

    def __init__(self) -> None:
        self.types: Counter[str] = Counter()
        self.days: Counter[tuple[str, str]] = Counter()  # (day, allowed or denied)
        self.denials: Counter[tuple[str, str, str]] = Counter()  # rule, article, because
        self.transfers: Counter[tuple[str, ...]] = Counter()
        self.redacted: Counter[str] = Counter()
        self.certificates: list[Certificate] = []
        self._activities: dict[str, _Activity] = {}
        self._access: list[tuple[object, ...]] = []
        self._runs: list[tuple[object, ...]] = []
        self._policies: list[dict[str, Any]] = []

    def take(self, seq: int, leaf: Leaf) -> None:
        event, ts = leaf.event, leaf.stamp.ts
        self.types[event.type] += 1
        if isinstance(event, InferenceAccepted | InferenceDenied):
            denied = isinstance(event, InferenceDenied)
            self.days[ts[:10], "denied" if denied else "allowed"] += 1
            activity = self._activities.setdefault(event.activity_id or event.project, _Activity())
            activity.calls += 1
            activity.projects.add(event.project)
            if event.redaction is not None:
                self.redacted.update(event.redaction.counts_by_type)
                activity.data.update(event.redaction.counts_by_type)
            if event.retention_class is not None:
                activity.retention.add(event.retention_class)
        if isinstance(event, InferenceDenied):
            self.denials.update((one.rule, one.article or "", one.because) for one in event.decision.reasons)
        if isinstance(event, InferenceAccepted | RoutingDecision):
            route = event.inference_country, event.storage_country, event.operator_entity, event.operator_hq
            parent = event.ultimate_parent, event.ultimate_parent_country
            self.transfers[ts[:7], *route, *parent, event.region, event.transfer_basis] += 1
            if isinstance(event, InferenceAccepted):
                activity.recipients.add(f"{event.operator_entity} ({event.operator_hq})")
                activity.transfers.add(f"{event.inference_country}: {event.transfer_basis}")
        if isinstance(event, ACCESS):
            about = event.model_dump(mode="json", exclude_none=True, exclude={"type", "tenant", "actor"})
            self._access.append((seq, ts, event.type, getattr(event, "actor", ""), json.dumps(about, sort_keys=True)))
        if isinstance(event, RetentionRun):
            kept = event.oldest_expiry or "", event.backups_until or "", event.certificate_sha256 or ""
            self._runs.append((seq, ts, event.run_id, event.due, event.deleted, event.held, event.orphans, *kept))
        if isinstance(event, AdminChanged) and event.type.startswith("admin.policy."):
            self._policies.append({"seq": seq, "ts": ts, **event.model_dump(mode="json", exclude_none=True)})

    def files(self) -> dict[str, str]:
        """Name and content of every table, empty ones too: that nothing happened is an answer."""
        return {
            "transfer_report.csv": _table(
                "month,inference_country,storage_country,operator_entity,operator_hq,ultimate_parent,"
                "ultimate_parent_country,region,transfer_basis,calls",
                ((*route, calls) for route, calls in sorted(self.transfers.items())),
            ),
            "denied.csv": _table(
                "rule,article,because,calls", ((*why, calls) for why, calls in sorted(self.denials.items()))
            ),
            "ropa_controller.csv": self._ropa_controller(),
            "ropa_processor.csv": self._ropa_processor(),
            "admin_access.csv": _table("seq,ts,type,actor,what", self._access),
            "retention_run.csv": _table(
                "seq,ts,run_id,due,deleted,held,orphans,oldest_expiry,backups_until,certificate_sha256", self._runs
            ),
            "policy_history.json": json.dumps(self._policies, indent=1),
        }

    def _ropa_controller(self) -> str:
        """GDPR 30(1); the columns that no record carries are for the controller to fill."""
        return _table(
            "activity,projects,controller_contact,dpo,purposes,subject_categories,data_kinds_seen,recipients,"
            "third_countries_and_basis,erasure_time_limits,security_measures,calls",
            (
                (name, _set(one.projects), "", "", "", "", *one.flows(), _set(one.retention), "", one.calls)
                for name, one in sorted(self._activities.items())
            ),
        )

    def _ropa_processor(self) -> str:
        """GDPR 30(2)."""
        return _table(
            "controller,categories_of_processing,subprocessors,third_countries_and_basis,security_measures,calls",
            (
                ("", name, _set(one.recipients), _set(one.transfers), "", one.calls)
                for name, one in sorted(self._activities.items())
            ),
        )

    @staticmethod
    def event_row(seq: int, event: dict[str, Any]) -> bytes:
        """One line of events.csv."""
        decision = event.get("decision") or {}
        flat = event | {"seq": seq, "outcome": decision.get("outcome", "")}
        return _line([flat.get(name, "") for name in _EVENT_COLUMNS]).encode()


class _Activity:
    def __init__(self) -> None:
        self.calls = 0
        self.projects: set[str] = set()
        self.data: set[str] = set()
        self.recipients: set[str] = set()
        self.transfers: set[str] = set()
        self.retention: set[str] = set()

    def flows(self) -> tuple[str, str, str]:
        return _set(self.data), _set(self.recipients), _set(self.transfers)


def _set(values: Iterable[str]) -> str:
    return "; ".join(sorted(values))


def _table(header: str, rows: Iterable[Sequence[object]]) -> str:
    return header + "\r\n" + "".join(map(_line, rows))


def _line(values: Sequence[object]) -> str:
    out = io.StringIO()
    csv.writer(out).writerow([_inert(value) for value in values])
    return out.getvalue()


def _inert(value: object) -> object:
    """A cell that a spreadsheet would take for a formula is made text: clients choose some of these words."""
    return f"'{value}" if isinstance(value, str) and value[:1] in ("=", "+", "-", "@", "\t", "\r") else value
