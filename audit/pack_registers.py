"""The registers of an evidence pack: what the operator's own registers and the records say together.

Records of processing (GDPR 30, both views), sub-processors, backends, the columns of DORA's register of information,
policy texts with the time they were in force, residency evidence, incidents, requests of authorities, controls.
"""

import csv
import json
from collections.abc import Mapping, Sequence
from importlib.resources import files
from typing import Any

from audit.event_base import SYSTEM_TENANT
from audit.evidence import Activity, Evidence
from audit.incident import Case
from audit.pack_policies import policy_files
from audit.pack_tables import Flows, Tables, table
from audit.store import Reader
from audit.walk import parsed

SELFTESTS_READ = 500_000


def registers(tables: Tables, evidence: Evidence, tested: Mapping[str, str] | None = None) -> dict[str, str]:
    """Name and content of every file. `tested`: how the self-tests last ended, by check (`last_selftests`)."""
    controller, processor = _ropa_controller(tables.activities, evidence), _ropa_processor(tables.activities, evidence)
    return {
        "ropa_controller.json": _json(controller),
        "ropa_controller.csv": _csv(controller, _CONTROLLER),
        "ropa_processor.json": _json(processor),
        "ropa_processor.csv": _csv(processor, _PROCESSOR),
        "subprocessors.csv": _csv([one.model_dump() for one in evidence.subprocessors], _SUBPROCESSOR),
        "backends.json": _json(_backends(evidence)),
        "dora_register.csv": _csv(_dora(evidence), _DORA),
        **policy_files(tables.policies, evidence),
        "residency_evidence.json": _json(_residency(tables)),
        "incidents.json": _json(_incidents(tables.cases)),
        "ai_systems.json": _json(tables.systems.as_json()),
        "authority_requests.csv": table(
            "seq,ts,type,matter_id,authority,country,legal_basis,outcome",
            tables.authority_requests or [("", "", "none", "", "No request of an authority is on record.", "", "", "")],
        ),
        "control_mapping.csv": control_mapping(tested or {}),
    }


_CONTROLLER = (
    "activity,projects,controller,controller_contact,dpo,purpose,legal_basis,subject_categories,data_classes,"
    "data_kinds_seen,recipients,third_countries_and_basis,erasure_time_limits,security_measures,calls"
)
_PROCESSOR = (
    "controller,processor,processor_contact,dpo,categories_of_processing,subprocessors,third_countries_and_basis,"
    "security_measures,calls"
)
_SUBPROCESSOR = "operator,name,country,valid_from,valid_to"
_DORA = (
    "provider_name,provider_lei,provider_head_office,ultimate_parent,ultimate_parent_country,function,backend,"
    "country_of_provision,country_of_data_storage,start,end,criticality,substitutability"
)


def control_mapping(tested: Mapping[str, str]) -> str:
    """Control to feature to the test that shows it (docs/control-mapping.md), and how the self-test of it last ended
    here, where there is one."""
    text = files("audit").joinpath("controls.csv").read_text(encoding="utf-8")
    rows = list(csv.DictReader(text.splitlines()))
    told = [[*list(row.values())[:-1], tested.get(row["check"], "")] for row in rows]
    return table("framework,control,asks for,feature,test,last self-test", told)


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


def _ropa_controller(flows: Mapping[str, Flows], evidence: Evidence) -> list[dict[str, Any]]:
    """GDPR 30(1). An activity without calls is listed, and calls without a registered activity."""
    known = {one.id: one for one in evidence.activities}
    party = evidence.controller
    return [
        {
            "activity": name,
            "projects": sorted(flow.projects),
            "controller": party.name,
            "controller_contact": party.contact,
            "dpo": party.dpo,
            **_purpose(known.get(name)),
            "data_kinds_seen": sorted(flow.data),
            "recipients": sorted(flow.recipients),
            "third_countries_and_basis": sorted(flow.transfers),
            "erasure_time_limits": sorted(flow.retention),
            "security_measures": list(evidence.measures),
            "calls": flow.calls,
        }
        for name, flow in sorted((dict.fromkeys(known, Flows()) | dict(flows)).items())
    ]


def _purpose(activity: Activity | None) -> dict[str, Any]:
    if activity is None:
        return {"purpose": "", "legal_basis": "", "subject_categories": [], "data_classes": []}
    return activity.model_dump(mode="json", include={"purpose", "legal_basis", "subject_categories", "data_classes"})


def _ropa_processor(flows: Mapping[str, Flows], evidence: Evidence) -> list[dict[str, Any]]:
    """GDPR 30(2)."""
    by_operator = {one.name for one in evidence.subprocessors}
    return [
        {
            "controller": evidence.controller.name,
            "processor": evidence.processor.name,
            "processor_contact": evidence.processor.contact,
            "dpo": evidence.processor.dpo,
            "categories_of_processing": f"inference for {name}",
            "subprocessors": sorted(flow.recipients | by_operator),
            "third_countries_and_basis": sorted(flow.transfers),
            "security_measures": list(evidence.measures),
            "calls": flow.calls,
        }
        for name, flow in sorted(flows.items())
    ]


def _backends(evidence: Evidence) -> dict[str, Any]:
    return {
        "catalogue_version": evidence.catalogue_version,
        "operators": [one.model_dump(mode="json") for one in evidence.operators],
        "backends": [one.model_dump(mode="json") for one in evidence.backends],
    }


def _dora(evidence: Evidence) -> list[dict[str, Any]]:
    """Columns of the register of information (DORA 28(3), ITS 2024/2956) as far as a provider knows them; what only
    the financial entity can judge is left empty."""
    operators = {one.id: one for one in evidence.operators}
    rows = []
    for backend in evidence.backends:
        operator = operators.get(backend.operator)
        rows.append(
            {
                "provider_name": operator.entity if operator else backend.operator,
                "provider_lei": operator.lei if operator else "",
                "provider_head_office": operator.head_office if operator else "",
                "ultimate_parent": operator.ultimate_parent if operator else "",
                "ultimate_parent_country": operator.parent_country if operator else "",
                "function": "AI inference",
                "backend": backend.id,
                "country_of_provision": backend.compute_country,
                "country_of_data_storage": backend.storage_country,
                "start": backend.registered_at,
                "end": backend.revoked_at,
                "criticality": "",
                "substitutability": "",
            }
        )
    return rows


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


def _incidents(cases: Mapping[str, Case]) -> dict[str, Any]:
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
            "records": [event["seq"] for event in case.events],
        }
        for case in cases.values()
    ]
    return {"statement": f"{len(told)} incidents are on record in this period.", "incidents": told}


_PEER = ("backend_id", "region", "kind", "address", "peer_sha256", "peer_uri", "tls_version")
_ROUTE = (
    "month,inference_country,storage_country,operator_entity,operator_hq,ultimate_parent,ultimate_parent_country,"
    "region,transfer_basis"
)


def _json(value: Any) -> str:
    return json.dumps(value, indent=1, ensure_ascii=False)


def _csv(rows: Sequence[Mapping[str, Any]], header: str) -> str:
    names = header.split(",")
    return table(header, [[_flat(row.get(name, "")) for name in names] for row in rows])


def _flat(value: Any) -> Any:
    return "; ".join(map(str, value)) if isinstance(value, list | tuple) else value
