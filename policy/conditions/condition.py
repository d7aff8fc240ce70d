"""What a condition is: everything that one key of a policy document means for a request.

A class declares the form of the key's value, what a lower level may make of it, which requests it refuses, how it reads
in a diff, and what a policy's own tests need to know. Parsing, compilation, decision, tests, diff, explain, JSON Schema
and docs/policy-reference.md take all of it from the class, so that a new condition is one class and one line in
`policy.conditions.registry`. A rule id that `refusals` yields is the condition's name or begins with it.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from datetime import datetime
from types import MappingProxyType
from typing import Any, ClassVar, Generic, TypeVar

from policy.facts import BackendFacts, RequestFacts
from policy.reason import Reason

Wanted = TypeVar("Wanted")
"""What one document says: a value of the condition's `form`."""
Bound = TypeVar("Bound")
"""What all levels together ask."""
Asked = Mapping[str, Any]
"""The bound of each condition by its name; None where no level says anything."""

NOTHING: Mapping[str, Any] = MappingProxyType({})


class Condition(ABC, Generic[Wanted, Bound]):
    """`name`: the key in a document. `form`: the type of its value. `says`: what it asks, for the documentation.

    `facts`: the fields of a request that `refusals` reads. `given`: the fields by which a policy's test changes them,
    with their types; `given_of_backend`: those of its backend. `explained_by`: rules whose line in a document is that
    of another key.
    """

    name: ClassVar[str]
    form: ClassVar[Any]
    says: ClassVar[str]
    facts: ClassVar[tuple[str, ...]] = ()
    given: ClassVar[Mapping[str, Any]] = NOTHING
    given_of_backend: ClassVar[Mapping[str, Any]] = NOTHING
    explained_by: ClassVar[Mapping[str, str]] = NOTHING

    @abstractmethod
    def tightened(self, above: Bound | None, wanted: Wanted, whose: str) -> Bound:
        """The bound of a level that says `wanted`. Raises LooseningError for more than `above` allows, which is the
        bound of `whose` policy."""

    def where_silent(self, above: Bound | None) -> Bound | None:
        """The bound of a tenant whose documents do not have the key. `above` is the operator's."""
        return above

    def refusals(self, asked: Asked, facts: RequestFacts) -> Iterator[Reason]:
        """Why the request is refused, whatever the time of day. Called also where no level says anything."""
        return iter(())

    def refusals_of_backend(self, bound: Bound, backend: BackendFacts, generates: bool) -> Iterator[Reason]:
        """Why one backend may not answer, by what it is, and what it has shown of itself while it runs. Of one that has
        shown nothing yet, the same refusals keep calls from it until it has. `generates`: as in `RequestFacts`."""
        return iter(())

    @abstractmethod
    def described(self, bound: Bound) -> Mapping[str, str]:
        """The bound in words, by rule."""

    def accepted_facts(self, bound: Bound | None) -> Mapping[str, Any]:
        """Facts of a request that the bound accepts: what a policy's tests begin with."""
        return NOTHING

    def accepted_facts_of_backend(self, bound: Bound | None) -> Mapping[str, Any]:
        """As `accepted_facts`, of the test's backend."""
        return NOTHING


class TimeCondition(Condition[Wanted, Bound]):
    """A condition whose answer depends on the instant of the request, so that no decision by it is kept for long."""

    @abstractmethod
    def refusals_at(self, bound: Bound, at: datetime) -> Iterator[Reason]: ...

    @abstractmethod
    def holds_until(self, bound: Bound, at: datetime) -> datetime:
        """Before then the answer is the one at `at`."""
