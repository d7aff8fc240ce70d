"""`data_classes` and `special_categories`: which data a request may hold (GDPR 5(1)(c), 9)."""

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any, ClassVar

from policy.conditions.condition import Asked, Condition
from policy.conditions.sets import in_words, subset
from policy.errors import LooseningError
from policy.facts import RequestFacts
from policy.purpose import SPECIAL_CATEGORIES, Article9Ground, SpecialCategory
from policy.reason import Reason
from policy.section import NonEmpty

Grounds = Mapping[str, str]
"""The ground of GDPR 9(2) by special category."""


class SpecialCategories(Condition[Grounds, Grounds]):
    """Lifts the ban of GDPR 9(1) category by category. What it does not lift, `DataClasses` refuses."""

    name: ClassVar[str] = "special_categories"
    form: ClassVar[Any] = Mapping[SpecialCategory, Article9Ground]
    says: ClassVar[str] = "each special category of GDPR 9(1) that is accepted, with its ground; all others are refused"

    def tightened(self, above: Grounds | None, wanted: Grounds, whose: str) -> Grounds:
        """A level may leave a category out, not add one or give another ground."""
        for category, ground in wanted.items():
            if above is not None and above.get(category) != ground:
                known = above.get(category)
                said = f"on {known}, not {ground}" if known else f"not {category}"
                raise LooseningError(f"{self.name}.{category}", f"{whose} policy accepts it {said}")
        return MappingProxyType(dict(wanted))

    def where_silent(self, above: Grounds | None) -> Grounds:
        return {}

    def described(self, bound: Grounds) -> Mapping[str, str]:
        return {f"{self.name}.{category}": ground for category, ground in bound.items()}


class DataClasses(Condition[tuple[str, ...], frozenset[str]]):
    name: ClassVar[str] = "data_classes"
    form: ClassVar[Any] = tuple[NonEmpty, ...]
    says: ClassVar[str] = "a list: every data class of the project that is not a special category must be on it"
    facts: ClassVar[tuple[str, ...]] = ("data_classes",)
    given: ClassVar[Mapping[str, Any]] = {"data_classes": tuple[NonEmpty, ...] | None}
    explained_by: ClassVar[Mapping[str, str]] = {"data_classes.special": SpecialCategories.name}

    def tightened(self, above: frozenset[str] | None, wanted: tuple[str, ...], whose: str) -> frozenset[str]:
        return subset(self.name, above, wanted, whose)

    def refusals(self, asked: Asked, facts: RequestFacts) -> Iterator[Reason]:
        """One for each special category without a ground, and for each other class that the policy does not list."""
        bound, grounds = asked[self.name], asked[SpecialCategories.name] or {}
        for data_class in facts.data_classes:
            if data_class in SPECIAL_CATEGORIES:
                if data_class not in grounds:
                    because = f"policy gives no ground for special category {data_class}"
                    yield Reason(f"{self.name}.special", None, because, "GDPR 9(1), 9(2)")
            elif bound is not None and data_class not in bound:
                yield Reason(self.name, None, f"policy does not list data class {data_class}", "GDPR 5(1)(c)")

    def described(self, bound: frozenset[str]) -> Mapping[str, str]:
        return {self.name: in_words(bound)}

    def accepted_facts(self, bound: frozenset[str] | None) -> Mapping[str, Any]:
        return {"data_classes": ()}
