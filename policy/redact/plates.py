# ruff: noqa: E501  # tables read better in one line a row
"""Licence plates of Europe. They have no check digit, so they count only behind their name."""

import re
from collections.abc import Iterator

from policy.redact.reading import Reading

_NAME = re.compile(
    r"(?:(?:kfz|auto)?[ -]?kennzeichen|(?:number|licen[cs]e|registration|car)[ _]?plates?|numberplate|immatriculation\w*"
    r"|plaque\w*|plate[ _](?:no|number)|targa|matricula|kenteken\w*|rejestracyjn\w*|registreringsn\w*|reg\.? ?nr"
    r"|nummerplade|rekisteri\w*|rendszam\w*|spz|ecv|numar de inmatriculare|registracij\w*|registarsk\w*"
    r"|πινακιδ\w*|рег(?:истрационен|\.) номер)"
)
_INITIALS = frozenset(
    {
        "kfz",
        "aut",
        "ken",
        "num",
        "lic",
        "reg",
        "imm",
        "pla",
        "tar",
        "mat",
        "rej",
        "rek",
        "ren",
        "spz",
        "ecv",
        "πιν",
        "рег",
        "car",
    }
)
# Two to four groups at most, nine signs at most, a digit somewhere and a letter, or digits alone where they are many.
_LETTER = "A-Z\u00c4\u00d6\u00dc\u0391-\u03a9\u0410-\u042f\u0160\u017d\u010c"
_PLATE = re.compile(
    r"\W{1,4}(?:\w{1,10}\W{1,2}){0,2}?"
    r"(?![0-9.]{1,8} (?:EUR|USD|GBP|CHF|PLN|SEK|NOK|DKK|CZK|HUF|RON)(?![A-Z]))"
    rf"(?P<plate>(?=[{_LETTER} .-]{{0,9}}[0-9])(?=[0-9 .-]{{0,9}}[{_LETTER}]|[0-9]{{5}})"
    rf"(?>[{_LETTER}0-9]{{1,8}}(?:[ .-][{_LETTER}0-9]{{1,6}}){{0,3}}))(?![A-Za-z0-9_])"
)


def find_plates(text: str, start: int) -> Iterator[tuple[int, int]]:
    """Spans of licence plates from `start` on."""
    reading = text if isinstance(text, Reading) else Reading(text)
    for at in reading.words_from(_INITIALS):
        if at > 1 and reading[at - 2].isupper() and reading[at].isupper():  # `BEF SPZ 89T`: part of a number
            continue
        name = _NAME.match(reading.folded, at)
        plate = _PLATE.match(reading, name.end()) if name else None
        if plate and plate.start("plate") >= start:
            yield plate.span("plate")
