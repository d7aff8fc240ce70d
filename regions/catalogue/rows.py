"""Rows of a catalogue: dated facts, each with its source and date. A fact without a source is ``unknown``.

An unknown country or owner is refused by every policy (`facts.missing`), an unread list of sub-processors by every
policy as well (`residency.subprocessors`), and a certificate that is only claimed counts for none.
"""

from collections.abc import Iterator
from datetime import date
from typing import Annotated, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    PlainSerializer,
    StringConstraints,
    model_validator,
)

from audit.law.lei import check_lei
from policy.document.countries import builtin_countries
from policy.facts import Attestation, Subprocessor
from regions.identity.identity import NAME

UNKNOWN = "unknown"
UNREAD = Subprocessor(name="unknown (the list was not read)")
"""A value without a source. It has no country, which every policy refuses."""


def _country(code: str | None) -> str | None:
    if code is not None and code not in builtin_countries().known:
        hint = "did you mean GB?" if code == "UK" else "write one such as FR"
        raise ValueError(f"{code!r} is no ISO 3166 alpha-2 country code; {hint}")
    return code


def _read_unknown(value: object) -> object:
    if value is None:
        raise ValueError(f"is empty; write {UNKNOWN} for a value without a source")
    return None if value == UNKNOWN else value


def _write_unknown(value: str | None) -> str:
    return UNKNOWN if value is None else value


def _read_subprocessors(value: object) -> object:
    if value == UNKNOWN:
        return (UNREAD,)
    if isinstance(value, (list, tuple)):
        return tuple(UNREAD if one == UNKNOWN else one for one in value)
    return value


def _refuse_empty(facts: tuple[str, ...]) -> tuple[str, ...]:
    if not facts:
        raise ValueError("names no fact; name the fields of the row that were read there")
    return facts


_MAY_BE_UNKNOWN = (BeforeValidator(_read_unknown), PlainSerializer(_write_unknown))
Country = Annotated[str | None, AfterValidator(_country), *_MAY_BE_UNKNOWN]
Name = Annotated[str, StringConstraints(pattern=rf"^{NAME.pattern}$")]
Text = Annotated[str, StringConstraints(min_length=1, max_length=300)]
TextOrUnknown = Annotated[Text | None, *_MAY_BE_UNKNOWN]
Subprocessors = Annotated[tuple[Subprocessor, ...], BeforeValidator(_read_subprocessors)]
"""A list, ``unknown`` in place of it, or a list with ``unknown`` among its items: that part has no source."""


class Source(BaseModel):
    """Where facts of a row were read that its own `source` does not state. `facts`: fields of that row.

    `second_hand`: it is not the operator's own statement, nor an authority's.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    facts: Annotated[tuple[str, ...], AfterValidator(_refuse_empty)]
    source: Text
    read_on: date
    second_hand: bool = False


class Row(BaseModel):
    """A dated fact and where it can be checked. Valid on both end dates.

    `read_on`: the day on which `source` was read; `second_hand`, `sources`: see `Source`.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    id: Name
    valid_from: date
    valid_to: date | None = None
    source: Text
    read_on: date | None = None
    second_hand: bool = False
    sources: tuple[Source, ...] = ()

    @model_validator(mode="after")
    def _check_sources(self) -> Self:
        named = [fact for one in self.sources for fact in one.facts]
        if strange := sorted(set(named) - self.facts_stated()):
            there = ", ".join(sorted(self.facts_stated()))
            raise ValueError(f"sources name {', '.join(strange)}, no known fact of the row; there are {there}")
        if twice := sorted({fact for fact in named if named.count(fact) > 1}):
            raise ValueError(f"sources name {', '.join(twice)} twice; name each fact once")
        return self

    def valid_on(self, day: date) -> bool:
        return self.valid_from <= day and (self.valid_to is None or day <= self.valid_to)

    def facts_stated(self) -> set[str]:
        """Names of the fields that state something, but those about the row itself."""
        fields = set(type(self).model_fields) - set(Row.model_fields)
        return {name for name in fields if getattr(self, name) not in (None, (), (UNREAD,))}

    def second_hand_facts(self) -> Iterator[str]:
        elsewhere = {fact: one.second_hand for one in self.sources for fact in one.facts}
        return (fact for fact in sorted(self.facts_stated()) if elsewhere.get(fact, self.second_hand))


class Operator(Row):
    """The legal entity that controls backends, and the one that controls it in the end (CLOUD Act exposure).

    `lei`: its legal entity identifier (ISO 17442), which the DORA register identifies providers by.
    `subprocessor_list`: where it publishes its sub-processors.
    """

    entity: Text
    head_office: Country
    ultimate_parent: TextOrUnknown
    parent_country: Country
    lei: Annotated[str, AfterValidator(check_lei)] | None = None
    subprocessors: Subprocessors = ()
    subprocessor_list: Text | None = None
    attested_transfer: tuple[Attestation, ...] = ()


class Register(Row):
    """A version of an operator's list of sub-processors (GDPR 28(2), (4)); `id` is the operator's.

    `announced`: when its customers were informed; `objection_until`: the last day on which they could object.
    """

    version: Text
    announced: date | None = None
    objection_until: date | None = None
    subprocessors: Subprocessors = ()


class Claim(Row):
    """A certificate or attestation that an operator or a region (`of` is its id) is said to hold, without its end.

    It is shown, and counts for no policy: see `Certification` for one that does. `scheme` as policies ask for it:
    ``C5``, ``SecNumCloud``, ``ISO 27001``, ``HDS``.
    """

    scheme: Text
    of: Name
    scope: Text


class Certification(Claim):
    """One by a body outside of its holder, until the end that it states, as they all do."""

    valid_to: date


class Region(Row):
    """A place where backends run: where prompts are computed, and where anything of them may be stored."""

    name: Text
    compute_country: Country
    storage_country: Country
    operator: Name
