"""The clocks that an incident starts: by when which authority must be told.

The figures are data (`clocks.json`), since laws change them: a file of the same form takes their place. They are a
reminder with a source, not advice; `aware` and `classified` are the moments that a person puts on record.
"""

import calendar
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, TypeAdapter, ValidationError

from audit.errors import AuditError
from audit.event_base import Code

From = Annotated[str, StringConstraints(pattern=r"^(aware|classified|[a-z][a-z0-9_]*\.[a-z][a-z0-9_]*)$")]


class Span(BaseModel):
    """`start` is a moment of the incident (aware, classified) or the name of a clock that must be met before."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    start: From = Field(alias="from")
    hours: int = Field(0, ge=0)
    months: int = Field(0, ge=0)


class Clock(Span):
    """`severity`: it runs for incidents of that severity only; `latest`: it ends no later than this."""

    name: From
    law: Code
    article: str
    tells: str
    severity: Code | None = None
    latest: Span | None = None


@dataclass(frozen=True, slots=True)
class Deadline:
    """`due` and `met` in RFC 3339 UTC; `due` is None while the moment it runs from is not on record."""

    clock: Clock
    due: str | None
    met: str | None

    def state(self, now: str) -> str:
        if self.met is not None:
            return "met" if self.due is None or self.met <= self.due else "late"
        return "not running" if self.due is None else "overdue" if now > self.due else "running"


def load_clocks(path: Path | None = None) -> tuple[Clock, ...]:
    """Those of the file at `path`, or those that come with the package. Raises AuditError for a file of another form,
    or one whose clocks run from clocks that are not there before them."""
    source = files("audit").joinpath("clocks.json") if path is None else path
    try:
        clocks = TypeAdapter(tuple[Clock, ...]).validate_python(json.loads(source.read_text(encoding="utf-8")))
    except (OSError, ValueError, ValidationError) as error:
        raise AuditError(f"the clocks cannot be read: {error}") from error
    known = {"aware", "classified"}
    for clock in clocks:
        starts = [clock.start, *([clock.latest.start] if clock.latest else [])]
        if not known.issuperset(starts) or clock.name in known:
            raise AuditError(f"the clock {clock.name} runs from one that is not named before it, or is named twice")
        known.add(clock.name)
    return clocks


def deadlines(
    clocks: Iterable[Clock],
    laws: Iterable[str],
    moments: Mapping[str, str],
    met: Mapping[str, str],
    severity: str | None = None,
) -> list[Deadline]:
    """What is due under `laws`. `moments` has aware and classified as far as known, `met` when which clock was met.

    A clock that follows another runs from when that was met, or else from when it is due.
    """
    chosen = set(laws)
    moments = dict(moments)
    found = []
    for clock in clocks:
        if clock.law not in chosen or clock.severity not in (None, severity):
            continue
        spans = (clock,) if clock.latest is None else (clock, clock.latest)
        ends = [end for span in spans if (end := _later(moments.get(span.start), span)) is not None]
        due = min(ends, default=None)
        found.append(Deadline(clock, due, met.get(clock.name)))
        if start := met.get(clock.name) or due:
            moments[clock.name] = start
    return found


def _later(moment: str | None, span: Span) -> str | None:
    if moment is None:
        return None
    start = datetime.fromisoformat(moment)
    month = start.month - 1 + span.months
    year, month = start.year + month // 12, month % 12 + 1
    day = min(start.day, calendar.monthrange(year, month)[1])
    return rfc3339_of(start.replace(year=year, month=month, day=day) + timedelta(hours=span.hours))


def rfc3339_of(moment: datetime) -> str:
    """UTC with milliseconds, as events carry it."""
    moment = moment.astimezone(UTC)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{moment.microsecond // 1000:03d}Z"


def as_rows(found: Iterable[Deadline], now: str) -> list[dict[str, Any]]:
    """For tables and JSON."""
    return [
        {
            "clock": one.clock.name,
            "article": one.clock.article,
            "tells": one.clock.tells,
            "due": one.due,
            "met": one.met,
            "state": one.state(now),
        }
        for one in found
    ]
