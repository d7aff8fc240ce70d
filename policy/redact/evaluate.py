"""How well redaction finds what a labelled text holds: recall, right labels, texts touched for nothing."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from policy.redact.detectors import DETECTORS, Detector, find_spans
from policy.redact.normalise import normalise

Labelled = tuple[int, int, str]


@dataclass(frozen=True, slots=True)
class Score:
    """``found`` of ``gold`` spans were met by a finding, ``named`` of them under the right label (ids: right kind)."""

    gold: int
    found: int
    named: int

    @property
    def recall(self) -> float:
        return self.found / self.gold if self.gold else 1.0

    @property
    def right_label(self) -> float:
        return self.named / self.gold if self.gold else 1.0


@dataclass(frozen=True, slots=True)
class Evaluation:
    """``by_label`` and ``by_variant``: scores. ``clean``: texts without spans, of which ``touched`` had a finding."""

    by_label: Mapping[str, Score]
    by_variant: Mapping[str, Score]
    clean: int
    touched: int
    missed: Sequence[str] = field(default=())


def evaluate(
    cases: Iterable[tuple[str, str, str, Sequence[Labelled]]], detectors: Sequence[Detector] = DETECTORS
) -> Evaluation:
    """Score `detectors` on (id, variant, text, spans); a span counts as found where a finding covers all of it.

    Raises RedactionError if a detector fails.
    """
    counts = {"label": Counter[tuple[str, str]](), "variant": Counter[tuple[str, str]]()}
    clean = touched = 0
    missed: list[str] = []
    for name, variant, text, gold in cases:
        found = find_labelled(text, detectors)
        if not gold:
            clean += 1
            touched += bool(found)
        for start, end, label in gold:
            covering = [span for span in found if span[0] <= start and end <= span[1]]
            is_named = any(span[2] == label for span in covering)
            if not is_named:
                missed.append(name)
            for table, key in (("label", label), ("variant", variant)):
                counts[table][key, "gold"] += 1
                counts[table][key, "found"] += bool(covering)
                counts[table][key, "named"] += is_named
    by_label, by_variant = (_scores(counts[table]) for table in ("label", "variant"))
    return Evaluation(by_label, by_variant, clean, touched, tuple(missed))


def find_labelled(text: str, detectors: Sequence[Detector] = DETECTORS) -> list[Labelled]:
    """Findings as (start, end, label) in the text as it was written."""
    view = normalise(text)
    return [(*view.span(span.start, span.end), span.label) for span in find_spans(view.text, 0, detectors)]


def _scores(counts: Counter[tuple[str, str]]) -> Mapping[str, Score]:
    keys = sorted({key for key, _ in counts})
    return MappingProxyType(
        {key: Score(counts[key, "gold"], counts[key, "found"], counts[key, "named"]) for key in keys}
    )
