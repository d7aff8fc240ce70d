"""Make the evaluation set: ``python -m tests.data.redaction.make FILE.jsonl [--seed N] [--rounds N] [--held-out]``.

One JSON object a line: id, lang, variant, text, spans (character offsets, end exclusive). The same arguments give the
same file.
"""

import json
import random
import unicodedata
from collections.abc import Iterator

from tests.data.redaction import phrases
from tests.data.redaction.filling import Case, Spans, filled, options, write
from tests.data.redaction.negatives import clean_text, slip
from tests.data.redaction.numbers import NUMBERS, number
from tests.data.redaction.values import value

LABELS = {"name": "PERSON", "address": "ADDRESS", "email": "EMAIL", "phone": "PHONE", "iban": "IBAN",
          "card": "CREDIT_CARD", "ip": "IP", "mac": "MAC", "imei": "IMEI", "vat": "VAT", "dob": "DATE_OF_BIRTH",
          "secret": "SECRET", "password": "SECRET"}  # fmt: skip
VARIANTS = ("plain", "json", "csv", "grouped", "nbsp", "zero-width", "full-width", "look-alike", "decomposed")
_NUMERIC = frozenset({"id", "iban", "card", "phone", "imei"})


def cases(seed: int, rounds: int, *, held_out: bool) -> Iterator[Case]:
    """Every kind of national number in a sentence and in a machine's shape, each in a variant, `rounds` times; other
    sentences of its language; then as many texts without personal data."""
    rng = random.Random(f"{seed}-{held_out}")
    sentences = phrases.HELD_OUT if held_out else phrases.TUNED
    machine = phrases.MACHINE_HELD_OUT if held_out else phrases.MACHINE_TUNED
    for turn in range(rounds):
        for kind, spec in NUMBERS.items():
            own = sentences[spec.lang[:2]]
            for shape in (own[0], rng.choice(own[1:]), rng.choice(machine)):
                variant = rng.choice(VARIANTS)
                text, spans = _filled(shape, kind, variant, rng, held_out=held_out)
                text, spans = _framed(text, spans, variant)
                yield Case(f"{kind}-{turn}-{len(text)}-{variant}", spec.lang, variant, text, spans)
        for index in range(40):
            yield Case(f"clean-{turn}-{index}", "mul", "clean", clean_text(held_out, rng), ())
        for index in range(20):
            lang, kind, text = slip(rng)
            yield Case(f"slip-{kind}-{turn}-{index}", lang, "wrong check digit", text, ())


def _filled(shape: str, kind: str, variant: str, rng: random.Random, *, held_out: bool) -> tuple[str, Spans]:
    spec = NUMBERS[kind]
    called = rng.choice(spec.held_out if held_out else spec.names)

    def fill(place: str) -> tuple[str, str | None]:
        if place == "called":
            return called, None
        if place == "called_key":
            return "".join(c if c.isalnum() else "_" for c in _plain(called).lower()).strip("_"), None
        raw = number(kind, rng) if place == "id" else value(place, spec.lang, rng)
        return _written(raw, place, variant, rng), LABELS.get(place, kind.upper())

    return filled(shape, fill)


def _written(raw: str, label: str, variant: str, rng: random.Random) -> str:
    match variant:
        case "grouped" if label in ("id", "card", "iban") and raw.replace(" ", "").isalnum():
            compact = raw.replace(" ", "")
            size = rng.choice([3, 4])
            return " ".join(compact[i : i + size] for i in range(0, len(compact), size))
        case "nbsp":
            return raw.replace(" ", rng.choice(["\u00a0", "\u202f"]))
        case "zero-width" if label != "address":
            return "\u200b".join(raw)
        case "full-width" if label != "address":
            return "".join(
                chr(ord(c) + 0xFEE0) if "!" <= c <= "~" and (label != "email" or c.isalnum()) else c for c in raw
            )
        case "look-alike" if label in _NUMERIC:
            swap = {"0": "O", "1": rng.choice("lI")}
            at = [i for i, c in enumerate(raw) if c in swap and i > 3 and i < len(raw) - 1]
            chosen = set(rng.sample(at, min(2, len(at))))
            return "".join(swap[c] if i in chosen else c for i, c in enumerate(raw))
        case "decomposed":
            return unicodedata.normalize("NFD", raw)
        case _:
            return raw


def _framed(text: str, spans: Spans, variant: str) -> tuple[str, Spans]:
    if variant == "csv":
        return f"17;{text};open", tuple((start + 3, end + 3, label) for start, end, label in spans)
    if variant != "json":
        return text, spans
    framed, at, moved = '{"note": "', 0, []
    for start, end, label in spans:
        framed += json.dumps(text[at:start], ensure_ascii=False)[1:-1]
        inside = json.dumps(text[start:end], ensure_ascii=False)[1:-1]
        moved.append((len(framed), len(framed) + len(inside), label))
        framed += inside
        at = end
    return framed + json.dumps(text[at:], ensure_ascii=False)[1:-1] + '"}', tuple(moved)


def _plain(text: str) -> str:
    return "".join(c for c in unicodedata.normalize("NFD", text) if not unicodedata.combining(c))


def main() -> None:
    parser = options(__doc__, seed=2026, rounds=12)
    parser.add_argument("--held-out", action="store_true")
    asked = parser.parse_args()
    write(asked.file, cases(asked.seed, asked.rounds, held_out=asked.held_out))


if __name__ == "__main__":
    main()
