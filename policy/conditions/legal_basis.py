"""`legal_basis`: on which legal bases data may be processed (GDPR 6(1))."""

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

from policy.conditions.condition import Asked, Condition
from policy.conditions.sets import Demanded, Required, demand, first_of, in_words
from policy.facts import RequestFacts
from policy.purpose import LEGAL_BASES, LegalBasis, legal_basis_name
from policy.reason import Reason
from policy.section import NonEmpty, demand_of


class LegalBases(Condition[tuple[str, ...] | Required, Demanded]):
    """A basis that does not exist is refused also where no level says anything."""

    name: ClassVar[str] = "legal_basis"
    form: ClassVar[Any] = demand_of(LegalBasis)
    says: ClassVar[str] = "`required` or a list: the project has a legal basis, which is on the list (GDPR 6(1))"
    facts: ClassVar[tuple[str, ...]] = ("legal_basis",)
    given: ClassVar[Mapping[str, Any]] = {"legal_basis": NonEmpty | None}

    def tightened(self, above: Demanded | None, wanted: tuple[str, ...] | Required, whose: str) -> Demanded:
        return demand(self.name, above, wanted, whose)

    def refusals(self, asked: Asked, facts: RequestFacts) -> Iterator[Reason]:
        bound = asked[self.name]
        if not facts.legal_basis:
            if bound is not None:
                yield Reason(self.name, None, "the project has no legal basis on record", "GDPR 6(1)")
            return
        name = legal_basis_name(facts.legal_basis)
        if name not in LEGAL_BASES:
            yield Reason(self.name, None, f"{facts.legal_basis} is no legal basis", "GDPR 6(1)")
        elif isinstance(bound, frozenset) and name not in bound:
            yield Reason(self.name, None, f"policy does not list legal basis {name}", f"GDPR {LEGAL_BASES[name]}")

    def described(self, bound: Demanded) -> Mapping[str, str]:
        return {self.name: in_words(bound)}

    def accepted_facts(self, bound: Demanded | None) -> Mapping[str, Any]:
        return {"legal_basis": first_of(bound, "contract")}
