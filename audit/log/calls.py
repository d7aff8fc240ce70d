"""Recorded model calls: pages of calls, newest first, and a single call with all of its records.

A page reads the log backwards from its end, so its cost does not depend on the length of the log. Records are not
verified here (see `audit.log.walk`).
"""

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Any, Final

from audit.log.walk import first_at, parsed, size_of, timestamp
from audit.storage.store import Reader

CHUNK: Final = 256
MAX_READ: Final = 8192
"""Most records read for one page; if a filter matches few of them, the next page continues from there."""
MAX_CALL: Final = 8192
"""Records after the first record of a call in which its other records are searched."""
PLACE: Final = (
    "region", "inference_country", "storage_country", "operator_entity", "ultimate_parent_country", "transfer_basis"
)  # fmt: skip
OF_A_CALL: Final = b'"type":"inference.'
OF_ACCEPTED: Final = b'"type":"inference.accepted"'
OF_DENIED: Final = b'"type":"inference.denied"'
_REQUEST: Final = re.compile(rb'"request_id":("(?:[^"\\]|\\.)*")')
"""The request as it stands in canonical JSON."""
BEGINS: Final = frozenset({"inference.accepted", "inference.denied"})
ENDS: Final = {"inference.completed": "completed", "inference.aborted": "aborted"}


@dataclass(frozen=True, slots=True)
class CallFilter:
    """Filter for calls; None matches every value. `outcome`: completed, aborted, denied or running. `since`, `until`:
    RFC 3339 UTC or a prefix; `until` is exclusive. `subject`: commitment to the data subject in one of the records."""

    project: str | None = None
    outcome: str | None = None
    region: str | None = None
    model: str | None = None
    request_id: str | None = None
    since: str | None = None
    until: str | None = None
    subject: str | None = None

    def may_match(self, begun: bytes, ended: bytes) -> bool:
        """Whether the call with these records, as hashed, may match: false only if it does not. Reading the bytes
        costs a tenth of parsing them."""
        of_begin = (self.project, self.model, self.request_id)
        if not all(value is None or _written(value) in begun for value in of_begin):
            return False
        if not all(value is None or _written(value) in begun + ended for value in (self.region, self.subject)):
            return False
        match self.outcome:
            case None:
                return True
            case "denied":
                return OF_DENIED in begun
            case "running":
                return not ended and OF_DENIED not in begun
            case outcome:
                return _written(f"inference.{outcome}") in ended

    def matches(self, line: "CallLine", begun: Mapping[str, Any], ended: Mapping[str, Any]) -> bool:
        if self.subject is not None and self.subject not in (_subject(begun), _subject(ended)):
            return False
        wanted = (self.project, self.outcome, self.region, self.model, self.request_id)
        found = (line.project, line.outcome, line.region, line.model, line.request_id)
        return all(want is None or want == have for want, have in zip(wanted, found, strict=True))


@dataclass(frozen=True, slots=True)
class CallLine:
    """A call in short form. `seq`: number of its first record. `masked`: number of values masked in the prompt. Times
    in milliseconds."""

    seq: int
    ts: str
    request_id: str
    project: str
    key_id: str
    model: str
    endpoint: str
    outcome: str
    region: str | None = None
    country: str | None = None
    rule: str | None = None
    status: int | None = None
    masked: int = 0
    tokens_in: int | None = None
    tokens_out: int | None = None
    ttft_ms: int | None = None
    latency_ms: int | None = None


def _written(value: str) -> bytes:
    """As it stands in canonical JSON."""
    return json.dumps(value, ensure_ascii=False).encode()


def _subject(event: Mapping[str, Any]) -> str | None:
    """Return the commitment to the data subject."""
    found = (event.get("commits") or {}).get("subject")
    return found if isinstance(found, str) else None


@dataclass(frozen=True, slots=True)
class CallPage:
    """A page of calls. `before`: the next page has calls before this record; None for the last page. `first`, `end`:
    range of records read."""

    calls: tuple[CallLine, ...]
    before: int | None
    first: int
    end: int


def calls(reader: Reader, tenant: str, wanted: CallFilter, *, before: int | None = None, limit: int = 50) -> CallPage:
    """Return the newest matching calls whose first record is before number `before`. Raises StoreError."""
    size = size_of(reader, tenant)
    stop = min(size, size if before is None else before)
    if wanted.until is not None:
        stop = min(stop, first_at(reader, tenant, wanted.until, size))
    ends = {
        request_id: payload
        for _, request_id, payload in _payloads(reader, tenant, stop, min(size, stop + CHUNK))
        if not _begins(payload)
    }
    end, at, found = min(size, stop + CHUNK), stop, list[CallLine]()
    while at > 0 and stop - at < MAX_READ:
        start = max(0, at - CHUNK)
        for seq, request_id, payload in reversed(list(_payloads(reader, tenant, start, at))):
            if wanted.since is not None and timestamp(payload) < wanted.since:
                return CallPage(tuple(found), None, seq, end)
            if not _begins(payload):
                ends[request_id] = payload
            elif line := _matching(wanted, seq, payload, ends.get(request_id, b"")):
                found.append(line)
                if len(found) == limit:
                    return CallPage(tuple(found), seq or None, seq, end)
        at = start
    return CallPage(tuple(found), at or None, at, end)


def _matching(wanted: CallFilter, seq: int, begun: bytes, ended: bytes) -> "CallLine | None":
    """Return the call of these records if it matches. The outcome is that of its parsed records."""
    if not wanted.may_match(begun, ended):
        return None
    begin, end = parsed(begun), parsed(ended) if ended else {}
    line = call_line(seq, begin, end)
    return line if wanted.matches(line, begin, end) else None


def _begins(payload: bytes) -> bool:
    return OF_ACCEPTED in payload or OF_DENIED in payload


