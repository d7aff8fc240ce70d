"""The tables of a pack that follow from its records: computed again from the records and compared.

Whoever has the log's key can sign any table. What is listed in RECOMPUTED is therefore not believed but made from the
records; the other files are only as good as the signature, and the report names them.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Iterator
from typing import Any

from audit.events.event_types import ACCESS_TYPES
from audit.events.ocsf import ocsf
from audit.pack_verifier.canonical import load_json
from audit.pack_verifier.evidence import EVIDENCE_FIELDS, EVIDENCE_TYPES, is_bound
from audit.pack_verifier.fault import Broken, Findings
from audit.pack_verifier.signed import Signed
from audit.pack_verifier.systems import Systems

BOM = "\ufeff"
MAX_ROW = 1 << 20
EVENTS, OCSF = "events.csv", "ocsf.jsonl"
RECOMPUTED = (
    EVENTS,
    OCSF,
    "counts.csv",
    "transfer_report.csv",
    "weights.csv",
    "attestations.csv",
    "denied.csv",
    "admin_access.csv",
    "retention_run.csv",
    "authority_requests.csv",
    "residency_evidence.json",
    "ai_systems.json",
    "incidents.json",
    "subject_requests.json",
    "erasure_certificate.json",
)
CHECKED = (  # by other steps, against the records or the tree
    "events.jsonl",
    "fields.jsonl",
    "checkpoint",
    "policy_history.json",
    "policies_in_force.json",
)
CHECKED_FOLDERS = ("proofs/", "certificates/")

HEADER = (
    "seq,ts,type,request_id,key_id,project,activity_id,ai_system_id,risk_class,endpoint,model_requested,model_served,"
    "region,backend_id,inference_country,storage_country,operator_entity,operator_hq,ultimate_parent_country,"
    "transfer_basis,outcome,status,reason,finish_reason,tokens_in,tokens_out,ttft_ms,latency_ms"
)
COLUMNS = tuple(HEADER.split(","))
OUTCOME = COLUMNS.index("outcome")
ROUTE = (
    "inference_country",
    "storage_country",
    "operator_entity",
    "operator_hq",
    "ultimate_parent",
    "ultimate_parent_country",
    "region",
    "transfer_basis",
)
WEIGHTS = ("model_served", "backend_id", "weights_sha256", "weights_source")
PEER = ("backend_id", "region", "kind", "address", "peer_sha256", "peer_uri", "tls_version")
RUN = ("run_id", "due", "deleted", "held", "orphans", "oldest_expiry", "backups_until", "certificate_sha256")
TOOLS = ("intra_eea", "adequacy", "scc", "bcr", "derogation")
STAMP = ("v", "event_id", "ts", "gateway_node", "boot_id", "type", "tenant", "actor")
STEPS = ("dsar.received", "dsar.extended", "dsar.closed")
ENDS = ("extended", "extension_reason", "closed", "outcome", "reason", "act_seq")
COUNTED = ("request.refused", "auth.failed")


class Line:
    """A file whose `write` gives back what it was given."""

    def write(self, text: str) -> str:
        return text


WRITE_ROW = csv.writer(Line()).writerow
FORMULA = frozenset("=+-@\t\r\n\uff1d\uff0b\uff0d\uff20")
ENCODE = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
RECORD = "\x00"  # stands for the record in an OCSF event, whose text is known already
ENCODED_RECORD = '"unmapped":"\\u0000"'


def csv_line(values: Iterable[object]) -> str:
    """RFC 4180. A cell that a spreadsheet would take for a formula begins with an apostrophe."""
    cells = ["'" + value if isinstance(value, str) and value[:1] in FORMULA else value for value in values]
    return str(WRITE_ROW(cells))


def csv_file(header: str, rows: Iterable[Iterable[object]]) -> str:
    return BOM + header + "\r\n" + "".join(csv_line(row) for row in rows)


class Rows:
    """A file that is compared line by line while the records pass by."""

    def __init__(self, signed: Signed, name: str) -> None:
        self.name, self.wrong = name, -1
        self.file = signed.pack.open(name) if name in signed.files else None

    def expect(self, line: bytes, seq: int) -> None:
        """Remembers the first record whose line is another."""
        if self.file is not None and self.wrong < 0 and self.file.readline(MAX_ROW) != line:
            self.wrong = seq

    def finish(self, end: int) -> None:
        if self.file is not None:
            if self.wrong < 0 and self.file.read(1):
                self.wrong = end
            self.file.close()


class Tables:
    """`take` each record that has content, `take_expired` each other one, in their order; then `check`."""

    def __init__(self, signed: Signed, findings: Findings) -> None:
        self.signed, self.findings = signed, findings
        self.rows: dict[str, Rows] = {}
        self.counts: dict[tuple[Any, ...], int] = {}
        self.transfers: dict[tuple[str, ...], int] = {}
        self.denials: dict[tuple[str, str, str], int] = {}
        self.evidence: list[list[object]] = []
        self.weights: dict[tuple[str, ...], list[Any]] = {}
        self.months: set[str] = set()
        self.access: list[list[object]] = []
        self.runs: list[list[object]] = []
        self.requests: list[list[object]] = []
        self.connections: dict[tuple[str, ...], dict[str, Any]] = {}
        self.backends: set[str] = set()
        self.incidents: dict[str, dict[str, Any]] = {}
        self.matters: dict[str, dict[str, Any]] = {}
        self.last = ""
        self.systems = Systems()

    def begin(self) -> None:
        self.rows = {name: Rows(self.signed, name) for name in (EVENTS, OCSF)}
        self.rows[EVENTS].expect((BOM + csv_line(COLUMNS)).encode(), self.signed.first)

    def take(self, seq: int, event: dict[str, Any], text: str) -> None:
        """`text` is the record in canonical form. Raises Broken for one that no table can be made of."""
        try:
            self.take_rows(seq, event, text)
            self.take_counts(seq, event)
        except (KeyError, TypeError, ValueError, AttributeError):
            raise Broken("it lacks what a record of its type has") from None

    def take_expired(self, seq: int) -> None:
        self.rows[EVENTS].expect(csv_line([seq] + [""] * (len(COLUMNS) - 1)).encode(), seq)

    def take_rows(self, seq: int, event: dict[str, Any], text: str) -> None:
        cells = [event.get(name, "") for name in COLUMNS]
        cells[0], cells[OUTCOME] = seq, (event.get("decision") or {}).get("outcome", "")
        self.rows[EVENTS].expect(csv_line(cells).encode(), seq)
        mapped = ENCODE(dict(ocsf(seq, event), unmapped=RECORD))
        record = '"unmapped":' + text[:-1] + ',"seq":' + str(seq) + "}"
        self.rows[OCSF].expect((mapped.replace(ENCODED_RECORD, record, 1) + "\n").encode(), seq)

    def take_counts(self, seq: int, event: dict[str, Any]) -> None:
        kind, ts = event["type"], event["ts"]
        self.months.add(ts[:7])
        self.last = ts
        self.count_record(kind, ts, event)
        self.count_weights(kind, ts, event)
        self.take_evidence(seq, kind, ts, event)
        if kind == "inference.denied":
            for one in event["decision"]["reasons"]:
                add_one(self.denials, (one["rule"], one.get("article", ""), one["because"]))
        if kind in ("inference.accepted", "routing.decision"):
            add_one(self.transfers, (ts[:7], *(event[name] for name in ROUTE)))
            self.backends.add(event["backend_id"])
        if kind == "routing.connected":
            seen = tuple(event.get(name, "") for name in PEER)
            one = self.connections.setdefault(seen, {"connections": 0, "first": ts, "last": ts})
            one["connections"] += 1
            one["last"] = ts
        self.take_case(seq, kind, event)
        if kind.startswith("authority_request."):
            asked = [event[name] for name in ("matter_id", "authority", "country")]
            self.requests.append([seq, ts, kind, *asked, event.get("legal_basis", ""), event.get("outcome", "")])
        if kind in ACCESS_TYPES:
            about = {name: value for name, value in event.items() if name not in STAMP}
            self.access.append([seq, ts, kind, event.get("actor", ""), json.dumps(about, sort_keys=True)])
        if kind == "retention.run":
            records = [event.get("expired_records", 0), event.get("held_records", 0)]
            self.runs.append([seq, ts] + [event.get(name, "") for name in RUN] + records)
        self.systems.take(seq, event)

    def count_record(self, kind: str, ts: str, event: dict[str, Any]) -> None:
        told: tuple[Any, ...] = ("", "", "", "")
        if kind in COUNTED:
            told = tuple(event.get(name, "") for name in ("status", "reason", "endpoint", "key_id"))
        place = (ts[:10], kind, *(str(one) for one in told))
        self.counts[place] = self.counts.get(place, 0) + (event.get("count", 1) if kind in COUNTED else 1)

    def count_weights(self, kind: str, ts: str, event: dict[str, Any]) -> None:
        if kind in ("inference.completed", "inference.aborted") and "backend_id" in event:
            ran = tuple(event.get(name, "") for name in WEIGHTS)
            first, _, calls = self.weights.get(ran, (ts, ts, 0))
            self.weights[ran] = [first, ts, calls + 1]

    def take_evidence(self, seq: int, kind: str, ts: str, event: dict[str, Any]) -> None:
        if kind not in EVIDENCE_TYPES:
            return
        self.evidence.append([seq, ts, kind] + [event.get(name, "") for name in EVIDENCE_FIELDS])
        if kind == "backend.attested" and not is_bound(event):
            self.findings.fault("evidence", "its report is not for the nonce, key and weights that it names", seq)

    def take_case(self, seq: int, kind: str, event: dict[str, Any]) -> None:
        if kind.startswith("incident."):
            self.take_incident(seq, event)
        if kind in STEPS:
            self.take_subject_request(seq, event)

    def take_incident(self, seq: int, event: dict[str, Any]) -> None:
        empty: dict[str, Any] = {
            "closed": None,
            "laws": [],
            "severity": None,
            "ai_system_id": None,
            "moments": {},
            "notified": {},
        }
        name = event["incident_id"]
        case = self.incidents.setdefault(name, dict(empty, incident_id=name, opened=event["ts"], records=[]))
        case["records"] = case["records"] + [seq]
        case["laws"] = list(dict.fromkeys(case["laws"] + list(event.get("laws", []))))
        case.update({name: event[name] for name in ("severity", "ai_system_id") if name in event})
        moments = {name: event[name + "_at"] for name in ("detected", "aware", "classified") if name + "_at" in event}
        case["moments"] = dict(case["moments"], **moments)
        if event["type"] == "incident.notified" and "clock" in event:
            case["notified"] = dict({event["clock"]: event["ts"]}, **case["notified"])
        if event["type"] == "incident.closed":
            case["closed"] = event["ts"]

    def take_subject_request(self, seq: int, event: dict[str, Any]) -> None:
        said = {name: event[name] for name in ("matter_id", "right", "received_at", "due_at")}
        one = self.matters.setdefault(event["matter_id"], dict(said, **dict.fromkeys(ENDS), records=[]))
        one["due_at"] = event["due_at"]
        one["records"] = one["records"] + [seq]
        if event["type"] == "dsar.extended":
            one.update(extended=event["ts"], extension_reason=event.get("reason"))
        if event["type"] == "dsar.closed":
            one.update({name: event.get(name) for name in ("outcome", "reason", "act_seq")}, closed=event["ts"])

    def check(self, certificates: list[dict[str, Any]]) -> None:
        """Every file of RECOMPUTED against what the records say. Raises Broken if these were not read."""
        if not self.rows:
            raise Broken("the tables cannot be checked, since the records could not be read")
        for name, rows in self.rows.items():
            rows.finish(self.signed.end)
            if name not in self.signed.files:
                self.findings.fault("table", name + " is not in the pack: nothing can be said about it")
            elif rows.wrong >= 0:
                self.findings.fault("table", name + " says something else than the records", rows.wrong)
        for name, text in self.csv_files():
            self.compare(name, text == self.text(name))
        for name, value in (
            ("residency_evidence.json", self.residency()),
            ("ai_systems.json", self.systems.listed()),
            ("incidents.json", self.incident_register()),
            ("subject_requests.json", self.subject_requests()),
            ("erasure_certificate.json", certificates),
        ):
            self.compare(name, self.value(name) == value)

    def compare(self, name: str, equal: bool) -> None:
        if name in self.signed.files and not equal:
            self.findings.fault("table", name + " says something else than the records")
        elif name not in self.signed.files:
            self.findings.fault("table", name + " is not in the pack: nothing can be said about it")

    def text(self, name: str) -> str:
        return self.signed.pack.read(name).decode("utf-8", "replace") if name in self.signed.files else ""

    def value(self, name: str) -> Any:
        """What the file says, without what the records do not contain: the deadlines of incidents come from a table."""
        try:
            said = load_json(self.text(name) or "null")
            if name == "incidents.json":
                return [{key: one[key] for key in one if key != "deadlines"} for one in said["incidents"]]
            if name == "subject_requests.json":
                return said["requests"]
        except (ValueError, KeyError, TypeError):
            return "not of this format"
        return said

    def csv_files(self) -> Iterator[tuple[str, str]]:
        rows = sorted(self.counts.items())
        yield "counts.csv", csv_file("day,type,status,reason,endpoint,key_id,count", ([*at, n] for at, n in rows))
        head = "month," + ",".join(ROUTE) + ",calls"
        transfers: list[list[object]] = [[*route, calls] for route, calls in sorted(self.transfers.items())]
        yield "transfer_report.csv", csv_file(head, transfers + self.unused_tools())
        weights = ([*ran, *one] for ran, one in sorted(self.weights.items()))
        yield "weights.csv", csv_file(",".join(WEIGHTS) + ",first,last,calls", weights)
        yield "attestations.csv", csv_file("seq,ts,type," + ",".join(EVIDENCE_FIELDS), self.evidence)
        denied = ([*why, calls] for why, calls in sorted(self.denials.items()))
        yield "denied.csv", csv_file("rule,article,because,calls", denied)
        yield "admin_access.csv", csv_file("seq,ts,type,actor,what", self.access)
        head = "seq,ts," + ",".join(RUN) + ",expired_records,held_records"
        yield "retention_run.csv", csv_file(head, self.runs)
        none = ["", "", "none", "", "No request of an authority is on record.", "", "", ""]
        head = "seq,ts,type,matter_id,authority,country,legal_basis,outcome"
        yield "authority_requests.csv", csv_file(head, self.requests or [none])

    def unused_tools(self) -> list[list[object]]:
        """Each month, the tools that no call rested on."""
        used = {(month, tool): 0 for month in sorted(self.months) for tool in TOOLS}
        for route, calls in self.transfers.items():
            for part in route[-1].split("+"):
                place = route[0], part.partition(":")[0]
                used[place] = used.get(place, 0) + calls
        return [[month] + [""] * 7 + [tool, 0] for (month, tool), calls in used.items() if not calls]

    def residency(self) -> dict[str, Any]:
        return {
            "note": "Each call's route was recorded before its first byte left; the records are in events.jsonl.",
            "routes": [
                dict(zip(("month", *ROUTE), route), calls=calls) for route, calls in sorted(self.transfers.items())
            ],
            "connections": [dict(zip(PEER, seen), **one) for seen, one in sorted(self.connections.items())],
            "denied": [
                {"rule": why[0], "article": why[1], "because": why[2], "calls": calls}
                for why, calls in sorted(self.denials.items())
            ],
            "backends_seen": sorted(self.backends),
        }

    def incident_register(self) -> list[dict[str, Any]]:
        return list(self.incidents.values())

    def subject_requests(self) -> list[dict[str, Any]]:
        return [dict(one, late=(one["closed"] or self.last) > one["due_at"]) for one in self.matters.values()]


def is_checked(name: str) -> bool:
    return name in RECOMPUTED or name in CHECKED or name.startswith(CHECKED_FOLDERS)


def add_one(counts: dict[Any, int], place: Any) -> None:
    counts[place] = counts.get(place, 0) + 1
