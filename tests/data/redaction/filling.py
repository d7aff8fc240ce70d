"""Templates with places in braces, and the spans of the values that fill them: what every set is made with."""

import argparse
import json
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

_PLACE = re.compile(r"\{(\w+)\}|\{\{|\}\}")

Spans = tuple[tuple[int, int, str], ...]
# What a place is filled with, and the label of its span; None for a value that is nobody's.
Fill = Callable[[str], tuple[str, str | None]]


class Case(NamedTuple):
    """``spans``: (start, end, label) in characters of `text`, end exclusive; empty where nothing is to be found."""

    id: str
    lang: str
    variant: str
    text: str
    spans: Spans


def filled(shape: str, fill: Fill) -> tuple[str, Spans]:
    """`shape` with its places filled; ``{{`` and ``}}`` are braces."""
    text, at = "", 0
    spans: list[tuple[int, int, str]] = []
    for place in _PLACE.finditer(shape):
        text += shape[at : place.start()]
        at = place.end()
        if place[1] is None:
            text += place[0][0]
            continue
        written, label = fill(place[1])
        if label is not None:
            spans.append((len(text), len(text) + len(written), label))
        text += written
    return text + shape[at:], tuple(spans)


def as_json(case: Case) -> dict[str, Any]:
    spans = [{"start": start, "end": end, "label": label} for start, end, label in case.spans]
    return {"id": case.id, "lang": case.lang, "variant": case.variant, "text": case.text, "spans": spans}


def options(said: str | None, *, seed: int, rounds: int) -> argparse.ArgumentParser:
    """Of a command that writes a set: FILE, --seed, --rounds."""
    parser = argparse.ArgumentParser(description=said)
    parser.add_argument("file", type=Path)
    parser.add_argument("--seed", type=int, default=seed)
    parser.add_argument("--rounds", type=int, default=rounds)
    return parser


def write(path: Path, cases: Iterable[Case]) -> None:
    """JSON lines, as `domicile redact eval` reads them."""
    with path.open("w", encoding="utf-8") as file:
        for case in cases:
            file.write(json.dumps(as_json(case), ensure_ascii=False) + "\n")
