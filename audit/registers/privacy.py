"""What configuration and records can say in a data protection impact assessment (GDPR 35(7)) and in the information of
persons (GDPR 13, 14). The judgement is the controller's: the sheets mark what it has to add.
"""

import json
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from audit.incidents.pack_inputs import Activity, Evidence, Terms
from audit.registers.dsar import automated, page, party, period, section
from audit.registers.language import ENGLISH, LANGUAGES, Language
from audit.registers.pack_tables import Flows
from audit.registers.ropa import Period, activities_of, measures_of, periods, safeguards_of, transfers

TO_ASSESS = "to be assessed by the controller"


def privacy_files(flows: Mapping[str, Flows], evidence: Evidence, tenant: str) -> dict[str, str]:
    """By name: the sheets of the impact assessment, and a notice in each language."""
    sheets = dpia(flows, evidence)
    notices = {f"privacy_notice_{code}.html": notice(flows, evidence, one, tenant) for code, one in LANGUAGES.items()}
    return {
        "dpia.json": json.dumps(sheets, indent=1, ensure_ascii=False),
        "dpia.html": _dpia_page(sheets),
        **notices,
    }


# --- the impact assessment -------------------------------------------------------------------------------------------


def dpia(flows: Mapping[str, Flows], evidence: Evidence) -> list[dict[str, Any]]:
    """A sheet for each activity, by the letters of GDPR 35(7)."""
    terms = {one.policy_hash: one for one in evidence.terms}
    return [
        {
            "activity": name,
            "a_description": _description(activity, flow, evidence),
            "b_necessity_and_proportionality": TO_ASSESS,
            "c_risks_to_persons": TO_ASSESS,
            "c_facts_that_raise_risk": list(_risk_facts(activity, flow, evidence, terms.get(activity.policy_hash))),
            "d_measures": measures_of(name, evidence)["security_measures"],
            "d_measures_not_in_place": measures_of(name, evidence)["measures_not_in_place"],
            "views_of_persons": TO_ASSESS,
            "residual_risk": TO_ASSESS,
            "advice_of_dpo": TO_ASSESS,
        }
        for name, activity, flow in activities_of(flows, evidence)
    ]


def _description(activity: Activity, flow: Flows, evidence: Evidence) -> dict[str, Any]:
    return {
        "purpose": activity.purpose,
        "legal_basis": activity.legal_basis,
        "subject_categories": list(activity.subject_categories),
        "data_classes": list(activity.data_classes),
        "data_kinds_seen": sorted(flow.data),
        "recipients": sorted(flow.recipients),
        "third_countries_and_basis": transfers(flow, evidence),
        "retention": [str(one) for one in periods(activity, flow, evidence)],
        "ai_system_id": activity.ai_system_id,
        "ai_act_risk_class": activity.risk_class,
        "calls": flow.calls,
    }


def _risk_facts(activity: Activity, flow: Flows, evidence: Evidence, terms: Terms | None) -> Iterator[str]:
    """Facts of configuration and record that an assessment looks at (GDPR 35(3); EDPB criteria of WP 248)."""
    if activity.risk_class == "high":
        yield "the AI system is registered as high-risk (AI Act 6)"
    if activity.special_categories:
        yield f"special categories are registered: {', '.join(activity.special_categories)} (GDPR 9, 35(3)(b))"
    if flow.transfers:
        yield "calls went to third countries"
    for store in evidence.stores:
        if store.is_transfer:
            yield f"{store.name} is kept in {store.country}, outside the EEA"
    yield from _control_of_operators(evidence)
    if terms is not None and not terms.redacts_prompts:
        yield "prompts are not redacted before they are processed"
    if terms is not None and terms.unredacted_to:
        yield f"a prompt whose redaction fails may be sent unredacted to {terms.unredacted_to}"
    if terms is not None and terms.content_days:
        yield f"prompts and answers are kept for {terms.content_days} days"
    if flow.data:
        yield f"personal data was found in prompts: {', '.join(sorted(flow.data))}"


def _control_of_operators(evidence: Evidence) -> Iterator[str]:
    """Operators that a state other than that of their head office, or one outside the EEA, has power over (GDPR 48)."""
    for one in evidence.operators_in_use:
        if not one.head_office or not one.parent_country:
            yield f"the catalogue does not know who controls operator {one.entity}, or from where"
        elif one.parent_country != one.head_office:
            yield f"operator {one.entity} ({one.head_office}) is controlled from {one.parent_country}"
        elif evidence.eea and one.head_office not in evidence.eea:
            yield f"operator {one.entity} and its parent are in {one.head_office}, outside the EEA"