def _payloads(reader: Reader, tenant: str, start: int, end: int) -> Iterator[tuple[int, bytes, bytes]]:
    """Yield number, request (as it is written) and bytes of each record of a call, from `start` to before `end`."""
    if start >= end:
        return
    for leaf in reader.leaves(tenant, start, end):
        if OF_A_CALL in leaf.payload and (found := _REQUEST.search(leaf.payload)):
            yield leaf.seq, found[1], leaf.payload


@dataclass(frozen=True, slots=True)
class CallSummary:
    """Counts of the newest calls, without individual calls. `since`: start of the oldest; `calls`: their number.

    `outcomes`, `rules` (of refused and aborted calls) and `places` (region, its country, country of storage, operator,
    country of the operator's parent, basis of the transfer) are numbers of calls by value. Times in milliseconds, None
    if none was measured.
    """

    calls: int
    since: str | None
    outcomes: Mapping[str, int]
    rules: Mapping[str, int]
    places: Mapping[tuple[str, ...], int]
    masked: Mapping[str, int]
    latency_p50_ms: int | None
    latency_p95_ms: int | None
    ttft_p50_ms: int | None
    ttft_p95_ms: int | None


def summary(reader: Reader, tenant: str, newest: int = 1000) -> CallSummary:
    """Return the summary of the calls in the last `newest` records of the log. Raises StoreError."""
    size = size_of(reader, tenant)
    events = [event for _, event in _of_calls(reader, tenant, max(0, size - newest), size)]
    ends = {event["request_id"]: event for event in events if event["type"] not in BEGINS}
    begun = [event for event in events if event["type"] in BEGINS]
    lines = [call_line(0, event, ends.get(event["request_id"], {})) for event in begun]
    latency, ttft = (_measured(ends.values(), name) for name in ("latency_ms", "ttft_ms"))
    return CallSummary(
        calls=len(begun),
        since=begun[0]["ts"] if begun else None,
        outcomes=Counter(line.outcome for line in lines),
        rules=Counter(line.rule for line in lines if line.rule is not None),
        places=_places(begun),
        masked=_masked(begun),
        latency_p50_ms=_quantile(latency, 0.5),
        latency_p95_ms=_quantile(latency, 0.95),
        ttft_p50_ms=_quantile(ttft, 0.5),
        ttft_p95_ms=_quantile(ttft, 0.95),
    )


def _places(begun: Iterable[Mapping[str, Any]]) -> Counter[tuple[str, ...]]:
    sent = (event for event in begun if event["type"] == "inference.accepted")
    return Counter(tuple(event[name] for name in PLACE) for event in sent)


def _masked(begun: Iterable[Mapping[str, Any]]) -> Counter[str]:
    """Count masked values by kind."""
    masked = Counter[str]()
    for event in begun:
        masked.update((event.get("redaction") or {}).get("counts_by_type", {}))
    return masked


def _measured(events: Iterable[Mapping[str, Any]], name: str) -> list[int]:
    """Return the measured values of a field, sorted."""
    return sorted(event[name] for event in events if name in event)


def call(reader: Reader, tenant: str, seq: int) -> list[tuple[int, dict[str, Any]]]:
    """Return the numbered records of the call that begins with record `seq`; empty if no call begins there."""
    if seq >= size_of(reader, tenant):
        return []
    first = next(_of_calls(reader, tenant, seq, seq + 1), None)
    if first is None or first[1]["type"] not in BEGINS:
        return []
    found = [first]
    if first[1]["type"] == "inference.denied":
        return found
    request_id = first[1]["request_id"]
    size = size_of(reader, tenant)
    wanted = request_id.encode()
    for leaf in reader.leaves(tenant, seq + 1, min(size, seq + 1 + MAX_CALL)):
        if wanted in leaf.payload and (event := parsed(leaf.payload)).get("request_id") == request_id:
            found.append((leaf.seq, event))
            if event.get("type") in ENDS:
                break
    return found


def call_line(seq: int, begun: Mapping[str, Any], ended: Mapping[str, Any]) -> CallLine:
    """Return a call in short form. `begun`: its first record. `ended`: its closing record, empty while it runs."""
    denied = begun["type"] == "inference.denied"
    outcome = "denied" if denied else ENDS.get(ended.get("type", ""), "running")
    decision = begun.get("decision", {}) if denied else ended.get("decision", {})
    reasons = decision.get("reasons", ())
    counts = (begun.get("redaction") or {}).get("counts_by_type", {})
    return CallLine(
        seq=seq,
        ts=begun["ts"],
        request_id=begun["request_id"],
        project=begun["project"],
        key_id=begun["key_id"],
        model=begun["model_requested"],
        endpoint=begun["endpoint"],
        outcome=outcome,
        region=ended.get("region") or begun.get("region"),
        country=begun.get("inference_country"),
        rule=reasons[0]["rule"] if reasons else ended.get("reason"),
        status=begun.get("status") if denied else ended.get("status"),
        masked=sum(counts.values()),
        **{name: ended.get(name) for name in ("tokens_in", "tokens_out", "ttft_ms", "latency_ms")},
    )


def _quantile(ordered: Sequence[int], share: float) -> int | None:
    """Return the smallest value that at least the fraction `share` of the values do not exceed."""
    return ordered[max(0, ceil(share * len(ordered)) - 1)] if ordered else None


def _of_calls(reader: Reader, tenant: str, start: int, end: int) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield number and record of each record of a call from `start` to before `end`."""
    if start >= end:
        return
    for leaf in reader.leaves(tenant, start, end):
        if OF_A_CALL in leaf.payload:
            event = parsed(leaf.payload)
            if str(event.get("type", "")).startswith("inference.") and "request_id" in event:
                yield leaf.seq, event
