"""The registers of an evidence pack: what the operator's own registers and the records say together.

Records of processing (GDPR 30, both views), measures, sub-processors, backends, the templates of DORA's register of
information, policy texts with the time they were in force, residency evidence, incidents, requests of persons and of
authorities, controls.
"""

import csv
import json
from collections.abc import Iterator, Mapping, Sequence
from importlib.resources import files
from typing import Any

from audit.events.base import SYSTEM_TENANT
from audit.incidents.incident import Case
from audit.incidents.pack_inputs import Evidence
from audit.incidents.subject_requests import Matter
from audit.law.deadlines import as_rows, load_clocks
from audit.law.duties import Duties, load_duties
from audit.log.walk import parsed
from audit.registers.dora import dora_files
from audit.registers.pack_tables import Tables, table
from audit.registers.policies import policy_files
from audit.registers.ropa import CONTROLLER_COLUMNS, PROCESSOR_COLUMNS, ropa_controller, ropa_processor
from audit.storage.store import Reader

SELFTESTS_READ = 500_000


def registers(tables: Tables, evidence: Evidence, tested: Mapping[str, str] | None = None) -> dict[str, str]:
    """Name and content of every file. `tested`: how the self-tests last ended, by check (`last_selftests`)."""
    controller, processor = ropa_controller(tables.activities, evidence), ropa_processor(tables.activities, evidence)
    return {
        "ropa_controller.json": _json(controller),
        "ropa_controller.csv": _csv(controller, CONTROLLER_COLUMNS),
        "ropa_processor.json": _json(processor),
        "ropa_processor.csv": _csv(processor, PROCESSOR_COLUMNS),
        "measures.csv": _csv(
            [one.model_dump() for one in evidence.measures], _MEASURE, "No backend or policy is known."
        ),
        "subprocessors.csv": _csv(_listed(evidence), _SUBPROCESSOR, "No sub-processor is in the registers."),
        "transfer_safeguards.csv": _csv(
            [one.model_dump() for one in evidence.safeguards], _SAFEGUARD, "No safeguard of a transfer is attested."
        ),
        "backends.json": _json(_backends(evidence)),
        **dora_files(evidence),
        **policy_files(tables.policies, evidence),
        "residency_evidence.json": _json(_residency(tables)),
        "incidents.json": _json(_incidents(tables.cases, tables.last)),
        "subject_requests.json": _json(_subject_requests(tables.matters, tables.last)),
        "ai_systems.json": _json(tables.systems.as_json()),
        "authority_requests.csv": table(
            "seq,ts,type,matter_id,authority,country,legal_basis,outcome",
            tables.authority_requests or [("", "", "none", "", "No request of an authority is on record.", "", "", "")],
        ),
        "control_mapping.csv": control_mapping(tested or {}),
    }


_MEASURE = "article,applies_to,in_place,says,because"
_SUBPROCESSOR = "operator,name,country,does,register_version,announced,objection_until,valid_from,valid_to,source"
_SAFEGUARD = "operator,country,basis,reference,valid_from,valid_to"


def _listed(evidence: Evidence) -> list[dict[str, Any]]:
    """Sub-processors with their operators' names."""
    names = {one.id: one.entity for one in evidence.operators}
    return [one.model_dump() | {"operator": names.get(one.operator, one.operator)} for one in evidence.subprocessors]


MAPPING_HEADER = "framework,edition,control,asks for,applies from,feature,test,last self-test,provision read,source"


def control_mapping(tested: Mapping[str, str]) -> str:
    """Duty to feature to the test that shows it (docs/control-mapping.md), from when the duty applies, and how the
    self-test of the feature last ended here, where there is one."""
    duties = load_duties()
    as_of = ("", "", "", f"As of {duties.as_of}. {duties.note}", *[""] * 6)
    return table(MAPPING_HEADER, [*_mapped(duties, tested), as_of])


def controls() -> list[dict[str, str]]:
    """Lines of `controls.csv`: duty, feature, test and check."""
    text = files("audit.registers").joinpath("controls.csv").read_text(encoding="utf-8")
    return list(csv.DictReader(text.splitlines()))


def _mapped(duties: Duties, tested: Mapping[str, str]) -> Iterator[tuple[str, ...]]:
    by_duty: dict[str, list[dict[str, str]]] = {}
    for line in controls():
        by_duty.setdefault(line["duty"], []).append(line)
    for duty in duties.duties:
        source = duties.sources[duty.source]
        known = (source.short, source.edition, duty.provision, duty.asks, duties.applies_from(duty.id))
        for line in by_duty.get(duty.id, [_UNMET]):
            last = tested.get(line["check"], "")
            yield (*known, line["feature"], line["test"], last, duty.read, source.title)