def _dpia_page(sheets: list[dict[str, Any]]) -> str:
    parts = []
    for sheet in sheets:
        parts.append(section(f"Activity {sheet['activity']}", _facts(sheet["a_description"]), ""))
        for title, name in (
            ("Necessity and proportionality (35(7)(b))", "b_necessity_and_proportionality"),
            ("Facts that raise risk (35(7)(c))", "c_facts_that_raise_risk"),
            ("Risks to persons (35(7)(c))", "c_risks_to_persons"),
            ("Measures in place (35(7)(d))", "d_measures"),
            ("Measures that are not in place", "d_measures_not_in_place"),
            ("Residual risk", "residual_risk"),
        ):
            value = sheet[name]
            parts.append(section(title, value if isinstance(value, list) else [value], "none known"))
    title = "Input for a data protection impact assessment (GDPR 35)"
    return page(ENGLISH, title, parts or ["<p>No activity is registered or on record.</p>"])


def _facts(description: Mapping[str, Any]) -> Iterator[str]:
    for name, value in description.items():
        told = "; ".join(map(str, value)) if isinstance(value, list) else value
        empty = "none" if name in _FROM_RECORDS else "not registered"
        yield f"{name.replace('_', ' ')}: {told if told != '' else empty}"


_FROM_RECORDS = frozenset(("data_kinds_seen", "recipients"))
"""Facts that records give and no register: without one there were none."""


# --- the notice ------------------------------------------------------------------------------------------------------


def notice(flows: Mapping[str, Flows], evidence: Evidence, language: Language, tenant: str) -> str:
    """GDPR 13(1), (2) and 14(1), (2), for all activities of the controller."""
    told = evidence.controller.model_dump()
    parts = [*party(language, told, tenant)]
    known = activities_of(flows, evidence)
    for name, activity, flow in known:
        parts += _of_activity(language, name, activity, flow, evidence)
    bases = {activity.legal_basis for _, activity, _ in known}
    rights = (*language.rights_text, *_rights_of(language, bases), language.complaint)
    parts.append(section(_heading(language.rights), rights, ""))
    systems = sorted({one.ai_system_id for one in evidence.activities if one.ai_system_id})
    parts.append(section(_heading(language.automated), automated(language, systems), ""))
    return page(language, language.title_notice, parts)


def _rights_of(language: Language, bases: Collection[str]) -> Iterator[str]:
    """Rights that depend on the legal basis."""
    if "consent" in bases:
        yield language.withdrawal
    if {"consent", "contract"}.intersection(bases):
        yield language.portability


def _of_activity(language: Language, name: str, activity: Activity, flow: Flows, evidence: Evidence) -> Iterator[str]:
    basis = [f"{language.legal_basis}: {language.basis(activity.legal_basis)}"] if activity.legal_basis else []
    if activity.legal_basis == "legitimate_interests":
        basis.append(language.interests_unknown)
    heading = f"{language.activity} {name}: {activity.purpose or language.unknown}"
    yield section(heading, basis, f"{language.legal_basis}: {language.unknown}")
    yield section(_heading(language.categories), map(language.kind, activity.data_classes), language.unknown)
    yield section(
        _heading(language.recipients),
        sorted(flow.recipients) or [one.entity for one in evidence.operators_in_use],
        language.nobody,
    )
    none = language.no_transfer if flow.recipients else language.no_call
    yield section(_heading(language.transfers), _transfers(language, activity, flow, evidence), none)
    kept: list[Period] = periods(activity, flow, evidence)
    yield section(_heading(language.periods), (period(language, *one) for one in kept), language.unknown)
    yield section(_heading(language.source), [activity.source] if activity.source else [], language.source_unknown)
    if _has_notice(activity, evidence):
        yield section("AI Act 50", [language.ai_notice], "")


def _transfers(language: Language, activity: Activity, flow: Flows, evidence: Evidence) -> Iterator[str]:
    """GDPR 13(1)(f): transfers on record with their safeguards, stores outside the EEA, and what the policy allows."""
    seen = sorted(flow.transfers)
    yield from (language.transfer.format(one.computed_in, one.stored_in, language.tool(one.tool)) for one in seen)
    for one in safeguards_of(seen, evidence):
        yield language.safeguards.format(one.operator, language.tool(one.basis), one.reference)
    for store in evidence.stores:
        if store.is_transfer:
            yield language.stored_outside.format(language.place(store.name), store.country)
    terms = next((one for one in evidence.terms if one.policy_hash == activity.policy_hash), None)
    used = {one.tool.partition(":")[0] for one in seen} | {"intra_eea"}
    if terms is not None and (unused := [one for one in terms.transfer_bases if one not in used]):
        yield language.transfer_allowed.format(", ".join(map(language.tool, unused)))


def _heading(title: str) -> str:
    """Without the letter of Article 15, which is of access and not of information."""
    return title.partition(" (")[0]


def _has_notice(activity: Activity, evidence: Evidence) -> bool:
    """Whether the policy in force puts the notice into each answer."""
    return any(one.policy_hash == activity.policy_hash and "art50" in one.notices for one in evidence.terms)
