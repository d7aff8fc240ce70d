"""Where a backend may be, judged on a day, and by which tool data may go there (GDPR Chapter V).

A rule is compiled once from a set or a list into country -> periods; judging is a dictionary look-up.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import date

from policy.facts import Adequacy, Attestation, BackendFacts, CountrySets, Membership, SetName

ALWAYS = (date.min, date.max)

Period = tuple[date, date]  # first and last day, both inside
Selector = SetName | tuple[str, ...]


@dataclass(frozen=True, slots=True)
class CountryRule:
    """``full``: countries inside, with their periods. ``partial``: inside only for a recipient that is attested."""

    name: str
    full: Mapping[str, tuple[Period, ...]]
    partial: Mapping[str, tuple[Period, ...]]

    def objection(self, country: str, on: date, attestations: tuple[Attestation, ...]) -> str | None:
        """Why `country` is not inside on that day, or None when it is."""
        if _covers(self.full.get(country, ()), on):
            return None
        if _covers(self.partial.get(country, ()), on):
            if attested(attestations, "adequacy", country, on):
                return None
            return f"{country} is in {self.name} only for attested recipients, and this one is not attested"
        if country in self.full or country in self.partial:
            return f"{country} is not in {self.name} on {on.isoformat()}"
        return f"policy asks for {self.name}"

    def beyond(self, other: "CountryRule") -> list[str]:
        """Countries of this rule that `other` has in no way."""
        return sorted({*self.full, *self.partial} - {*other.full, *other.partial})

    def within(self, other: "CountryRule") -> "CountryRule":
        """Both rules at once: only the periods that both have, and attested where either asks for it."""
        full: dict[str, tuple[Period, ...]] = {}
        partial: dict[str, tuple[Period, ...]] = {}
        for country in {*self.full, *self.partial}:
            ours, ours_attested = self.full.get(country, ()), self.partial.get(country, ())
            theirs, theirs_attested = other.full.get(country, ()), other.partial.get(country, ())
            if both := _common(ours, theirs):
                full[country] = both
            attested_by_one = (
                *_common(ours, theirs_attested),
                *_common(ours_attested, theirs),
                *_common(ours_attested, theirs_attested),
            )
            if attested_by_one:
                partial[country] = attested_by_one
        return CountryRule(self.name, full, partial)


def country_rule(selector: Selector, countries: CountrySets) -> CountryRule:
    if isinstance(selector, tuple):
        return CountryRule(", ".join(selector), {country: (ALWAYS,) for country in selector}, {})
    members = countries.eu if selector == "EU" else countries.eea
    full = list[Membership | Adequacy](members)
    partial: list[Adequacy] = []
    if selector == "EEA+adequate":
        full += (row for row in countries.adequacy if not row.partial)
        partial += (row for row in countries.adequacy if row.partial)
    return CountryRule(selector, _periods(full), _periods(partial))


def attested(attestations: tuple[Attestation, ...], basis: str, country: str, on: date) -> Attestation | None:
    """The first attestation of `basis` for `country` that is in force on that day."""
    for item in attestations:
        in_force = item.valid_from <= on <= (item.valid_to or date.max)
        if in_force and item.basis == basis and item.country == country:
            return item
    return None


@dataclass(frozen=True, slots=True)
class TransferRule:
    """Which tools the policy accepts, and what each would rest on."""

    accepted: frozenset[str]
    eea: CountryRule
    adequacy: Mapping[str, tuple[Adequacy, ...]]

    def basis(self, backend: BackendFacts, on: date) -> tuple[str | None, str]:
        """The tool for all places that `backend` uses, weakest last, such as ``adequacy:2000/518/EC``; or why none.

        Every place where data is computed, stored or sub-processed counts.
        """
        places = [backend.compute_country, backend.storage_country, *(s.country for s in backend.subprocessors)]
        found: list[str] = []
        for country in dict.fromkeys(place for place in places if place):
            basis = self._basis_for(country, backend.attested_transfer, on)
            if basis is None:
                accepted = ", ".join(sorted(self.accepted)) or "none"
                return None, f"no transfer basis for {country}; policy accepts {accepted}"
            if basis not in found:
                found.append(basis)
        if not found:
            return None, "no place of processing is known"
        foreign = [basis for basis in found if basis != "intra_eea"]
        return "+".join(foreign) or "intra_eea", ""

    def _basis_for(self, country: str, attestations: tuple[Attestation, ...], on: date) -> str | None:
        if _covers(self.eea.full.get(country, ()), on):
            return "intra_eea" if "intra_eea" in self.accepted else None
        if "adequacy" in self.accepted:
            for row in self.adequacy.get(country, ()):
                if row.valid_from <= on <= (row.valid_to or date.max) and (
                    not row.partial or attested(attestations, "adequacy", country, on)
                ):
                    return f"adequacy:{row.decision}"
        for basis in ("scc", "bcr", "derogation"):
            if basis in self.accepted and (item := attested(attestations, basis, country, on)):
                return f"{basis}:{item.reference}"
        return None


def transfer_rule(accepted: Iterable[str], countries: CountrySets) -> TransferRule:
    rows: dict[str, tuple[Adequacy, ...]] = {}
    for row in countries.adequacy:
        rows[row.country] = (*rows.get(row.country, ()), row)
    return TransferRule(frozenset(accepted), country_rule("EEA", countries), rows)


def _periods(rows: Iterable[Membership | Adequacy]) -> dict[str, tuple[Period, ...]]:
    result: dict[str, tuple[Period, ...]] = {}
    for row in rows:
        result[row.country] = (*result.get(row.country, ()), (row.valid_from, row.valid_to or date.max))
    return result


def _covers(periods: tuple[Period, ...], on: date) -> bool:
    for first, last in periods:  # noqa: SIM110  # a generator takes three times as long, five thousand times a decision
        if first <= on <= last:
            return True
    return False


def _common(left: tuple[Period, ...], right: tuple[Period, ...]) -> tuple[Period, ...]:
    overlaps = ((max(a, c), min(b, d)) for a, b in left for c, d in right)
    return tuple((first, last) for first, last in overlaps if first <= last)
