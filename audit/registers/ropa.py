"""Records of processing activities (GDPR 30), both views, out of the registers and what the records show.

Every entry is the register's, a policy's or a record's; what none of them says stays empty and is named as missing
(`audit.registers.gaps`).
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from audit.incidents.pack_inputs import Activity, Evidence, Party, Safeguard
from audit.law.ai_act import FLOOR_DAYS
from audit.registers.pack_tables import Flows, Transfer

CONTROLLER_COLUMNS = (
    "activity,purpose,projects,controller,controller_address,controller_contact,representative,dpo,legal_basis,"
    "subject_categories,data_classes,data_kinds_seen,recipients,third_countries_and_basis,erasure_time_limits,"
    "security_measures,measures_not_in_place,calls"
)
PROCESSOR_COLUMNS = (
    "controller,controller_contact,controller_representative,processor,processor_address,processor_contact,"
    "representative,dpo,categories_of_processing,subprocessors,third_countries_and_basis,security_measures,"
    "measures_not_in_place,calls"
)
NO_TRANSFER = "none"
METADATA, CONTENT, ADDRESSES = "metadata", "content", "addresses"

_METADATA = re.compile(r"metadata_([0-9]+)d")


def ropa_controller(flows: Mapping[str, Flows], evidence: Evidence) -> list[dict[str, Any]]:
    """GDPR 30(1). An activity without calls is listed, and calls without a registered activity."""
    party = evidence.controller
    return [
        {
            "activity": name,
            "purpose": activity.purpose,
            "projects": sorted(flow.projects),
            "controller": party.name,
            "controller_address": _address(party),
            "controller_contact": party.contact,
            "representative": party.representative,
            "dpo": party.dpo,
            "legal_basis": activity.legal_basis,
            "subject_categories": list(activity.subject_categories),
            "data_classes": list(activity.data_classes),
            "data_kinds_seen": sorted(flow.data),
            "recipients": sorted(flow.recipients),
            "third_countries_and_basis": transfers(flow, evidence),
            "erasure_time_limits": [str(one) for one in periods(activity, flow, evidence)],
            **measures_of(name, evidence),
            "calls": flow.calls,
        }
        for name, activity, flow in activities_of(flows, evidence)
    ]


def ropa_processor(flows: Mapping[str, Flows], evidence: Evidence) -> list[dict[str, Any]]:
    """GDPR 30(2)."""
    controller, processor = evidence.controller, evidence.processor
    below = {one.name for one in evidence.subprocessors_in_use}
    return [
        {
            "controller": controller.name,
            "controller_contact": controller.contact,
            "controller_representative": controller.representative,
            "processor": processor.name,
            "processor_address": _address(processor),
            "processor_contact": processor.contact,
            "representative": processor.representative,
            "dpo": processor.dpo,
            "categories_of_processing": f"inference for {activity.purpose or name}",
            "subprocessors": sorted(flow.recipients | below),
            "third_countries_and_basis": transfers(flow, evidence),
            **measures_of(name, evidence),
            "calls": flow.calls,
        }
        for name, activity, flow in activities_of(flows, evidence)
    ]


def transfers(flow: Flows, evidence: Evidence) -> list[str]:
    """GDPR 30(1)(e): routes that rest on a tool of Chapter V, and stores outside the EEA. A route within the EEA is
    none."""
    stored = [f"{one.name} is kept in {one.country} ({one.setting})" for one in evidence.stores if one.is_transfer]
    return [*(str(one) for one in sorted(flow.transfers)), *stored] or [NO_TRANSFER]


def safeguards_of(tools: Iterable[Transfer], evidence: Evidence) -> list[Safeguard]:
    """The registered safeguards that these transfers rest on, and no other: by the reference that the route names; of
    an adequacy decision that covers some recipients only, the attestation for the country of the route."""
    wanted = list(tools)
    return [one for one in evidence.safeguards if any(_rests_on(each, one) for each in wanted)]


def _rests_on(transfer: Transfer, safeguard: Safeguard) -> bool:
    basis, _, reference = transfer.tool.partition(":")
    if basis != safeguard.basis:
        return False
    if basis == "adequacy":
        return safeguard.country in (transfer.computed_in, transfer.stored_in)
    return reference == safeguard.reference


class Period(NamedTuple):
    """How long something is kept: `kind` is metadata (records of calls), content or addresses (of refused callers); 0
    days is not at all."""

    kind: str
    days: int

    def __str__(self) -> str:
        if self.kind == ADDRESSES:
            return f"network addresses of callers whose requests were refused: {self.days} days, encrypted"
        if self.kind == METADATA:
            return f"records of calls (metadata, no personal value): {self.days} days"
        if self.days:
            return f"prompts, answers and identifiers of persons (content): {self.days} days, encrypted"
        return "prompts and answers (content): not kept"


def periods(activity: Activity, flow: Flows, evidence: Evidence) -> list[Period]:
    """GDPR 30(1)(f), for records of calls and for content: as the records say, and as the policies that decided the
    calls, or would decide them now, set it."""
    by_hash = {one.policy_hash: one for one in evidence.terms}
    concerned = [by_hash[name] for name in sorted(flow.policies | {activity.policy_hash}) if name in by_hash]
    days = {int(match[1]) for each in flow.retention if (match := _METADATA.fullmatch(each))}
    if not days:
        days = {_floored(one.metadata_days, activity) for one in concerned}
    content = sorted({one.content_days for one in concerned})
    addresses = [Period(ADDRESSES, evidence.address_days)] if evidence.address_days else []
    return [
        *(Period(METADATA, count) for count in sorted(days)),
        *(Period(CONTENT, count) for count in content),
        *addresses,
    ]


def _floored(days: int, activity: Activity) -> int:
    return max(days, FLOOR_DAYS) if activity.risk_class == "high" else days


def activities_of(flows: Mapping[str, Flows], evidence: Evidence) -> list[tuple[str, Activity, Flows]]:
    """Registered ones and those that calls name, by id, each with what was seen of it."""
    known = {one.id: one for one in evidence.activities}
    names = sorted({*known, *flows})
    return [(name, known.get(name, Activity(id=name)), flows.get(name, Flows())) for name in names]


def measures_of(name: str, evidence: Evidence) -> dict[str, list[str]]:
    """Those of the activity itself, and those of backends and stores, which all activities share."""
    own = [one for one in evidence.measures if one.applies_to in ("", f"activity {name}") or not _of_activity(one)]
    return {
        "security_measures": [str(one) for one in own if one.in_place],
        "measures_not_in_place": [str(one) for one in own if not one.in_place],
    }


def _of_activity(measure: Any) -> bool:
    return str(measure.applies_to).startswith("activity ")


def _address(party: Party) -> str:
    return ", ".join(part for part in (party.address, party.country) if part)
