"""Records of a period, read without judging them: what reports and queries are made from.

A record is the JSON object that was hashed. It is not checked here; `audit.verification.verify` does that.
"""

import json
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import fields
from datetime import datetime
from typing import Any

from audit.errors import AuditError
from audit.storage.store import Reader

_TS = re.compile(rb'"ts":"([0-9T:.Z-]{24})"')
_MOMENT = re.compile(r"\d{4}(-\d\d(-\d\d(T\d\d(:\d\d(:\d\d(\.\d{1,3}Z?)?)?)?)?)?)?")

_START = "2000-01-01T00:00:00"
"""What a prefix is completed by."""


def as_plain(report: Any) -> dict[str, Any]:
    """The fields of a dataclass as JSON takes them: what was counted becomes a plain object."""
    values = {one.name: getattr(report, one.name) for one in fields(report)}
    return {name: dict(value) if isinstance(value, Counter) else value for name, value in values.items()}


def timestamp(payload: bytes) -> str:
    """The `ts` of a record's bytes, empty if it has none (its content has expired)."""
    match = _TS.search(payload)
    return match[1].decode() if match else ""


def parsed(payload: bytes) -> dict[str, Any]:
    """The record as it was hashed, unchecked: empty for what is none, which `audit.verification.verify` is to judge."""
    try:
        record = json.loads(payload)
    except (ValueError, RecursionError):
        return {}
    return record if isinstance(record, dict) else {}


def size_of(reader: Reader, tenant: str) -> int:
    """How many records `tenant` has; 0 also for one that has no log yet."""
    return reader.head(tenant)[0] if tenant in reader.tenants() else 0


def first_at(reader: Reader, tenant: str, moment: str, size: int) -> int:
    """The number of the first of `size` records taken at `moment` or later, found by halving; `size` if there is none.
    `moment`: RFC 3339 UTC or a prefix of it."""
    low, high = 0, size
    while low < high:
        middle = (low + high) // 2
        leaf = next(iter(reader.leaves(tenant, middle, middle + 1)), None)
        if leaf is None or timestamp(leaf.payload) < moment:  # one whose content has expired is older
            low = middle + 1
        else:
            high = middle
    return low


def between(reader: Reader, tenant: str, since: str | None, until: str | None) -> tuple[int, int]:
    """Numbers of the first record taken from `since` on, and of the one behind the last before `until`. Bounds as for
    `first_at`; None: the log's."""
    size = size_of(reader, tenant)
    end = size if until is None else first_at(reader, tenant, until, size)
    return (0 if since is None else min(end, first_at(reader, tenant, since, size))), end


def checked_moment(text: str) -> str:
    """RFC 3339 UTC or a prefix of it, as it compares with the `ts` of records: without its ``Z``, which sorts behind
    the point of their milliseconds. Raises AuditError, also for a day that no month has."""
    given = text.removesuffix("Z")
    try:
        if not _MOMENT.fullmatch(given) and not _MOMENT.fullmatch(text):
            raise ValueError
        datetime.fromisoformat(given + _START[len(given) :])
    except ValueError:
        raise AuditError("this is no moment; write 2026-03, 2026-03-01 or 2026-03-01T12:00:00Z") from None
    return given


def records(
    reader: Reader, tenant: str, since: str | None = None, until: str | None = None
) -> Iterator[tuple[int, dict[str, Any]]]:
    """seq and record of what was taken from `since` up to but not including `until` (RFC 3339 UTC or a prefix)."""
    for stored in reader.leaves(tenant):
        ts = timestamp(stored.payload)
        if (since is None or ts >= since) and (until is None or ts < until) and ts:
            yield stored.seq, parsed(stored.payload)
