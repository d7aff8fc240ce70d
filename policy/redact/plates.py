"""Licence plates of Europe. They have no check digit, so they count only behind their name."""

import re
from collections.abc import Iterator

from policy.redact.normalise import contains_any, lowered

_NAME = re.compile(
    r"(?:(?:kfz-?|auto)?kennzeichen|(?:number|licen[cs]e|registration) ?plates?|immatriculation\w*"
    r"|plaque\w*"
    r"|targa|matr[íi]cula|kenteken\w*|rejestracyjn\w*|registreringsnummer|nummerplade|rekisteri\w*|rendsz[áa]m\w*"
    r"|[sš]pz|[ée][čc]v"
    r"|număr de înmatriculare|registracij\w*|registarsk\w*|πινακίδ\w*|рег(?:истрационен|\.) номер)"
)
# One of these is in every name; most texts hold none.
_STEMS = (
    "zeichen", "plate", "immatric", "plaque", "targa", "trícula", "tricula", "kenteken", "rejestra", "registr",
    "nummerplade",
"rekisteri", "rendsz", "spz", "špz", "čv", "cv", "év", "ev", "număr", "registar", "πινακ", "рег")  # fmt: skip
_PLATE = re.compile(
    r"\W{1,4}(?:\w{1,10}\W{1,2}){0,2}?"
    r"(?P<plate>[A-ZÄÖÜ]{1,3}[ -][A-Z]{1,2}[ -]?[0-9]{1,4}[EH]?|[A-Z]{2}[ -]?[0-9]{3}[ -]?[A-Z]{2}"
    r"|[0-9]{4}[ -]?[A-Z]{3}"
    r"|[A-Z0-9]{1,3}-[A-Z0-9]{2,3}-[A-Z0-9]{1,2}|[A-Z]{2,3}[ -]?[0-9][0-9A-Z]{2,4}"
    r"|[0-9][A-Z][0-9A-Z] ?[0-9]{4})(?![A-Za-z0-9_])",
)


def find_plates(text: str, start: int) -> Iterator[tuple[int, int]]:
    """Spans of licence plates from `start` on."""
    small = lowered(text)
    if not contains_any(small, _STEMS):
        return
    for name in _NAME.finditer(small, max(0, start - 64)):
        plate = _PLATE.match(text, name.end())
        if plate and plate.start("plate") >= start:
            yield plate.span("plate")
