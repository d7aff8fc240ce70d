"""How well redaction finds what labelled texts hold: recall, precision, right labels, texts touched for nothing."""

import gc
import json
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import NamedTuple

from policy.errors import RedactionError
from policy.redact.detectors.detectors import DETECTORS, Detector, find_spans, warm
from policy.redact.labels import PERSON, canonical, is_known, is_right
from policy.redact.text.json_text import as_read

Labelled = tuple[int, int, str]
Find = Callable[[str], Sequence[Labelled]]


class Case(NamedTuple):
    """A labelled text. ``spans``: (start, end, label) in characters, end exclusive; none in a clean text."""

    id: str
    lang: str
    variant: str
    text: str
    spans: tuple[Labelled, ...]


@dataclass(frozen=True, slots=True)
class Score:
    """``found`` of ``gold`` spans were covered by findings, ``named`` of them under the right label.

    ``findings`` under this label (by the language or variant of their text, in those tables), ``right`` of them on a
    span of that label.
    """

    gold: int = 0
    found: int = 0
    named: int = 0
    findings: int = 0
    right: int = 0

    @property
    def recall(self) -> float:
        return self.found / self.gold if self.gold else 1.0

    @property
    def right_label(self) -> float:
        return self.named / self.gold if self.gold else 1.0

    @property
    def precision(self) -> float:
        return self.right / self.findings if self.findings else 1.0

    @property
    def f1(self) -> float:
        both = self.precision + self.right_label
        return 2 * self.precision * self.right_label / both if both else 0.0


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Scores by label, language and variant, of what has a structure (all but names and addresses) by variant, and of
    names by language. ``clean``: texts without spans, of which
    ``touched`` had a finding. ``micros``: CPU a 1,000 characters. ``missed``: ids of texts with a span not found or
    misnamed, and of clean ones touched. ``unknown``: labels that redaction has no name for, and how many spans bear
    them: what covers one counts as found, never as rightly named."""

    total: Score
    by_label: Mapping[str, Score]
    by_lang: Mapping[str, Score]
    by_variant: Mapping[str, Score]
    structured_by_variant: Mapping[str, Score]
    names_by_lang: Mapping[str, Score]
    texts: int
    clean: int
    touched: int
    micros: float
    missed: Sequence[str] = field(default=())
    unknown: Mapping[str, int] = field(default_factory=lambda: MappingProxyType({}))


def find_labelled(text: str, detectors: Sequence[Detector] = DETECTORS) -> list[Labelled]:
    """Findings as (start, end, label) in the text as it was written."""
    view = as_read(text)
    return [(*view.span(span.start, span.end), span.label) for span in find_spans(view.text, 0, detectors)]


def read_cases(lines: Iterable[str]) -> list[Case]:
    """Cases from JSON lines ``{id, lang, text, variant?, spans: [{start, end, label}]}``.

    Raises RedactionError naming the line that is none, never its text.
    """
    cases = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            read = json.loads(line)
            text = read["text"]
            spans = tuple((int(span["start"]), int(span["end"]), str(span["label"])) for span in read["spans"])
            case = Case(
                str(read.get("id", number)), str(read.get("lang", "")), str(read.get("variant") or "plain"), text, spans
            )
        except (ValueError, KeyError, TypeError, AttributeError):
            raise RedactionError(f"line {number} is not a labelled text; write an object with text and spans") from None
        if not isinstance(text, str) or not all(0 <= start < end <= len(text) for start, end, _ in spans):
            raise RedactionError(f"line {number} has spans outside its text; correct start and end")
        cases.append(case)
    return cases


def evaluate(
    cases: Iterable[tuple[str, str, str, str, Sequence[Labelled]]], find: Find = find_labelled, *, passes: int = 1
) -> Evaluation:
    """Score `find` on cases, and time it: the quickest of so many passes over all of them, since what else a machine
    does makes a pass slower and never quicker.

    A span counts as found where findings cover every letter and digit of it, as named where one of them has its label
    (see `labels`), and a finding as right where it meets a span of its label. Raises RedactionError if `find` does.
    """
    cases = list(cases)
    findings, seconds = _timed([text for _, _, _, text, _ in cases], find, passes)
    tally = _Tally()
    texts = clean = touched = characters = 0
    missed: list[str] = []
    unknown: Counter[str] = Counter()
    for (name, lang, variant, text, spans), found in zip(cases, findings, strict=True):
        texts += 1
        characters += len(text)
        if not spans:
            clean += 1
            touched += bool(found)
        gold = [(start, end, canonical(label)) for start, end, label in spans]
        unknown.update(written for _, _, written in spans if not is_known(canonical(written)))
        is_missed = bool(found) and not gold
        for span in gold:
            covered, named = _is_found(text, span, found)
            is_missed |= not named
            tally.add(span[2], lang, variant, gold=1, found=covered, named=named)
        for start, end, label in found:
            right = any(a < end and start < b and is_right(label, asked) for a, b, asked in gold)
            tally.add(label, lang, variant, findings=1, right=right)
        if is_missed:
            missed.append(name)
    scores = tally.scores()
    micros = seconds / characters * 1e9 if characters else 0.0
    return Evaluation(
        scores["total"].get("", Score()), scores["label"], scores["lang"], scores["variant"], scores["structured"],
        scores["names"],
        texts,
        clean,
        touched,
        micros,
        tuple(missed),
        MappingProxyType(dict(unknown)),
    )  # fmt: skip


def _timed(texts: list[str], find: Find, passes: int) -> tuple[list[Sequence[Labelled]], float]:
    """What is found in each text, and seconds of CPU; apart from the scores, whose work would be in the way."""
    warm()
    gc.collect()  # what reading the texts left behind is not for the detectors' time
    findings: list[Sequence[Labelled]] = []
    quickest = float("inf")
    for _ in range(passes):
        seconds, findings = 0.0, []
        for text in texts:
            begin = time.process_time()
            found = find(text)
            seconds += time.process_time() - begin
            findings.append(found)
        quickest = min(quickest, seconds)
    return findings, quickest


def _is_found(text: str, span: Labelled, found: Sequence[Labelled]) -> tuple[bool, bool]:
    """Whether findings cover every letter and digit of a labelled span, and whether one of them has its label too."""
    start, end, label = span
    over = [each for each in found if each[0] < end and start < each[1]]
    covered = all(any(a <= at < b for a, b, _ in over) for at in range(start, end) if text[at].isalnum())
    return covered, covered and any(is_right(each[2], label) for each in over)


class _Tally:
    """Counts of each table by key and part of a Score."""

    def __init__(self) -> None:
        self._tables: dict[str, Counter[tuple[str, str]]] = {
            name: Counter() for name in ("total", "label", "lang", "variant", "structured", "names")
        }

    def add(self, label: str, lang: str, variant: str, **parts: int) -> None:
        """Count a span or finding in every table it belongs to. ``parts``: fields of Score, each with 0 or 1."""
        for table, key in _places(label, lang, variant):
            self._tables[table].update({(key, part): int(count) for part, count in parts.items()})

    def scores(self) -> dict[str, Mapping[str, Score]]:
        """By table and key."""
        return {table: _scores(counts) for table, counts in self._tables.items()}


def _places(label: str, lang: str, variant: str) -> list[tuple[str, str]]:
    places = [("total", ""), ("label", label), ("lang", lang), ("variant", variant)]
    if label == PERSON:
        return [*places, ("names", lang)]
    return places if label == "address" else [*places, ("structured", variant)]


def _scores(counts: Counter[tuple[str, str]]) -> Mapping[str, Score]:
    parts = ("gold", "found", "named", "findings", "right")
    keys = sorted({key for key, _ in counts})
    return MappingProxyType({key: Score(*(counts[key, part] for part in parts)) for key in keys})