_UNMET = {"feature": "none: outside this product, or not built", "test": "", "check": ""}


def last_selftests(reader: Reader) -> dict[str, str]:
    """By check, how it ended and when, of the last SELFTESTS_READ records of the log's own tree."""
    if SYSTEM_TENANT not in reader.tenants():
        return {}
    found = {}
    for stored in reader.leaves(SYSTEM_TENANT, max(0, reader.head(SYSTEM_TENANT)[0] - SELFTESTS_READ)):
        if b'"passed":' in stored.payload:
            event = parsed(stored.payload)
            found[str(event.get("check"))] = f"{'passed' if event.get('passed') else 'FAILED'} {event.get('ts')}"
    return found


def _backends(evidence: Evidence) -> dict[str, Any]:
    return {
        "catalogue_version": evidence.catalogue_version,
        "operators": [one.model_dump(mode="json") for one in evidence.operators],
        "backends": [one.model_dump(mode="json") for one in evidence.backends],
    }


def _residency(tables: Tables) -> dict[str, Any]:
    names = _ROUTE.split(",")
    return {
        "note": "Each call's route was recorded before its first byte left; the records are in events.jsonl.",
        "routes": [
            dict(zip(names, route, strict=True)) | {"calls": n} for route, n in sorted(tables.transfers.items())
        ],
        "connections": [
            dict(zip(_PEER, seen, strict=True)) | {"connections": one.count, "first": one.first, "last": one.last}
            for seen, one in sorted(tables.connections.items())
        ],
        "denied": [
            {"rule": rule, "article": article, "because": because, "calls": calls}
            for (rule, article, because), calls in sorted(tables.denials.items())
        ],
        "backends_seen": sorted(tables.backends),
    }


def _incidents(cases: Mapping[str, Case], now: str) -> dict[str, Any]:
    """With what was due by when, by the built-in clocks; states are those at the pack's last record."""
    clocks = load_clocks()
    told = [
        {
            "incident_id": case.incident_id,
            "opened": case.opened,
            "closed": case.closed,
            "laws": case.laws,
            "severity": case.severity,
            "ai_system_id": case.ai_system_id,
            "moments": case.moments,
            "notified": case.met,
            "deadlines": as_rows(case.deadlines(clocks), now),
            "records": [event["seq"] for event in case.events],
        }
        for case in cases.values()
    ]
    statement = f"{len(told)} incidents are on record in this period."
    return {"statement": statement, "clocks_as_of": str(clocks.as_of), "states_at": now, "incidents": told}


def _subject_requests(matters: Mapping[str, Matter], last: str) -> dict[str, Any]:
    """`late` of an open request is as of the pack's last record."""
    told = [
        {
            "matter_id": one.matter_id,
            "right": one.right,
            "received_at": one.received_at,
            "due_at": one.due_at,
            "extended": one.extended,
            "extension_reason": one.extension_reason,
            "closed": one.closed,
            "outcome": one.outcome,
            "reason": one.reason,
            "act_seq": one.act_seq,
            "late": (one.closed or last) > one.due_at,
            "records": one.records,
        }
        for one in matters.values()
    ]
    statement = f"{len(told)} requests of persons are on record in this period."
    return {"statement": statement, "states_at": last, "requests": told}


_PEER = ("backend_id", "region", "kind", "address", "peer_sha256", "peer_uri", "tls_version")
_ROUTE = (
    "month,inference_country,storage_country,operator_entity,operator_hq,ultimate_parent,ultimate_parent_country,"
    "region,transfer_basis"
)


def _json(value: Any) -> str:
    return json.dumps(value, indent=1, ensure_ascii=False)


def _csv(rows: Sequence[Mapping[str, Any]], header: str, empty: str = "") -> str:
    """Without rows, one line says so in its second column: that there is nothing is an answer."""
    names = header.split(",")
    if not rows and empty:
        return table(header, [["none", empty, *[""] * (len(names) - 2)]])
    return table(header, [[_flat(row.get(name, "")) for name in names] for row in rows])


def _flat(value: Any) -> Any:
    return "; ".join(map(str, value)) if isinstance(value, list | tuple) else value
