"""Findings: what the verifier of a pack found wrong, in a list."""

from __future__ import annotations

from typing import Any

MAX_FINDINGS = 20  # of one kind; the rest are counted


class Broken(Exception):
    """A sentence that says what does not hold."""


class Findings:
    """`found` is what does not hold, `notes` what a reader should know."""

    def __init__(self) -> None:
        self.found: list[dict[str, Any]] = []
        self.notes: list[str] = []
        self.counts: dict[str, int] = {}

    def fault(self, check: str, says: str, seq: int | None = None) -> None:
        self.counts[check] = self.counts.get(check, 0) + 1
        if self.counts[check] <= MAX_FINDINGS:
            self.found.append({"check": check, "says": says, "seq": seq})

    def more(self, check: str, count: int) -> None:
        """`count` more of a kind that are not listed; none if it is negative."""
        self.counts[check] = self.counts.get(check, 0) + max(0, count)

    def total(self) -> int:
        return sum(self.counts.values())
