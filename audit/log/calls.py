"""Calls of models as the record has them: the newest first, a page at a time, and one call with all of its records.

A page reads the log backwards from its end, so what it costs does not depend on how long the log is. A record is not
checked here (`audit.log.walk`).
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Any, Final

from audit.log.walk import first_at, parsed, size_of
from audit.storage.store import Reader

CHUNK: Final = 256
MAX_READ: Final = 8192
"""Records that one page reads at most; a filter that matches little goes on from there."""
MAX_CALL: Final = 8192
"""Records after a call's first one in which its others are looked for."""
PLACE: Final = (
    "region", "inference_country", "storage_country", "operator_entity", "ultimate_parent_country", "transfer_basis"
)  # fmt: skip
OF_A_CALL: Final = b'"type":"inference.'
BEGINS: Final = frozenset({"inference.accepted", "inference.denied"})
ENDS: Final = {"inference.completed": "completed", "inference.aborted": "aborted"}


@dataclass(frozen=True, slots=True)
class CallFilter:
    """What is looked for; None matches any. `outcome`: completed, aborted, denied or running. `since`, `until`: RFC
    3339 UTC or a prefix, the second not included. `subject`: the commitment to the person concerned that one of the
    call's records holds."""

    project: str | None = None
    outcome: str | None = None
    region: str | None = None
    model: str | None = None
    request_id: str | None = None
    since: str | None = None
    until: str | None = None
    subject: str | None = None

    def matches(self, line: "CallLine", begun: Mapping[str, Any], ended: Mapping[str, Any]) -> bool:
        if self.subject is not None and self.subject not in (_subject(begun), _subject(ended)):
            return False
        wanted = (self.project, self.outcome, self.region, self.model, self.request_id)
        found = (line.project, line.outcome, line.region, line.model, line.request_id)
        return all(want is None or want == have for want, have in zip(wanted, found, strict=True))


@dataclass(frozen=True, slots=True)
class CallLine:
    """One call. `seq`: of its first record. `masked`: findings treated in its prompt. Times in milliseconds."""

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


def _subject(event: Mapping[str, Any]) -> str | None:
    """The commitment to the person concerned."""
    found = (event.get("commits") or {}).get("subject")
    return found if isinstance(found, str) else None


@dataclass(frozen=True, slots=True)
class CallPage:
    """`before`: the next page continues with calls before this record; None at the end. `first`, `end`: what was read
    of the log."""

    calls: tuple[CallLine, ...]
    before: int | None
    first: int
    end: int


def calls(reader: Reader, tenant: str, wanted: CallFilter, *, before: int | None = None, limit: int = 50) -> CallPage:
    """The newest calls that match, of those whose first record has a number less than `before`. Raises StoreError."""
    size = size_of(reader, tenant)
    stop = min(size, size if before is None else before)
    if wanted.until is not None:
        stop = min(stop, first_at(reader, tenant, wanted.until, size))
    ends = {event["request_id"]: event for _, event in _of_calls(reader, tenant, stop, min(size, stop + CHUNK))}
    end, at, found = min(size, stop + CHUNK), stop, list[CallLine]()
    while at > 0 and stop - at < MAX_READ:
        start = max(0, at - CHUNK)
        chunk = list(_of_calls(reader, tenant, start, at))
        for seq, event in reversed(chunk):
            if wanted.since is not None and event["ts"] < wanted.since:
                return CallPage(tuple(found), None, seq, end)
            if event["type"] not in BEGINS:
                ends[event["request_id"]] = event
            elif wanted.matches(
                line := call_line(seq, event, ended := ends.get(event["request_id"], {})), event, ended
            ):
                found.append(line)
                if len(found) == limit:
                    return CallPage(tuple(found), seq or None, seq, end)
        at = start
    return CallPage(tuple(found), at or None, at, end)


@dataclass(frozen=True, slots=True)
class CallSummary:
    """Counts of the newest calls, without any one of them. `since`: when the oldest of them began; `calls`: how many.

    `outcomes`, `rules` (of those that were refused or broke off), `places` (region, its country, country of storage,
    operator, country of the operator's parent, basis of the transfer): how often each. Times in milliseconds, None
    where none was measured.
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
    """Of the calls in the last `newest` records of the log. Raises StoreError."""
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
    """Masked values by kind."""
    masked = Counter[str]()
    for event in begun:
        masked.update((event.get("redaction") or {}).get("counts_by_type", {}))
    return masked


def _measured(events: Iterable[Mapping[str, Any]], name: str) -> list[int]:
    """Values of one field where it was measured, sorted."""
    return sorted(event[name] for event in events if name in event)


def call(reader: Reader, tenant: str, seq: int) -> list[tuple[int, dict[str, Any]]]:
    """The records of the call that begins with record `seq`, by number; empty if that begins none."""
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
    """`ended`: the record that closes the call, empty while it runs."""
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
    """The smallest that at least `share` of them do not exceed."""
    return ordered[max(0, ceil(share * len(ordered)) - 1)] if ordered else None


def _of_calls(reader: Reader, tenant: str, start: int, end: int) -> Iterator[tuple[int, dict[str, Any]]]:
    """Number and record of those from `start` to before `end` that are of calls."""
    if start >= end:
        return
    for leaf in reader.leaves(tenant, start, end):
        if OF_A_CALL in leaf.payload:
            event = parsed(leaf.payload)
            if str(event.get("type", "")).startswith("inference.") and "request_id" in event:
                yield leaf.seq, event
