"""Search for the recorded answers that a text comes from, by fingerprints (`audit.log.answer_prints`).

A search reads the whole log of a tenant once. Records are not verified here (see `audit.log.walk`); the receipt of a
record proves it.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from heapq import heappush, heappushpop
from typing import Any, Final, Literal

from audit.log import answer_prints
from audit.log.calls import CHUNK, MAX_CALL
from audit.log.receipt import Receipt
from audit.log.walk import between, parsed
from audit.storage.store import Reader, StoredLeaf
from audit.tree.merkle import leaf_hash

MOST: Final = 20
"""Most answers in the result of a search, the best first."""
_PRINTS: Final = re.compile(
    rb'"answer_prints":\{"letters":[0-9]{1,16},"period":"([0-9]{4}-[0-9]{2})","prints":"([A-Za-z0-9_-]{16,256})",'
    rb'"scheme":"' + answer_prints.SCHEME.encode() + rb'"'
)
"""Form in canonical JSON, which sorts members by name."""

Verdict = Literal["found", "not_found", "too_short", "unsearched"]


@dataclass(frozen=True, slots=True)
class FoundAnswer:
    """A matching answer.

    Attributes:
        seq, receipt: number and receipt of the record that closes the call.
        project, key_id: from the intent record, None if it is too far from the closing record.
        common: number of the answer's `prints` fingerprints that the text has.
        chance: upper bound on the probability that an answer with another text has as many in common.
    """

    seq: int
    ts: str
    request_id: str
    project: str | None
    key_id: str | None
    model: str | None
    outcome: str
    letters: int
    common: int
    prints: int
    chance: float
    receipt: str


@dataclass(frozen=True, slots=True)
class AnswerSearch:
    """Result of a search.

    Attributes:
        answers: the best matches, best first. matches: number of all matches.
        compared: number of answers with fingerprints in records from `first` to before `end`.
        letters: letters and digits in the text.
        periods, unsearched_periods: months with a salt, and months whose salt was destroyed.
    """

    verdict: Verdict
    answers: tuple[FoundAnswer, ...]
    matches: int
    compared: int
    first: int
    end: int
    letters: int
    periods: tuple[str, ...]
    unsearched_periods: tuple[str, ...]


def find_answers(
    reader: Reader,
    tenant: str,
    text: str,
    salts: Mapping[str, bytes],
    *,
    since: str | None = None,
    until: str | None = None,
) -> AnswerSearch:
    """Return the answers that have a passage in common with `text`. salts: by period. `since`, `until`: bounds of the
    time at which an answer ended, as for `first_at`. Raises StoreError."""
    letters, (first, end) = len(answer_prints.letters_of(text)), between(reader, tenant, since, until)
    periods = tuple(sorted(salts))
    if letters < answer_prints.SHORTEST:
        return AnswerSearch("too_short", (), 0, 0, first, end, letters, periods, ())
    wanted = {period: answer_prints.shingles_of(salt, text) for period, salt in salts.items()}
    best: list[tuple[float, int, int, int, StoredLeaf]] = []
    matches = compared = 0
    unsearched: set[str] = set()
    for leaf in reader.leaves(tenant, first, end) if end > first else ():
        if (found := _PRINTS.search(leaf.payload)) is None:
            continue
        period = found[1].decode()
        if (shingles := wanted.get(period)) is None:
            unsearched.add(period)
            continue
        compared += 1
        prints = answer_prints.read(found[2].decode())
        common = len(shingles.intersection(prints))
        if common >= answer_prints.LEAST and common >= answer_prints.needed(len(prints), len(shingles), end - first):
            matches += 1
            entry = (common / len(prints), leaf.seq, common, len(shingles), leaf)
            (heappush if len(best) < MOST else heappushpop)(best, entry)
    ordered = sorted(best, key=lambda entry: entry[:2], reverse=True)
    answers = tuple(_described(reader, tenant, leaf, common, hashes) for _, _, common, hashes, leaf in ordered)
    verdict: Verdict = "found" if matches else "not_found" if compared or not unsearched else "unsearched"
    return AnswerSearch(verdict, answers, matches, compared, first, end, letters, periods, tuple(sorted(unsearched)))


def _described(reader: Reader, tenant: str, leaf: StoredLeaf, common: int, shingles: int) -> FoundAnswer:
    record = parsed(leaf.payload)
    said = record["answer_prints"]
    prints = len(answer_prints.read(said["prints"]))
    begun = _intent(reader, tenant, leaf.seq, str(record.get("request_id", "")))
    return FoundAnswer(
        seq=leaf.seq,
        ts=str(record.get("ts", "")),
        request_id=str(record.get("request_id", "")),
        project=begun.get("project"),
        key_id=begun.get("key_id"),
        model=record.get("model_served"),
        outcome=str(record.get("type", "")).removeprefix("inference."),
        letters=int(said["letters"]),
        common=common,
        prints=prints,
        chance=answer_prints.chance(common, prints, shingles),
        receipt=str(Receipt(tenant, leaf.seq, leaf_hash(leaf.payload))),
    )


def _intent(reader: Reader, tenant: str, seq: int, request_id: str) -> Mapping[str, Any]:
    """Return the intent record of a call from the MAX_CALL records before `seq`; empty if it is not among them."""
    wanted, end = request_id.encode(), seq
    while request_id and end > max(0, seq - MAX_CALL):
        start = max(0, end - CHUNK)
        for leaf in reader.leaves(tenant, start, end):
            if wanted in leaf.payload and b'"type":"inference.accepted"' in leaf.payload:
                record = parsed(leaf.payload)
                if record.get("request_id") == request_id:
                    return record
        end = start
    return {}
