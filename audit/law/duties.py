"""What laws and standards ask for, since when, and where that was read: one dated table (`duties.json`).

Used by the control mapping of an evidence pack, by incident clocks, by `domicile audit ai-act --as-of` and by the
documentation. A date may itself have changed: `law_from` and `law_until` bound the days on which a line was the law.
"""

import json
from collections.abc import Iterator
from datetime import date
from functools import cache
from importlib.resources import files
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from audit.events.base import Code

Read = Literal["text", "summary", "not read"]
"""Whether the wording of the provision was read in a published copy, a description of it, or neither."""


class _Entry(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Source(_Entry):
    """`read`: what of it was read for this table; `where`: its address; `in_force`: before that day it was no law."""

    title: str
    short: str
    edition: str
    binding: Literal["law", "voluntary", "draft"]
    read: str
    where: str
    in_force: date = date.min


class Application(_Entry):
    """From `start` on the duty applies to `scope` (empty: to all), as the law stood from `law_from` to `law_until`."""

    start: date = Field(alias="from")
    scope: str = ""
    law_from: date = date.min
    law_until: date = date.max

    def is_law(self, day: date) -> bool:
        return self.law_from <= day <= self.law_until


class Duty(_Entry):
    """`applies` is empty for standards and drafts, which have no date of application."""

    id: Code
    source: str
    provision: str
    asks: str
    who: str
    applies: tuple[Application, ...]
    read: Read

    def dates(self, day: date) -> list[Application]:
        """By the law of `day`, the earliest first."""
        return sorted((one for one in self.applies if one.is_law(day)), key=lambda one: one.start)

    def applies_on(self, day: date) -> bool:
        """Whether it applies to anything on `day`."""
        return any(one.start <= day for one in self.dates(day))


class Duties(_Entry):
    """`as_of`: the day on which the table was compared with its sources; it says nothing of later changes."""

    as_of: date
    note: str
    sources: dict[str, Source]
    duties: tuple[Duty, ...]

    @model_validator(mode="after")
    def _is_whole(self) -> Self:
        ids = [duty.id for duty in self.duties]
        if len(set(ids)) != len(ids):
            raise ValueError("a duty is named twice; correct the table")
        if unknown := {duty.source for duty in self.duties} - set(self.sources):
            raise ValueError(f"no source is named {', '.join(sorted(unknown))}; add the source to the table")
        return self

    def find(self, duty_id: str) -> Duty | None:
        return next((duty for duty in self.duties if duty.id == duty_id), None)

    def of(self, *sources: str) -> Iterator[Duty]:
        return (duty for duty in self.duties if duty.source in sources)

    def applies_from(self, duty_id: str, day: date | None = None) -> str:
        """In words: each date with its scope, by the law of `day` (default: the day of the table)."""
        duty = self.find(duty_id)
        if duty is None:
            return ""
        binding = self.sources[duty.source].binding
        told = [f"{one.start}{f' ({one.scope})' if one.scope else ''}" for one in duty.dates(day or self.as_of)]
        return "; ".join(told) or binding


@cache
def load_duties() -> Duties:
    """The table that comes with the package."""
    return Duties.model_validate(json.loads(files("audit.law").joinpath("duties.json").read_text(encoding="utf-8")))
