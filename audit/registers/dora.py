"""DORA's register of information (DORA 28(3)) in the templates and column codes of ITS 2024/2956, Annex I.

A provider knows part of it: who provides from where, where data is stored, who is a subcontractor of whom. What only
the financial entity can judge stays empty and is marked so. `dora_register.csv` is the long form for people, one line a
column; `dora/b_05.01.csv` and its siblings have the header codes (``c0010``) and list codes (``eba_GA:FR``) that the
EBA's reporting format has.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from importlib.resources import files
from typing import Any

from audit.incidents.pack_inputs import Backend, Evidence, Operator, Party, Subprocessor
from audit.registers.pack_tables import plain_table, table

Row = dict[str, str]
"""Value by column code of its template."""

REGISTER_HEADER = "template,template_name,row,column,column_name,value,filled_by"
ENTITY = "the financial entity"
PROVIDER = "this pack"
RECORD = "the record"
"""The store that kept prompts and answers are in."""


@cache
def layout() -> dict[str, Any]:
    """`dora_templates.json`: templates with their columns, closed lists, source and as-of date."""
    read: dict[str, Any] = json.loads(
        files("audit.registers").joinpath("dora_templates.json").read_text(encoding="utf-8")
    )
    return read


def dora_files(evidence: Evidence) -> dict[str, str]:
    """By name: the long form, and one file a template."""
    rows = {name: list(make(evidence)) for name, make in _MAKERS.items()}
    made = {"dora_register.csv": table(REGISTER_HEADER, _long(rows))}
    for name, template in layout()["templates"].items():
        codes = list(template["columns"])
        lines = [[row.get(code, "") for code in codes] for row in rows.get(name, [])]
        made[f"dora/{name.lower()}.csv"] = plain_table(",".join(f"c{code}" for code in codes), lines)
    return made


def _long(rows: Mapping[str, list[Row]]) -> Iterator[tuple[object, ...]]:
    for name, template in layout()["templates"].items():
        for number, row in enumerate(rows.get(name, []), 1):
            for code, column in template["columns"].items():
                value = row.get(code, "")
                by = PROVIDER if value else ENTITY
                yield name, template["name"], number, f"{name}.{code}", column, value, by


# --- the templates ---------------------------------------------------------------------------------------------------


def _entity(evidence: Evidence) -> Iterator[Row]:
    one = evidence.controller
    yield {"0010": one.lei, "0020": one.name, "0030": _country(one.country)}


def _arrangement(evidence: Evidence) -> Iterator[Row]:
    yield {"0010": evidence.contract.reference}


def _services(evidence: Evidence) -> Iterator[Row]:
    """A row for each combination of provider, place of computing and place of storage among the living backends. What
    a policy keeps is stored with the record, too."""
    contract, operators = evidence.contract, _operators(evidence)
    kept = _keeps_content(evidence)
    record = next((one.country for one in evidence.stores if one.name == RECORD), "")
    lists = layout()["closed_lists"]
    common = {
        "0010": contract.reference,
        "0020": evidence.controller.lei,
        "0050": contract.function,
        "0060": contract.type_of_service,
        "0070": contract.start,
        "0080": contract.end,
        "0100": _days(contract.notice_days_entity),
        "0110": _days(contract.notice_days_provider),
        "0120": _country(contract.governing_law),
        "0140": lists["B_02.02.0140"]["yes" if kept else "no"],
    }
    seen = set()
    for backend in evidence.backends:
        lei = _direct_lei(evidence, operators.get(backend.operator))
        for stored in _unique((backend.storage_country, record or backend.storage_country)) if kept else [""]:
            place = lei, backend.compute_country, stored
            if backend.revoked_at or place in seen:
                continue
            seen.add(place)
            computed = _country(backend.compute_country)
            where = {"0130": computed, "0150": _country(stored), "0160": computed}
            yield common | _identified(lei, "0030", "0040") | where


def _keeps_content(evidence: Evidence) -> bool:
    """Whether a policy that decides calls now has prompts and answers kept."""
    now = {one.policy_hash for one in evidence.activities}
    return any(one.content_days for one in evidence.terms if one.policy_hash in now or not now)


def _signing(evidence: Evidence) -> Iterator[Row]:
    for lei in _unique(_direct_lei(evidence, one) for one in _used(evidence)):
        yield {"0010": evidence.contract.reference} | _identified(lei, "0020", "0030")


def _providers(evidence: Evidence) -> Iterator[Row]:
    if evidence.processor.name:
        yield _provider(evidence.processor.name, evidence.processor.country, evidence.processor.lei)
    for one in _used(evidence):
        parent = _identified(one.lei, "0110", "0120") if one.ultimate_parent == one.entity else {}
        yield _provider(one.entity, one.head_office, one.lei) | parent
    for name, country in _unique((one.name, one.country) for one in _below(evidence)):
        yield _provider(name, country, "", legal_person=False)


def _provider(name: str, country: str, lei: str, *, legal_person: bool = True) -> Row:
    row = {"0050": name, "0080": _country(country)} | _identified(lei, "0010", "0020")
    if legal_person:
        row["0070"] = layout()["closed_lists"]["B_05.01.0070"]["legal_person"]
    return row


def _chain(evidence: Evidence) -> Iterator[Row]:
    """Rank 1 is who the entity contracts with; each sub-contractor is one below its recipient. A member without an
    identifier is named in brackets, so that its rank is not lost: the entity puts the identifier in its place."""
    common = {"0010": evidence.contract.reference, "0020": evidence.contract.type_of_service}
    first = 1
    if evidence.processor.name:
        yield common | {"0050": "1"} | _member(evidence.processor, "0030", "0040")
        first = 2
    for one in _used(evidence):
        row = common | {"0050": str(first)} | _member(one, "0030", "0040")
        yield row | (_member(evidence.processor, "0060", "0070") if first == 2 else {})
        for below in _below(evidence):
            if below.operator == one.id:
                ranked = common | {"0050": str(first + 1), "0030": f"[{below.name}]"}
                yield ranked | _member(one, "0060", "0070")


def _function(evidence: Evidence) -> Iterator[Row]:
    yield {"0010": evidence.contract.function, "0040": evidence.controller.lei}


def _assessment(evidence: Evidence) -> Iterator[Row]:
    contract = evidence.contract
    for lei in _unique(_direct_lei(evidence, one) for one in _used(evidence)):
        yield {"0010": contract.reference, "0040": contract.type_of_service} | _identified(lei, "0020", "0030")


_MAKERS = {
    "B_01.01": _entity,
    "B_02.01": _arrangement,
    "B_02.02": _services,
    "B_03.02": _signing,
    "B_05.01": _providers,
    "B_05.02": _chain,
    "B_06.01": _function,
    "B_07.01": _assessment,
}


# --- what they share -------------------------------------------------------------------------------------------------


def _operators(evidence: Evidence) -> dict[str, Operator]:
    return {one.id: one for one in evidence.operators}


def _used(evidence: Evidence) -> list[Operator]:
    """The backends that are not revoked, each once, by its latest row."""
    by_id = _operators(evidence)
    return [by_id[name] for name in _unique(one.operator for one in _living(evidence)) if name in by_id]


def _living(evidence: Evidence) -> list[Backend]:
    return [one for one in evidence.backends if not one.revoked_at]


def _below(evidence: Evidence) -> list[Subprocessor]:
    """The sub-processors of the operators in use, each once."""
    return list({(one.operator, one.name, one.country): one for one in evidence.subprocessors_in_use}.values())


def _direct_lei(evidence: Evidence, operator: Operator | None) -> str:
    """LEI of the company that the entity contracts with: the processor where one is named, else the operator itself."""
    if evidence.processor.name:
        return evidence.processor.lei
    return operator.lei if operator else ""


def _member(one: Party | Operator, code: str, kind: str) -> Row:
    name = one.entity if isinstance(one, Operator) else one.name
    return _identified(one.lei, code, kind) if one.lei else {code: f"[{name}]"}


def _identified(lei: str, code: str, kind: str) -> Row:
    return {code: lei, kind: layout()["closed_lists"]["identification_code"]["lei"]} if lei else {}


def _country(code: str) -> str:
    return f"{layout()['closed_lists']['country']}{code}" if code else ""


def _days(count: int | None) -> str:
    return "" if count is None else str(count)


def _unique(values: Iterable[Any]) -> list[Any]:
    return list(dict.fromkeys(values))
