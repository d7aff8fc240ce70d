"""European licence plates. They have no check digit, so they count only next to their name."""

import re
from collections.abc import Iterator

from policy.redact.context.fields import columns_at, places
from policy.redact.context.figures import is_score
from policy.redact.text.reading import Reading

_NAME = re.compile(
    r"(?:valst\. ?nr|numru tal-plejt|(?:kfz|auto)?[ -]?kennzeichen|(?:number|licen[cs]e|registration|car"
    r"|vehicle)[ _-]?plates?|numberplate|immatric\w*"
    r"|(?:vehicle|car)?[ _-]?registration[ _](?:number|no|mark)|vrn|vrm|plaque\w*|plate[ _]?(?:no|number|nr)"
    r"|plate(?=[\"']?[:=>;,|\t\n<]|[\"'] |\Z)|targ(?:a|he|ato|ata|hetta)\b"
    r"|matricula\w*|kenteken\w*|nummerplaat|rejestracyjn\w*|registreringsn\w*|reg\.? ?nr|skilt\w*|nummerplade"
    r"|rekisteri\w*"
    r"|rendszam\w*|spz|ecv|evidencn\w*|registracn\w*|(?:numar\w*|nr\.?) (?:de )?inmatriculare|inmatric\w*"
    r"|registracij\w*"
    r"|registrsk\w*|registarsk\w*|tablic\w*|valstybin\w*|numerio zenkl\w*|registreerimis\w*|numurzim\w*|valsts numur\w*"
    r"|numru tal plejt|reg nr|valst nr|auto ?numur\w*|auto ?numeri\w*|bilens? (?:reg|skilt)\w*|registrazzjoni"
    r"|skraningar\w*|bilnumer|uimhir chlarai?the\w*|πινακιδ\w*|(?:αριθμ\w* )?κυκλοφοριας|рег(?:истрацион\w*"
    r"|\.)(?: номер\w*)?)"
)
INITIALS = frozenset(
    [
        "kfz",
        "aut",
        "ken",
        "num",
        "lic",
        "reg",
        "imm",
        "inm",
        "pla",
        "tar",
        "mat",
        "rej",
        "rek",
        "ren",
        "spz",
        "ecv",
        "evi",
        "veh",
        "vrn",
        "vrm",
        "ski",
        "tab",
        "val",
        "sku",
        "skr",
        "bil",
        "uim",
        "πιν",
        "αρι",
        "κυκ",
        "рег",
        "car",
        "nr",
    ]
)
# At most four groups and nine characters, with a digit and a letter, or only digits if there are enough.
_LETTER = "A-Z\u00c4\u00d6\u00dc\u0391-\u03a9\u0410-\u042f\u0160\u017d\u010c"
_SIGNS = (
    rf"(?P<plate>(?=[{_LETTER} .-]{{0,9}}[0-9])(?=[0-9 .-]{{0,9}}[{_LETTER}]|[0-9]{{1,2}}-?[0-9]{{4}})"
    rf"(?>[{_LETTER}0-9]{{1,8}}(?:[ .•-][{_LETTER}0-9]{{1,6}}(?![a-z])){{0,3}}))"
)
_PRICE = r"(?![0-9.]{1,8} (?:EUR|USD|GBP|CHF|PLN|SEK|NOK|DKK|CZK|HUF|RON)(?![A-Z]))"
_PLATE = re.compile(rf"\W{{1,4}}(?:\w{{1,10}}\W{{1,4}}){{0,2}}?{_PRICE}{_SIGNS}(?![A-Za-z0-9_])")
# `A NEG-476 rendszámú autó`: the article is not part of the plate.
_BEFORE = re.compile(
    rf"(?<![A-Za-z0-9_-])(?:Az? (?=[A-Z]{{2}}))?{_SIGNS}[\"'»”)]{{0,2}}[ -]{{1,2}}(?:\((?:\w{{1,8}}\.? )?)?\Z"
)
# A complete field, followed by the end of a cell, a string, a tag or a line.
_FIELD = re.compile(rf"[\"'`* ]{{0,3}}{_PRICE}{_SIGNS}(?=[\"'`*\\]{{0,3}} {{0,2}}(?:[<;,|\t\n)\]}}]|\Z| |/>|[\"']))")
_LONGEST_BEFORE = 26
_NAMED_BEFORE = ("rendszam", "kennzeichen", "kenteken", "number plate", "plate")


def find_plates(text: str, start: int) -> Iterator[tuple[int, int]]:
    """Yield the spans of licence plates from `start` on."""
    reading = text if isinstance(text, Reading) else Reading(text)
    done = start
    for at in reading.words_from(INITIALS):
        if (
            at > 1 and reading[at - 1] == " " and reading[at - 2].isupper() and reading[at].isupper()
        ):  # `BEF SPZ 89T`: part of a number
            continue
        name = _NAME.match(reading.folded, at)
        if name is None:
            continue
        plate = _beside_its_name(reading, start, at, name)
        if plate is None:
            yield from _in_fields(reading, start, at, name.end())
        elif plate.start("plate") >= done and not is_score(reading, *plate.span("plate")):
            yield plate.span("plate")
            done = plate.end("plate")


def _beside_its_name(reading: Reading, start: int, at: int, name: re.Match[str]) -> re.Match[str] | None:
    """Return the plate directly before or after the name at `at`, on the same line."""
    is_bracketed = "(" in reading[max(0, at - 10) : at]
    plate = _BEFORE.search(reading, max(start, at - _LONGEST_BEFORE), at) if is_bracketed else None
    if not any(columns_at(reading, at)):
        plate = plate or _PLATE.match(reading, name.end())
    if plate and "\n" in plate[0]:  # on the next line, which `places` handles better
        plate = None
    if not plate and name[0].startswith(_NAMED_BEFORE):
        plate = _BEFORE.search(reading, max(start, at - _LONGEST_BEFORE), at)
    return plate


def _in_fields(reading: Reading, start: int, at: int, end: int) -> Iterator[tuple[int, int]]:
    """Yield plates that fill a field named by ``reading[at:end]``."""
    for first, last in places(reading, at, end):
        field = _FIELD.match(reading, first, last)
        if field and field.start("plate") >= start and not is_score(reading, *field.span("plate")):
            yield field.span("plate")
