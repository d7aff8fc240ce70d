"""Which answers on record a text is from, by their fingerprints (`audit.log.answer_prints`).

The whole log of a tenant is read once. A record is not checked here (`audit.log.walk`): its receipt proves it.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from heapq import heappush, heappushpop
from typing import Any, Final, Literal

from audit.log import answer_prints
from audit.log.calls import CHUNK, MAX_CALL
from audit.log.receipt import Receipt
from audit.log.walk import parsed, size_of
from audit.storage.store import Reader, StoredLeaf
from audit.tree.merkle import leaf_hash

MOST: Final = 20
"""Answers that a search names; the best ones where there are more."""
_PRINTS: Final = re.compile(
    rb'"answer_prints":\{"letters":[0-9]{1,16},"period":"([0-9]{4}-[0-9]{2})","prints":"([A-Za-z0-9_-]{16,256})",'
    rb'"scheme":"' + answer_prints.SCHEME.encode() + rb'"'
)
"""As canonical JSON has it: members in the order of their names."""

Verdict = Literal["found", "not_found", "too_short", "unsearched"]


@dataclass(frozen=True, slots=True)
class FoundAnswer:
    """seq: of the record that closes the call, with its `receipt`. project, key_id: of the intent, None where that is
    too far from it. common: fingerprints that the text has, of `prints`. chance: bound on the chance that an answer of
    another text has so many."""

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
    """answers: the best first. matches: how many there are. compared: answers with fingerprints, of records before
    `end`. letters: of the text. periods, unsearched_periods: whose salt there is, and whose there is not any more."""

    verdict: Verdict
    answers: tuple[FoundAnswer, ...]
    matches: int
    compared: int
    end: int
    letters: int
    periods: tuple[str, ...]
    unsearched_periods: tuple[str, ...]


def find_answers(reader: Reader, tenant: str, text: str, salts: Mapping[str, bytes]) -> AnswerSearch:
    """Return the answers that `text` has a passage of. salts: by period. Raises StoreError."""
    letters, end = len(answer_prints.letters_of(text)), size_of(reader, tenant)
    periods = tuple(sorted(salts))
    if letters < answer_prints.SHORTEST:
        return AnswerSearch("too_short", (), 0, 0, end, letters, periods, ())
    wanted = {period: answer_prints.shingles_of(salt, text) for period, salt in salts.items()}
    best: list[tuple[float, int, int, int, StoredLeaf]] = []
    matches = compared = 0
    unsearched: set[str] = set()
    for leaf in reader.leaves(tenant, 0, end) if end else ():
        if (found := _PRINTS.search(leaf.payload)) is None:
            continue
        period = found[1].decode()
        if (shingles := wanted.get(period)) is None:
            unsearched.add(period)
            continue
        compared += 1
        prints = answer_prints.read(found[2].decode())
        common = len(shingles.intersection(prints))
        if common >= answer_prints.LEAST and common >= answer_prints.needed(len(prints), len(shingles), end):
            matches += 1
            entry = (common / len(prints), leaf.seq, common, len(shingles), leaf)
            (heappush if len(best) < MOST else heappushpop)(best, entry)
    ordered = sorted(best, key=lambda entry: entry[:2], reverse=True)
    answers = tuple(_described(reader, tenant, leaf, common, hashes) for _, _, common, hashes, leaf in ordered)
    verdict: Verdict = "found" if matches else "not_found" if compared or not unsearched else "unsearched"
    return AnswerSearch(verdict, answers, matches, compared, end, letters, periods, tuple(sorted(unsearched)))


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
    """Return the record that opened a call, of the MAX_CALL records before `seq`; empty if it is not among them."""
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
