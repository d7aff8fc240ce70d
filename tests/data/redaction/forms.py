"""The forms set: ``python -m tests.data.redaction.forms FILE.jsonl [--seed N] [--rounds N]``.

One record of a person, in every layout that forms, tables, pages, programs and letters have for it, under the headings
of each language and under those of programs, with the labels that other tools give; then texts of figures that name
nobody (`forms_words`). Written by somebody who knew the task and not the detectors.
"""

import html
import json
import random
import re
from collections.abc import Callable, Iterator
from typing import NamedTuple
from urllib.parse import quote_plus

from tests.data.redaction import forms_words as words
from tests.data.redaction import office_words
from tests.data.redaction.filling import Case, Spans, filled, options, write
from tests.data.redaction.fresh import _code, _id, _value
from tests.data.redaction.values import LOCALES, people_of


class Field(NamedTuple):
    """A value with what a person (``name``) and a program (``key``) call it."""

    name: str
    key: str
    value: str
    label: str


class Layout(NamedTuple):
    """``field`` is repeated between ``begin`` and ``end``; `encode` writes a value as the layout needs it."""

    begin: str
    field: str
    between: str
    end: str
    encode: Callable[[str], str] = lambda value: value.replace("\n", ", ")


def _json(value: str) -> str:
    return json.dumps(value, ensure_ascii=False)[1:-1]


def _json_twice(value: str) -> str:
    return json.dumps(json.dumps(value)[1:-1])[1:-1]


def _quoted(value: str) -> str:
    return value.replace("\n", ", ").replace("'", "")


LAYOUTS: dict[str, Layout] = {
    "form": Layout("", "{name}: {value}", "\n", "\n"),
    "dots": Layout("", "{name} ......... {value}", "\n", "\n"),
    "own line": Layout("", "{name}\n{value}", "\n\n", "\n"),
    "one line": Layout("", "{name} {value}", "; ", "."),
    "brackets": Layout("", "{value} ({name})", ", ", ""),
    "quoted": Layout("Am 3. Mai:\n", "> {name}: {value}", "\n", "\n"),
    "bullets": Layout("", "* **{name}:** `{value}`", "\n", ""),
    "emphasis": Layout("", "{name}: _{value}_", ", ", "."),
    "strong": Layout("", "{name}: __{value}__", "\n", ""),
    "chat": Layout("", "Agent: {name}?\nUser: {value}", "\n", ""),
    "definitions": Layout("<dl>", "<dt>{name}</dt><dd>{value}</dd>", "", "</dl>", html.escape),
    "inputs": Layout("", '<label>{name}</label><input name="{key}" value="{value}"/>', "\n", "", html.escape),
    "json": Layout("{{", '"{key}": "{value}"', ", ", "}}", _json),
    "json list": Layout("[", '{{"field": "{name}", "value": "{value}"}}', ", ", "]", _json),
    "json in json": Layout('{{"arguments": "{{', '\\"{key}\\": \\"{value}\\"', ", ", '}}"}}', _json_twice),
    "xml": Layout("<Person>", "<{key}>{value}</{key}>", "", "</Person>", html.escape),
    "attributes": Layout("<person", ' {key}="{value}"', "", "/>", html.escape),
    "yaml": Layout("customer:\n", "  {key}: '{value}'", "\n", "\n", _quoted),
    "toml": Layout("[customer]\n", '{key} = "{value}"', "\n", "\n"),
    "log": Layout("May 12 08:14:55 web-1 app[4711]: created", ' {key}="{value}"', "", ""),
    "query": Layout("GET /people?", "{key}={value}", "&", " HTTP/1.1", quote_plus),
    "condition": Layout("SELECT * FROM person WHERE ", "{key} = '{value}'", " AND ", ";", _quoted),
    "arrows": Layout("$p = [", "'{key}' => '{value}'", ", ", "];", _quoted),
    "latex": Layout("", "{name} & {value} \\\\", "\n", ""),
}  # fmt: skip
# Heading, between cells, before a row, after it, after all.
TABLES: dict[str, tuple[str, str, str, str, str]] = {
    "commas": ("{heads}\n", ",", "", "\n", ""), "semicolons": ("{heads}\n", ";", "", "\n", ""),
    "tabs": ("{heads}\n", "\t", "", "\n", ""), "bars": ("{heads}\n", "|", "", "\n", ""),
    "markdown": ("| {heads} |\n|---|---|---|---|\n", " | ", "| ", " |\n", ""),
    "html table": ("<table><tr><th>{heads}</th></tr>", "</td><td>", "<tr><td>", "</td></tr>", "</table>"),
    "rows of sql": ("INSERT INTO person ({heads}) VALUES\n", "', '", "('", "'),\n", ""),
}  # fmt: skip
_TABLE_ENCODES = {"html table": html.escape, "rows of sql": _quoted}
VARIANTS = (*LAYOUTS, *TABLES)
_LABELS = {"address": "ADDRESS", "email": "EMAIL_ADDRESS", "phone": "PHONE_NUMBER", "iban": "IBAN_CODE",
           "bic": "SWIFT_CODE", "dob": "DATE_OF_BIRTH",
           "plate": "LICENSE_PLATE", "card": "CREDIT_CARD_NUMBER", "vat": "VAT_ID"}  # fmt: skip
