"""The office set: ``python -m tests.data.redaction.office FILE.jsonl [--seed N] [--rounds N]``.

Letters, chats, notes of doctors, forms, tables, dumps, logs and code, as an examiner would write them who knows what
the numbers are called and has not read the detectors: every name of every number (`office_words`) in its country's
language, in English and in the shapes of programs. Values and spellings are those of `fresh` and `values`.
"""

import random
import re
from collections.abc import Iterator

from policy.redact.ids.kinds import IDS
from tests.data.redaction import fresh, fresh_words
from tests.data.redaction import office_words as words
from tests.data.redaction.filling import Case, Spans, filled, options, write
from tests.data.redaction.fresh import written_as
from tests.data.redaction.make import LABELS
from tests.data.redaction.numbers import NUMBERS, valid, with_a_slip

VARIANTS = ("plain", "plain", "plain", "nbsp", "zero-width", "full-width", "regrouped", "look-alike", "json-escaped")
_CODE = re.compile(r"\{([a-zA-Z]+?)([0-9]*)\}")
_SHAPES = {
    "cy_id": ("999999", "9999999", "99999999"), "li_peid": ("99999", "999999", "9999999", "99999999", "999999999",
    "999 999", "999.999", "999-999"),
    "li_ahv": ("756.9999.9999.99",),
}  # fmt: skip
_SAME = {"li_ahv": "ch_ahv"}


def cases(seed: int, rounds: int) -> Iterator[Case]:
    """Every name of every number once a round, in prose of its country, in English, and as programs write it."""
    rng = random.Random(f"office-{seed}")
    for turn in range(rounds):
        for kind, (lang, called, keys) in words.CALLED.items():
            own, english = words.PROSE[lang[:2]], words.PROSE["en"]
            named = called.split("|")
            shapes = [(rng.choice(own[:3] + own[4:]), name, lang) for name in named]
            shapes += [(rng.choice(english[:3] + english[4:]), rng.choice(named), "en"), (own[3], named[0], lang)]
            shapes += [(rng.choice(words.MACHINE), key, lang) for key in keys.split("|")]
            for number, (shape, name, spoken) in enumerate(shapes):
                variant = rng.choice(VARIANTS)
                text, spans = _filled(shape, kind, lang, name, variant, rng)
                yield Case(f"{kind}-{turn}-{number}-{variant}", spoken, variant, text, spans)
            if (wrong := with_a_slip(_id(kind, rng), IDS[_SAME.get(kind, kind)].is_valid)) is not None:
                text = f"{named[0]}: {wrong}"
                yield Case(f"slip-{kind}-{turn}", lang, "wrong check digit", text, ())
        for index, clean in enumerate(words.CLEAN):
            text = _CODE.sub(lambda code: _code(code[1], int(code[2] or 0), rng), clean)
            yield Case(f"clean-{turn}-{index}", "mul", "clean", text, ())


def _code(kind: str, length: int, rng: random.Random) -> str:
    return f"{rng.randint(10, 28)}" if kind == "d" else fresh._code(kind, length, rng)


def _id(kind: str, rng: random.Random) -> str:
    shapes = [
        *_SHAPES.get(kind, fresh_words.SHAPES.get(kind, ())),
        *((NUMBERS[kind].shape,) if kind in NUMBERS else ()),
    ]
    return valid(rng.choice(shapes), IDS[_SAME.get(kind, kind)].is_valid, rng)


def _filled(shape: str, kind: str, lang: str, name: str, variant: str, rng: random.Random) -> tuple[str, Spans]:
    def fill(place: str) -> tuple[str, str | None]:
        match place:
            case "called" | "key":
                return (name if place == "key" or "_" not in name else name.replace("_", " ")), None
            case "n5":
                return _code("n", 5, rng), None
            case _:
                raw = _id(kind, rng) if place == "id" else fresh._value(place, kind, lang, rng)
                label = kind.upper() if place == "id" else LABELS.get(place, place.upper())
                return written_as(raw, place, variant, rng), label

    return filled(shape, fill)


def main() -> None:
    asked = options(__doc__, seed=2028, rounds=1).parse_args()
    write(asked.file, cases(asked.seed, asked.rounds))


if __name__ == "__main__":
    main()
