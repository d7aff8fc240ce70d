"""`hours`: when requests are answered: days of the week and hours of the day, in a time zone with its summer time.

A window may pass midnight: `from: "22:00", until: "06:00"` on Friday ends on Saturday morning. Building one reads the
system's time zone tables (IANA); judging by it is pure.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Annotated, Any, ClassVar, Literal, Self, get_args
from zoneinfo import ZoneInfo

from pydantic import ConfigDict, Field, model_validator

from policy.conditions.condition import TimeCondition
from policy.reason import Reason
from policy.section import Section, checked_by

Day = Literal["mon", "tue", "wed", "thu", "fri", "sat", "sun"]
DAYS: tuple[str, ...] = get_args(Day)

_TIME = re.compile(r"([01][0-9]|2[0-3]):([0-5][0-9])|24:00")


@dataclass(frozen=True, slots=True)
class Window:
    """`first` and `end` are minutes of the day, the second outside. `days`: on which it begins, Monday is 0."""

    days: frozenset[int]
    first: int
    end: int
    zone: ZoneInfo

    def holds(self, at: datetime) -> bool:
        local = at.astimezone(self.zone)
        minute, day = local.hour * 60 + local.minute, local.weekday()
        if self.first < self.end:
            return day in self.days and self.first <= minute < self.end
        return (day in self.days and minute >= self.first) or ((day - 1) % 7 in self.days and minute < self.end)

    def __str__(self) -> str:
        days = ", ".join(DAYS[day] for day in sorted(self.days))
        return f"{days} {_clock(self.first)}-{_clock(self.end)} {self.zone.key}"


def parse_minute(text: str) -> int:
    """Minutes since midnight in ``07:30``. Raises ValueError."""
    if not (match := _TIME.fullmatch(text)):
        raise ValueError(f'{text!r} is no time of day; write "07:30", with its quotes')
    return 24 * 60 if match[1] is None else int(match[1]) * 60 + int(match[2])


def parse_zone(name: str) -> ZoneInfo:
    """Raises ValueError for a zone that this machine has no table of."""
    try:
        return ZoneInfo(name)
    except (KeyError, ValueError, OSError):  # also for what is a folder, or leads out of the tables
        raise ValueError(f"{name!r} is no time zone; write one as Europe/Berlin or UTC") from None


def next_minute(at: datetime) -> datetime:
    """When a window could open or close next: none begins or ends inside a minute."""
    return at.replace(second=0, microsecond=0) + timedelta(minutes=1)


def _clock(minute: int) -> str:
    return f"{minute // 60:02}:{minute % 60:02}"


class Hours(Section):
    """A window of the day in `zone`; it may pass midnight. `days`: on which it begins."""

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)

    days: Annotated[tuple[Day, ...], Field(min_length=1)] = DAYS  # type: ignore[assignment]
    first: Annotated[str, checked_by(parse_minute)] = Field("00:00", alias="from")
    end: Annotated[str, checked_by(parse_minute)] = Field("24:00", alias="until")
    zone: Annotated[str, checked_by(parse_zone)]

    @model_validator(mode="after")
    def _opens(self) -> Self:
        if self.first in (self.end, "24:00"):
            raise ValueError(f"from {self.first} until {self.end} is an empty time; give two different times")
        return self


class OpeningHours(TimeCondition[Hours, tuple[Window, ...]]):
    """The windows of all levels must be open."""

    name: ClassVar[str] = "hours"
    form: ClassVar[Any] = Hours
    says: ClassVar[str] = "days and hours in a time zone: requests at other times are refused"

    def tightened(self, above: tuple[Window, ...] | None, wanted: Hours, whose: str) -> tuple[Window, ...]:
        days = frozenset(DAYS.index(day) for day in wanted.days)
        own = Window(days, parse_minute(wanted.first), parse_minute(wanted.end), parse_zone(wanted.zone))
        return (*(above or ()), own)

    def refusals_at(self, bound: tuple[Window, ...], at: datetime) -> Iterator[Reason]:
        for window in bound:
            if not window.holds(at):
                yield Reason(self.name, None, f"policy answers on {window} only")

    def holds_until(self, bound: tuple[Window, ...], at: datetime) -> datetime:
        return next_minute(at)

    def described(self, bound: tuple[Window, ...]) -> Mapping[str, str]:
        return {self.name: "; ".join(map(str, bound))}
