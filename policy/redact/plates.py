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
_PLATE = re.compile(
    r"\W{1,4}(?:\w{1,10}\W{1,2}){0,2}?"
    r"(?P<plate>[A-ZÄÖÜ]{1,3}[ -][A-Z]{1,2}[ -]?[0-9]{1,4}[EH]?|[A-Z]{2}[ -]?[0-9]{3}[ -]?[A-Z]{2}"
    r"|[0-9]{4}[ -]?[A-Z]{3}"
    r"|[A-Z0-9]{1,3}-[A-Z0-9]{2,3}-[A-Z0-9]{1,2}|[A-Z]{2,3}[ -]?[0-9][0-9A-Z]{2,4}"
    r"|[0-9][A-Z][0-9A-Z] ?[0-9]{4})(?![A-Za-z0-9_])",
)


def find_plates(text: str, start: int) -> Iterator[tuple[int, int]]:
    """Spans of licence plates from `start` on."""
    reading = text if isinstance(text, Reading) else Reading(text)
    for at in reading.words_from(_INITIALS):
        name = _NAME.match(reading.folded, at)
        plate = _PLATE.match(reading, name.end()) if name else None
        if plate and plate.start("plate") >= start:
            yield plate.span("plate")
