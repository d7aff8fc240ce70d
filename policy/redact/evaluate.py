"""Evaluation of redaction on labelled texts: recall, precision, correct labels, false positives."""

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
    """A labelled text.

    ``spans``: (start, end, label) in characters, end exclusive; empty for a text without personal data.
    """

    id: str
    lang: str
    variant: str
    text: str
    spans: tuple[Labelled, ...]


@dataclass(frozen=True, slots=True)
class Score:
    """Counts of labelled spans and findings.

    Attributes:
        gold: labelled spans.
        found: labelled spans covered by findings.
        named: labelled spans covered by findings of which one has the correct label.
        findings: findings with this label, or in texts of this language or variant.
        right: findings that overlap a labelled span of the same label.
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
    """Scores of a whole data set.

    Attributes:
        total, by_label, by_lang, by_variant: scores of all labels.
        structured_by_variant: scores by variant of all labels except names and addresses.
        names_by_lang: scores of names by language.
        texts: number of texts.
        clean: number of texts without labelled spans.
        touched: number of clean texts with a finding.
        micros: CPU microseconds per 1,000 characters.
        missed: ids of texts with a span that was not found or got a wrong label, and of clean texts with a finding.
        unknown: labels that redaction does not know, with their number of spans. Such a span can be found, but never
            correctly labelled.
    """

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
    """Return findings as (start, end, label), with offsets in the original text."""
    view = as_read(text)
    return [(*view.span(span.start, span.end), span.label) for span in find_spans(view.text, 0, detectors)]


def read_cases(lines: Iterable[str]) -> list[Case]:
    """Parse cases from JSON lines ``{id, lang, text, variant?, spans: [{start, end, label}]}``.

    Raises RedactionError with the number of an invalid line, never with its text.
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
    """Score `find` on labelled cases and measure its CPU time.

    The time is that of the fastest of `passes` passes over all texts, because other load on a machine can only slow a
    pass down.

    A span is found if findings cover every letter and digit of it, and correctly labelled if one of them has its label
    (see `labels`). A finding is correct if it overlaps a span of its label. Raises RedactionError if `find` does.
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
        scores["total"].get("", Score()),
        scores["label"],
        scores["lang"],
        scores["variant"],
        scores["structured"],
        scores["names"],
        texts,
        clean,
        touched,
        micros,
        tuple(missed),
        MappingProxyType(dict(unknown)),
    )


def _timed(texts: list[str], find: Find, passes: int) -> tuple[list[Sequence[Labelled]], float]:
    """Return the findings of each text and the CPU seconds of the fastest pass, without the cost of scoring."""
    warm()
    gc.collect()  # free what reading the texts left, so that a collection does not fall into the measured time
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
    """Return whether findings cover every letter and digit of a span, and whether one also has its label."""
    start, end, label = span
    over = [each for each in found if each[0] < end and start < each[1]]
    covered = all(any(a <= at < b for a, b, _ in over) for at in range(start, end) if text[at].isalnum())
    return covered, covered and any(is_right(each[2], label) for each in over)


class _Tally:
    """Counters of every table, by key and field of `Score`."""

    def __init__(self) -> None:
        self._tables: dict[str, Counter[tuple[str, str]]] = {
            name: Counter() for name in ("total", "label", "lang", "variant", "structured", "names")
        }

    def add(self, label: str, lang: str, variant: str, **parts: int) -> None:
        """Count a span or finding in every table it belongs to. ``parts``: fields of `Score`, each 0 or 1."""
        for table, key in _places(label, lang, variant):
            self._tables[table].update({(key, part): int(count) for part, count in parts.items()})

    def scores(self) -> dict[str, Mapping[str, Score]]:
        """Return the scores by table and key."""
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
