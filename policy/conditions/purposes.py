"""`purposes`: for which purposes data may be processed (GDPR 5(1)(b))."""

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

from policy.conditions.condition import Asked, Condition
from policy.conditions.sets import Demanded, Required, demand, first_of, in_words
from policy.facts import RequestFacts
from policy.reason import Reason
from policy.section import NonEmpty, demand_of

LAW = "GDPR 5(1)(b)"


class Purposes(Condition[tuple[str, ...] | Required, Demanded]):
    name: ClassVar[str] = "purposes"
    form: ClassVar[Any] = demand_of(NonEmpty)
    says: ClassVar[str] = f"`required` or a list: the project has a purpose, which is on the list ({LAW})"
    facts: ClassVar[tuple[str, ...]] = ("purpose",)
    given: ClassVar[Mapping[str, Any]] = {"purpose": NonEmpty | None}

    def tightened(self, above: Demanded | None, wanted: tuple[str, ...] | Required, whose: str) -> Demanded:
        return demand(self.name, above, wanted, whose)

    def refusals(self, asked: Asked, facts: RequestFacts) -> Iterator[Reason]:
        bound = asked[self.name]
        if bound is None:
            return
        if not facts.purpose:
            yield Reason(self.name, None, "the project has no purpose on record", LAW)
        elif bound != "required" and facts.purpose not in bound:
            yield Reason(self.name, None, f"policy does not list purpose {facts.purpose}", LAW)

    def described(self, bound: Demanded) -> Mapping[str, str]:
        return {self.name: in_words(bound)}

    def accepted_facts(self, bound: Demanded | None) -> Mapping[str, Any]:
        return {"purpose": first_of(bound, "purpose-under-test")}
