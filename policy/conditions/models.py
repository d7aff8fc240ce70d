"""`models`: which models may be asked for."""

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, ClassVar

from pydantic import Field

from policy.conditions.condition import Asked, Condition
from policy.conditions.sets import first_of, in_words, subset
from policy.facts import RequestFacts
from policy.reason import Reason
from policy.section import NonEmpty


class Models(Condition[tuple[str, ...], frozenset[str]]):
    name: ClassVar[str] = "models"
    form: ClassVar[Any] = Annotated[tuple[NonEmpty, ...], Field(min_length=1)]
    says: ClassVar[str] = "a list: the model that is asked for must be on it"
    facts: ClassVar[tuple[str, ...]] = ("model",)
    given: ClassVar[Mapping[str, Any]] = {"model": NonEmpty | None}

    def tightened(self, above: frozenset[str] | None, wanted: tuple[str, ...], whose: str) -> frozenset[str]:
        return subset(self.name, above, wanted, whose)

    def refusals(self, asked: Asked, facts: RequestFacts) -> Iterator[Reason]:
        bound = asked[self.name]
        if bound is not None and facts.model not in bound:
            yield Reason(self.name, None, f"policy does not list model {facts.model}")

    def described(self, bound: frozenset[str]) -> Mapping[str, str]:
        return {self.name: in_words(bound)}

    def accepted_facts(self, bound: frozenset[str] | None) -> Mapping[str, Any]:
        return {"model": first_of(bound, "model-under-test")}