_FIGURES = re.compile(r"\{(d|n|h|U|t|c|ean|uuid)([0-9]*)\}")
_SELDOM = frozenset({"us_ssn", "gb_nhs", "gb_nino", "cy_id"})  # other countries', or of a name that says too little


def cases(seed: int, rounds: int) -> Iterator[Case]:
    """Every kind of national number in five layouts a round, beside three other values; every text of figures twice."""
    rng = random.Random(f"forms-{seed}")
    for turn in range(rounds):
        for kind, (lang, called, keys) in office_words.CALLED.items():
            if kind in _SELDOM:
                continue
            own = [name for name in called.split("|") if not re.search(r"[A-Z][a-z]+(?:an|ish|ch) ", name)]
            for variant in rng.sample(VARIANTS, 5):
                names = (rng.choice(own), rng.choice(keys.split("|")))
                text, spans = _record(variant, kind, lang, names, rng)
                yield Case(f"{kind}-{turn}-{variant}", lang, variant, text, spans)
        for index, shape in enumerate(words.FIGURES * 2):
            text = _FIGURES.sub(lambda code: _figure(code[1], int(code[2] or 0), rng), shape)
            yield Case(f"clean-{turn}-{index}", "mul", "clean", text, ())


def _record(variant: str, kind: str, lang: str, names: tuple[str, str], rng: random.Random) -> tuple[str, Spans]:
    others = rng.sample(sorted(words.HEADINGS[lang[:2]]), 3)
    at = rng.randrange(4)
    rows = [
        [_field(label, kind, lang, names, rng) for label in (*others[:at], "id", *others[at:])]
        for _ in range(2 if variant in TABLES else 1)
    ]
    values = {f"v{row}_{column}": field for row, fields in enumerate(rows) for column, field in enumerate(fields)}
    encode = LAYOUTS[variant].encode if variant in LAYOUTS else _TABLE_ENCODES.get(variant, LAYOUTS["form"].encode)

    def fill(place: str) -> tuple[str, str]:
        return encode(values[place].value), values[place].label

    return filled(_table(variant, rows) if variant in TABLES else _layout(LAYOUTS[variant], rows[0]), fill)


def _layout(layout: Layout, fields: list[Field]) -> str:
    parts = [
        layout.field.replace("{name}", field.name).replace("{key}", field.key).replace("{value}", f"{{v0_{column}}}")
        for column, field in enumerate(fields)
    ]
    return layout.begin + layout.between.join(parts) + layout.end


def _table(variant: str, rows: list[list[Field]]) -> str:
    heading, between, before, after, end = TABLES[variant]
    is_named = variant != "rows of sql"
    heads = [field.name.replace(",", "") if is_named else field.key for field in rows[0]]
    glue = {"html table": "</th><th>", "rows of sql": ", "}.get(variant, between)
    quote = '"' if variant == "commas" else ""
    body = "".join(
        before + between.join(f"{quote}{{v{row}_{column}}}{quote}" for column in range(len(fields))) + after
        for row, fields in enumerate(rows)
    )
    return heading.replace("{heads}", glue.join(heads)) + body + end


def _field(label: str, kind: str, lang: str, names: tuple[str, str], rng: random.Random) -> Field:
    if label == "id":
        return Field(
            *names,
            _id(kind, rng) if kind not in ("li_ahv", "li_peid") else _id_of_liechtenstein(kind, rng),
            kind.upper(),
        )
    heading = words.HEADINGS[lang[:2]][label]
    if label == "plate":
        people = people_of(lang if lang in LOCALES else "en", rng)
        made = people.license_plate() if hasattr(people, "license_plate") else "AB-123-CD"
        made = made if re.search("[A-Z]", made) else "AB-123-CD"  # Faker's of digits alone are nobody's
    else:
        made = _value(label, kind, lang, rng)
    return Field(heading, rng.choice(words.KEYS[label]), made, _LABELS[label])


def _id_of_liechtenstein(kind: str, rng: random.Random) -> str:
    return _id("ch_ahv", rng) if kind == "li_ahv" else str(rng.randrange(100_000, 99_999_999))


def _figure(kind: str, length: int, rng: random.Random) -> str:
    match kind:
        case "d":
            return "".join(rng.choice("0123456789") for _ in range(length))
        case "h":
            return _code("hex", length, rng)
        case "t" | "c":
            return f"{int(_code('n', length, rng)):,}".replace(",", "." if kind == "t" else ",")
        case _:
            return _code(kind, length, rng)


def main() -> None:
    asked = options(__doc__, seed=2029, rounds=2).parse_args()
    write(asked.file, cases(asked.seed, asked.rounds))


if __name__ == "__main__":
    main()
