"""Order of the times of an incident: start, discovery and classification, all of them in the past.

A wrong year or time zone would move every end that a law sets from these moments, so it is refused before it is on
record. RFC 3339 in UTC with milliseconds sorts as time does.
"""

from collections.abc import Mapping

from audit.errors import AuditError

NAMES = {
    "detected": "the moment of detection",
    "aware": "the moment of awareness",
    "classified": "the moment of classification",
}


def check_moments(moments: Mapping[str, str], now: str, since: str | None = None, until: str | None = None) -> None:
    """`moments`: those known of detected, aware and classified. `since` and `until` bound the records concerned and
    may be prefixes (2026-03-01). Raises AuditError, naming the two that contradict each other."""
    for name, moment in moments.items():
        if moment > now:
            raise AuditError(
                f"{NAMES[name]}, {moment}, is in the future; it is {now} now: correct it, in UTC or its zone"
            )
    if since is not None and since > now:
        raise AuditError(f"the incident cannot begin in the future (--since {since}); it is {now} now: correct it")
    if since is not None and until is not None and until <= since:
        raise AuditError(f"the incident would end ({until}) before it began ({since}); correct --since or --until")
    _in_order("aware", "classified", moments)
    for name in ("aware", "classified"):
        if since is not None and name in moments and moments[name] < since:
            raise AuditError(
                f"{NAMES[name]}, {moments[name]}, is before the incident began (--since {since}); correct one of them"
            )


def _in_order(first: str, second: str, moments: Mapping[str, str]) -> None:
    if first in moments and second in moments and moments[second] < moments[first]:
        raise AuditError(
            f"{NAMES[second]}, {moments[second]}, is before {NAMES[first]}, {moments[first]}; correct one of them"
        )
