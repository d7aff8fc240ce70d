"""VAT number formats, from `vat_rules/*.toml`: one file per country; a new country needs a file and a test.

``[[number]]``: the prefix; the shape of the rest (9 a digit, A a letter, * either, ? before an optional character); the
check as a module of `python-stdnum`, called with the whole number or, with ``checks = "number"``, with the part after
the prefix; and suffixes that belong to the number. ``[[bare]]``: a number that counts without its prefix after one of
its names, which all contain its sign. ``names``: what the country calls its VAT number, for numbers in lower case.
"""

import re
import tomllib
from collections.abc import Callable, Mapping
from importlib import import_module
from importlib.resources import files
from string import ascii_uppercase
from typing import Any, NamedTuple

from policy.redact.text.shapes import BEGIN, END, flexible

_STDNUM = "stdnum."
_TAKES = {"whole": False, "number": True}
_BETWEEN_WORDS = r"[ .]{0,2}"


class VatNumber(NamedTuple):
    """A format with prefix.

    ``pattern``: group 1 is the number with its prefix. ``is_valid``: takes letters and digits including the prefix.
    """

    prefix: str
    shape: str
    pattern: re.Pattern[str]
    is_valid: Callable[[str], bool]

    @property
    def initials(self) -> frozenset[str]:
        """The first three characters, in lower case, of a word that begins such a number; two if a digit follows."""
        first = self.shape[0]
        behind = ascii_uppercase if first in "A*" else first.strip("9")
        return frozenset((self.prefix + sign).lower()[:3] for sign in ("", *behind))

    @property
    def sample(self) -> str:
        """A number of this shape; it may be invalid."""
        return self.prefix + self.shape.replace("?", "").replace("*", "9")


class BareNumber(NamedTuple):
    """A number without prefix that counts after one of its names.

    ``sign``: a substring of all its names. ``pattern``: matches a name and, as group ``number``, the number, in lower
    case.
    """

    sign: str
    pattern: re.Pattern[str]
    is_valid: Callable[[str], bool]


class Rules(NamedTuple):
    """All formats.

    ``by_head``: formats by the first two letters of their prefix. ``names``: in lower case without diacritics.
    """

    by_head: Mapping[str, tuple[VatNumber, ...]]
    bare: tuple[BareNumber, ...]
    names: tuple[str, ...]


def _read() -> Rules:
    """Read the entries of every file. Raises ValueError with the name of a file that has an invalid entry."""
    by_head: dict[str, tuple[VatNumber, ...]] = {}
    bare: list[BareNumber] = []
    names: dict[str, None] = {}
    for file in sorted(files("policy.redact.payment").joinpath("vat_rules").iterdir(), key=lambda each: each.name):
        if not file.name.endswith(".toml"):
            continue
        try:
            rules = tomllib.loads(file.read_text(encoding="utf-8"))
            for number in map(vat_number, rules.get("number", ())):
                by_head[number.prefix[:2]] = (*by_head.get(number.prefix[:2], ()), number)
            bare += map(_bare, rules.get("bare", ()))
            names |= dict.fromkeys(rules["names"])
        except (KeyError, ValueError, TypeError, AttributeError, ImportError, re.error) as error:
            raise ValueError(f"vat_rules/{file.name}: {error}; correct the entry") from None
    return Rules(by_head, tuple(bare), tuple(names))


def vat_number(entry: Mapping[str, Any]) -> VatNumber:
    """Parse an entry of ``[[number]]``. Raises KeyError, ValueError or ImportError if it is invalid."""
    prefix, shape = entry["prefix"], entry["shape"]
    suffixes = entry.get("suffixes", ())
    behind = f"(?: ?(?:{'|'.join(suffixes)}))?" if suffixes else ""
    pattern = re.compile(f"{BEGIN}({prefix}[ .-]{{0,2}}{flexible(shape)}){behind}{END}")
    return VatNumber(prefix, shape, pattern, _check(entry["check"], entry.get("checks", "whole"), prefix))


def _check(module: str, takes: str, prefix: str) -> Callable[[str], bool]:
    if not module.startswith(_STDNUM):
        raise ValueError(f"{module} is not a module of stdnum")
    is_valid: Callable[[str], bool] = import_module(module).is_valid
    return (lambda number: is_valid(number.removeprefix(prefix))) if _TAKES[takes] else is_valid


def _bare(entry: Mapping[str, Any]) -> BareNumber:
    names = "|".join(re.escape(name).replace(r"\ ", _BETWEEN_WORDS) for name in entry["names"])
    number = f"(?P<number>{BEGIN}{flexible(entry['shape'])})"
    pattern = re.compile(rf"(?:{names})\W{{0,4}}(?:\w{{1,8}}\W{{1,3}}){{0,2}}{number}{END}")
    return BareNumber(entry["sign"], pattern, _check(entry["check"], "whole", ""))


VAT = _read()
