"""Information of Article 15(1) and (2) GDPR besides the copy of the data: the `article_15` part of a package.

Out of the records of the person's calls, the classes under which their values are kept, and the registers. What the
registers lack is named, so that the controller adds it before the package goes out.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from audit.incidents.pack_inputs import Activity, Evidence
from audit.private.erasure import Routed
from audit.registers.pack_tables import Transfer
from audit.registers.ropa import CONTENT, METADATA, safeguards_of

_CLASS = re.compile(rf"({METADATA}|{CONTENT})_([0-9]+)d")


def article_15(
    records: Sequence[Mapping[str, Any]],
    recipients: Sequence[Mapping[str, Any]],
    kept_as: Iterable[str],
    evidence: Evidence,
    transfers: Sequence[Transfer] = (),
) -> dict[str, Any]:
    """`records`: events as JSON, by the letters of Article 15(1). `kept_as`: retention classes of the values and of the
    records that commit to them. `transfers`: what the routes of the calls rest on (`transfers_of`)."""
    events = [one["record"] for one in records]
    activities = [_activity(name, evidence) for name in _named(events, "activity_id", "project")]
    party = evidence.controller
    return {
        "controller": party.model_dump(include={"name", "address", "country", "contact", "representative", "dpo"}),
        "a_purposes": [
            {"activity": one.id, "purpose": one.purpose, "legal_basis": one.legal_basis} for one in activities
        ],
        "b_categories": sorted({*_kinds(events), *(kind for one in activities for kind in one.data_classes)}),
        "c_recipients": [dict(one) for one in recipients],
        "d_periods": _periods(kept_as),
        "e_rights": ["GDPR 16", "GDPR 17", "GDPR 18", "GDPR 21"],
        "f_complaint": "GDPR 77",
        "g_source": sorted({one.source for one in activities if one.source}),
        "h_automated_decisions": {"ai_systems": _named(events, "ai_system_id")},
        "2_transfers": [
            {"computed_in": one.computed_in, "stored_in": one.stored_in, "tool": one.tool} for one in transfers
        ],
        "2_stores": [
            {"name": one.name, "country": one.country, "setting": one.setting}
            for one in evidence.stores
            if one.is_transfer
        ],
        "2_safeguards": [one.model_dump() for one in safeguards_of(transfers, evidence)],
        "missing": _missing(activities, evidence),
    }


def _named(events: Iterable[Mapping[str, Any]], *names: str) -> list[str]:
    """The first of `names` that each event has."""
    found = (next((str(event[name]) for name in names if name in event), None) for event in events)
    return sorted({one for one in found if one is not None})


def _activity(name: str, evidence: Evidence) -> Activity:
    return next((one for one in evidence.activities if one.id == name), Activity(id=name))


def _kinds(events: Iterable[Mapping[str, Any]]) -> set[str]:
    """Kinds of personal data that redaction found in the calls."""
    return {kind for event in events for kind in event.get("redaction", {}).get("counts_by_type", {})}


def _periods(kept_as: Iterable[str]) -> list[dict[str, Any]]:
    found = sorted({(match[1], int(match[2])) for one in kept_as if (match := _CLASS.fullmatch(one))})
    return [{"kind": kind, "days": days} for kind, days in found]


def transfers_of(routes: Iterable[Routed]) -> list[Transfer]:
    """What the routes of calls rest on, each once, but for the EEA itself."""
    found = {
        Transfer(one.inference_country, one.storage_country, tool)
        for one in routes
        for tool in one.transfer_basis.split("+")
        if tool != "intra_eea"
    }
    return sorted(found)


def _missing(activities: Iterable[Activity], evidence: Evidence) -> list[str]:
    party = evidence.controller
    lacking = [f"controller.{name}" for name in ("name", "contact", "dpo") if not getattr(party, name)]
    for one in activities:
        lacking += [f"activity {one.id}: {name}" for name in ("purpose", "source") if not getattr(one, name)]
    return lacking
