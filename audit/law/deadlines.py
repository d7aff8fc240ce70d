"""Legal deadlines that an incident starts: when which authority must be informed.

The periods, and the severities by which the laws classify incidents, are data (`clocks.json`), since laws change them:
a file of the same format replaces them. They are a reminder with a source, not advice. `aware` and `classified` are the
times that a person records. `duties.json` says since when a duty applies; each clock names its row there.
"""

import calendar
import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any, Literal
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints, TypeAdapter, ValidationError

from audit.errors import AuditError
from audit.events.base import Code
from audit.files.untrusted_file import read_untrusted
from audit.law.duties import Duties, load_duties

From = Annotated[str, StringConstraints(pattern=r"^(aware|classified|[a-z][a-z0-9_]*\.[a-z][a-z0-9_]*)$")]
NOON = time(12)
SATURDAY = 5
MAX_TABLE = 1 << 20
"""Bytes of a file of clocks."""


def _zone(name: str) -> str:
    try:
        ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError):
        raise ValueError(f"{name!r} is no time zone; write Europe/Paris") from None
    return name


class _Entry(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Span(_Entry):
    """`start` is a moment of the incident (aware, classified) or the name of a clock that must be met before."""

    start: From = Field(alias="from")
    hours: int = Field(0, ge=0)
    months: int = Field(0, ge=0)


class Clock(Span):
    """`severity`: it runs for incidents of that severity only. `latest`: it ends no later than this; with
    `late_start`, only where `start` is not after that end (RTS 2025/301 Art. 5(2)).

    `without_undue_delay`: the law names no figure, so the clock runs without an end. `weekend`: an end on a weekend or
    holiday may move to noon of the next working day, for all entities or for those that are not exempt (RTS 2025/301
    Art. 5(4), (5)). `duty`: the line of `duties.json` that says from when it applies.
    """

    name: From
    law: Code
    article: str
    tells: str
    duty: str = ""
    severity: Code | None = None
    latest: Span | None = None
    late_start: bool = False
    without_undue_delay: bool = False
    weekend: Literal["all", "not_exempt"] | None = None


class SeverityLevel(_Entry):
    """How an incident is classified under `law`, as the law words it. `spares`: clocks that do not run then."""

    name: Code
    law: Code
    article: str
    means: str
    spares: tuple[From, ...] = ()


class Calendar(_Entry):
    """Calendar of the entity that reports: its time zone, the bank holidays of its Member State, and whether it is
    exempt from the weekend rule (RTS 2025/301 Art. 5(5): credit institutions, central counterparties, operators of
    trading venues, essential and important entities of NIS2). Without a word it counts as exempt: the earlier end is
    shown."""

    zone: Annotated[str, AfterValidator(_zone)] = "UTC"
    holidays: frozenset[date] = frozenset()
    exempt: bool = True

    def working_end(self, moment: datetime) -> datetime:
        """`moment`, or noon of the next working day where it falls on a weekend day or holiday in the zone."""
        day = moment.astimezone(ZoneInfo(self.zone)).date()
        if not self._rests(day):
            return moment
        while self._rests(day):
            day += timedelta(days=1)
        return datetime.combine(day, NOON, ZoneInfo(self.zone)).astimezone(UTC)

    def _rests(self, day: date) -> bool:
        return day.weekday() >= SATURDAY or day in self.holidays


class ClockTable(_Entry):
    """`as_of`: the day on which the figures were compared with their sources."""

    as_of: date | None = None
    calendar: Calendar = Calendar()
    severities: tuple[SeverityLevel, ...] = ()
    clocks: tuple[Clock, ...]

    @property
    def laws(self) -> set[str]:
        return {clock.law for clock in self.clocks}

    def names(self) -> set[str]:
        return {clock.name for clock in self.clocks}

    def severity_names(self, laws: Collection[str]) -> list[str]:
        """What an incident under `laws` can be classified as: levels of the table, and those that its clocks name."""
        levels = [one.name for one in self.severities if one.law in laws]
        named = [one.severity for one in self.clocks if one.severity is not None and one.law in laws]
        return list(dict.fromkeys([*levels, *named]))

    def spared(self, severity: str | None) -> set[str]:
        """Clocks that do not run for an incident of that severity."""
        return {name for one in self.severities if one.name == severity for name in one.spares}


@dataclass(frozen=True, slots=True)
class Deadline:
    """`since`, `due` and `met` in RFC 3339 UTC. `since` is None while the moment that the clock runs from is not on
    record; `due` is None then, and where the law names no figure. `relieved`: the later end, where it depends on the
    entity whether the weekend rule gives it."""

    clock: Clock
    since: str | None
    due: str | None
    met: str | None
    relieved: str | None = None

    def state(self, now: str) -> str:
        if self.met is not None:
            return "met" if self.due is None or self.met <= self.due else "late"
        if self.since is None and self.due is None:
            return "not running"
        return "running" if self.due is None or now <= self.due else "overdue"


def load_clocks(path: Path | None = None) -> ClockTable:
    """Those of the file at `path`, or those that come with the package; a bare list is a table without a calendar.

    Raises AuditError for a file of another form, or one whose clocks run from clocks that are not named before them.
    """
    try:
        if path is None:
            text = files("audit.law").joinpath("clocks.json").read_bytes()
        else:
            text = read_untrusted(path, MAX_TABLE, follow_links=True)
        read = json.loads(text)
        table = TypeAdapter(ClockTable).validate_python({"clocks": read} if isinstance(read, list) else read)
    except (OSError, ValueError, ValidationError, RecursionError) as error:
        raise AuditError(f"the clocks cannot be read: {error}; their form is that of audit/law/clocks.json") from error
    known = {"aware", "classified"}
    for clock in table.clocks:
        starts = [clock.start, *([clock.latest.start] if clock.latest else [])]
        if not known.issuperset(starts) or clock.name in known:
            raise AuditError(
                f"the clock {clock.name} runs from one that is not named before it, or is named twice"
                "; correct deadlines.yaml"
            )
        known.add(clock.name)
    for level in table.severities:
        if level.law not in table.laws or not table.names().issuperset(level.spares):
            raise AuditError(
                f"the severity {level.name} is of a law without a clock, or spares a clock that there is not"
                "; correct clocks.json"
            )
    return table


def deadlines(
    table: ClockTable,
    laws: Iterable[str],
    moments: Mapping[str, str],
    met: Mapping[str, str],
    severity: str | None = None,
    renewed: Mapping[str, str] | None = None,
) -> list[Deadline]:
    """What is due under `laws`. `moments` has aware and classified as far as known, `met` when which clock was met
    first, `renewed` when last.

    A clock that follows another runs from when that was last met, or else from when it is due.
    """
    chosen = set(laws)
    moments = dict(moments)
    last = dict(met) | dict(renewed or {})
    found = []
    spared = table.spared(severity).difference(met)  # a report that was made stays, whatever the incident turned out as
    for clock in table.clocks:
        if clock.law not in chosen or clock.severity not in (None, severity) or clock.name in spared:
            continue
        one = _deadline(clock, table.calendar, moments, met.get(clock.name))
        found.append(one)
        if start := last.get(clock.name) or one.due:
            moments[clock.name] = start
    return found


def _deadline(clock: Clock, calendar: Calendar, moments: Mapping[str, str], met: str | None) -> Deadline:
    since = moments.get(clock.start)
    if clock.without_undue_delay:
        return Deadline(clock, since, None, met)
    due = _end(clock, moments)
    if due is None:
        return Deadline(clock, since, None, met)
    later = rfc3339_of(calendar.working_end(datetime.fromisoformat(due))) if clock.weekend else due
    if later != due and (clock.weekend == "all" or not calendar.exempt):
        return Deadline(clock, since, later, met)
    return Deadline(clock, since, due, met, later if later != due else None)


def _end(clock: Clock, moments: Mapping[str, str]) -> str | None:
    own = _later(moments.get(clock.start), clock)
    bound = None if clock.latest is None else _later(moments.get(clock.latest.start), clock.latest)
    if own is not None and bound is not None and clock.late_start and moments[clock.start] > bound:
        return own
    return min((end for end in (own, bound) if end is not None), default=None)


def _later(moment: str | None, span: Span) -> str | None:
    return None if moment is None else later(moment, span.months, span.hours)


def later(moment: str, months: int = 0, hours: int = 0) -> str:
    """The same day of a later month, or its last day where it has no such day, and then the hours."""
    start = datetime.fromisoformat(moment)
    month = start.month - 1 + months
    year, month = start.year + month // 12, month % 12 + 1
    day = min(start.day, calendar.monthrange(year, month)[1])
    return rfc3339_of(start.replace(year=year, month=month, day=day) + timedelta(hours=hours))


def rfc3339_of(moment: datetime) -> str:
    """UTC with milliseconds, as events carry it."""
    moment = moment.astimezone(UTC)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{moment.microsecond // 1000:03d}Z"


def as_rows(found: Iterable[Deadline], now: str, duties: Duties | None = None) -> list[dict[str, Any]]:
    """For tables and JSON. `limit` says in words what has no figure; `applies_from` is the duty's, where known."""
    known = duties or load_duties()
    return [
        {
            "clock": one.clock.name,
            "article": one.clock.article,
            "tells": one.clock.tells,
            "since": one.since,
            "due": one.due,
            "limit": "without undue delay" if one.clock.without_undue_delay else "",
            "due_if_weekend_rule_applies": one.relieved,
            "met": one.met,
            "state": one.state(now),
            "applies_from": known.applies_from(one.clock.duty),
        }
        for one in found
    ]
