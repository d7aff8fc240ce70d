"""How long records are kept, by class: floors that law sets, ceilings that a tenant sets, and what wins.

GDPR 5(1)(e) pulls down, AI Act 19(1) and 26(6) push up: logs of a high-risk system are due for six months. A record
holds no personal value, so the floor wins over a ceiling below it, and the run says how often it did. Policies write
the class of each call into its record (``metadata_365d``); the rest is set here.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from audit.errors import AuditError
from audit.events.base import RecordRetention
from audit.events.declared import KEPT
from audit.law.ai_act import FLOOR_DAYS

SECURITY_FLOOR_DAYS = 365
DAY_MS = 86_400_000

_METADATA = re.compile(r"metadata_([1-9][0-9]{0,4})d")
_OPENS = "inference.accepted"
_CLOSES = ("inference.completed", "inference.aborted")


@dataclass(frozen=True, slots=True)
class Schedule:
    """Days. Records that prove deletions and keys are never deleted, nor are calls that still run.

    `inference` is for calls whose record names no class; `ceiling` cuts what policies ask for, but not below a floor.
    Governance: policies, model changes, incidents, oversight, subject requests (contract and limitation periods).
    Raises AuditError for a security period below its floor.
    """

    inference: int = 365
    security: int = 730
    governance: int = 3653
    ceiling: int | None = None

    def __post_init__(self) -> None:
        if self.security < SECURITY_FLOOR_DAYS or self.governance < SECURITY_FLOOR_DAYS:
            raise AuditError(
                f"records of security and governance are kept for {SECURITY_FLOOR_DAYS} days at the least"
                "; set at least this number"
            )
        if self.inference < 1 or (self.ceiling is not None and self.ceiling < 1):
            raise AuditError("a retention period is less than a day; set at least 1d")


@dataclass(slots=True)
class Due:
    """Finds the records whose time is over, in one walk. `floored` calls were kept beyond a lower setting by law."""

    schedule: Schedule
    now: int  # milliseconds since the epoch
    floored: int = 0
    _running: dict[str, tuple[int, list[int]]] = field(default_factory=dict)  # days and records of calls not yet ended

    def take(self, seq: int, event: dict[str, Any], taken_at: int) -> Iterator[tuple[int, ...]]:
        """What is due now that record `seq`, taken at `taken_at` (ms), was read: a call goes as a whole."""
        kind, request = str(event.get("type")), str(event.get("request_id"))
        if kind == _OPENS:
            self._running[request] = self._days_of_call(event), [seq]
        elif request in self._running and KEPT.get(kind) is RecordRetention.CALL:
            days, seqs = self._running[request]
            seqs.append(seq)
            if kind in _CLOSES:
                del self._running[request]
                if self._is_over(taken_at, days):
                    yield tuple(seqs)
        elif (limit := self._days(kind, event)) is not None and self._is_over(taken_at, limit):
            yield (seq,)

    def _days(self, kind: str, event: dict[str, Any]) -> int | None:
        match KEPT.get(kind, RecordRetention.SECURITY):
            case RecordRetention.PROOF:
                return None
            case RecordRetention.CALL:
                return self._days_of_call(event)
            case RecordRetention.GOVERNANCE:
                return self.schedule.governance
        return self.schedule.security

    def _days_of_call(self, event: dict[str, Any]) -> int:
        days, floored = days_of_call(event, self.schedule)
        self.floored += floored
        return days

    def _is_over(self, taken_at: int, days: int) -> bool:
        return taken_at + days * DAY_MS <= self.now


def days_of_call(event: dict[str, Any], schedule: Schedule) -> tuple[int, bool]:
    """How long the record of a call is kept, of its intent or refusal; and whether law keeps it beyond a lower setting
    (AI Act 19(1), 26(6))."""
    match = _METADATA.fullmatch(str(event.get("retention_class", "")))
    days = int(match[1]) if match else schedule.inference
    if schedule.ceiling is not None:
        days = min(days, schedule.ceiling)
    if event.get("risk_class") == "high" and days < FLOOR_DAYS:
        return FLOOR_DAYS, True
    return days, False
