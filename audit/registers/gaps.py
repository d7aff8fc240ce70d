"""What the registers do not say though a law asks for it: named at export and in the README of a pack."""

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from audit.incidents.pack_inputs import Evidence
from audit.registers.pack_tables import Flows

REGISTERS = "registers.json"


class Gap(NamedTuple):
    """`field` as the register calls it; `fix`: where to put the value."""

    field: str
    article: str
    fix: str


def gaps(flows: Mapping[str, Flows], evidence: Evidence, tenant: str) -> list[Gap]:
    """In the order of the articles. `flows`: what the records show of each activity."""
    where = f"{REGISTERS}: tenants.{tenant}"
    return [
        *_parties(evidence, where),
        *_activities(flows, evidence, where),
        *_places(evidence),
        *_contract(evidence, where),
    ]


def _parties(evidence: Evidence, where: str) -> Iterator[Gap]:
    for role, party, article in (
        ("controller", evidence.controller, "GDPR 30(1)(a)"),
        ("processor", evidence.processor, "GDPR 30(2)(a)"),
    ):
        own = f"{where}.{role}" if role == "controller" else f"{REGISTERS}: {role}"
        for name in ("name", "address", "contact"):
            if not getattr(party, name):
                yield Gap(f"{role}.{name}", article, f"{own}.{name}")
        if not party.dpo:
            yield Gap(f"{role}.dpo", article, f"{own}.dpo, or the word none where none is designated")


def _activities(flows: Mapping[str, Flows], evidence: Evidence, where: str) -> Iterator[Gap]:
    hashes = {one.policy_hash for one in evidence.terms}
    known = {one.id for one in evidence.activities}
    for one in evidence.activities:
        if not one.purpose:
            yield Gap(f"activity {one.id}: purpose", "GDPR 30(1)(b)", "domicile project create --purpose")
        if not one.subject_categories:
            fix = f"{where}.activities.{one.id}.subject_categories"
            yield Gap(f"activity {one.id}: subject_categories", "GDPR 30(1)(c)", fix)
        if not one.data_classes:
            yield Gap(f"activity {one.id}: data_classes", "GDPR 30(1)(c)", "domicile project create --data-class")
        if one.policy_hash not in hashes:
            yield Gap(f"activity {one.id}: erasure_time_limits", "GDPR 30(1)(f)", "activate a policy for its tenant")
    for name in sorted(flows):
        if name not in known:
            yield Gap(f"activity {name}: the whole entry", "GDPR 30(1)", "it has calls and is in no register")


def _places(evidence: Evidence) -> Iterator[Gap]:
    for one in evidence.backends:
        if not one.compute_country:
            yield Gap(f"backend {one.id}: place", "GDPR 30(1)(d), (e)", f"catalogue.yaml: a region {one.region}")


def _contract(evidence: Evidence, where: str) -> Iterator[Gap]:
    """Gaps that concern financial entities only: named once, not column by column."""
    if not evidence.contract.reference:
        yield Gap("contract.reference", "DORA 28(3), B_02.01.0010", f"{where}.contract, if DORA applies")
