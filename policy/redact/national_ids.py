"""National identification numbers, by the validators of `python-stdnum` and the shapes people write them in.

A number whose shape and check digits are rare enough stands alone. One with a weak check (one digit in ten or eleven
random numbers passes) counts only behind a word that names it.
"""

import re
from collections.abc import Callable, Iterator
from typing import NamedTuple

from stdnum.at import vnr
from stdnum.be import nn
from stdnum.bg import egn
from stdnum.ch import ssn
from stdnum.cz import rc
from stdnum.de import idnr
from stdnum.dk import cpr
from stdnum.ee import ik
from stdnum.es import dni, nie
from stdnum.fi import hetu
from stdnum.fr import nir
from stdnum.gr import amka
from stdnum.hr import oib
from stdnum.ie import pps
from stdnum.it import codicefiscale
from stdnum.lt import asmens
from stdnum.nl import bsn
from stdnum.no import fodselsnummer
from stdnum.pl import pesel
from stdnum.pt import nif
from stdnum.ro import cnp
from stdnum.se import personnummer
from stdnum.si import emso


class _Id(NamedTuple):
    shape: re.Pattern[str]
    is_valid: Callable[[str], bool]
    names: re.Pattern[str] | None = None  # needed before the number, where its own check is weak


def _id(shape: str, is_valid: Callable[[str], bool], names: str = "") -> _Id:
    bounded = re.compile(rf"(?<![A-Za-z0-9_])(?<![0-9][./-]){shape}(?![A-Za-z0-9_]|[./-][0-9])")
    return _Id(
        bounded, is_valid, re.compile(rf"(?:{names})\W.{{0,24}}\Z", re.IGNORECASE | re.DOTALL) if names else None
    )


_DATE = "[0-9]{2}[01][0-9][0-3][0-9]"
_IDS = (
    _id(r"[A-Za-z]{6}[0-9A-Za-z]{2}[A-Za-z][0-9A-Za-z]{2}[A-Za-z][0-9A-Za-z]{3}[A-Za-z]", codicefiscale.is_valid),
    _id(r"[12] ?[0-9]{2} ?[0-9]{2} ?(?:2[ABab]|[0-9]{2}) ?[0-9]{3} ?[0-9]{3} ?[0-9]{2}", nir.is_valid),
    _id(r"[0-9]{8}-?[A-Za-z]", dni.is_valid),
    _id(r"[XYZxyz]-?[0-9]{7}-?[A-Za-z]", nie.is_valid),
    _id(r"[1-9][0-9] ?[0-9]{3} ?[0-9]{3} ?[0-9]{3}", idnr.is_valid),
    _id(r"[0-9]{2}\.?[01][0-9]\.?[0-3][0-9][ -]?[0-9]{3}[.-]?[0-9]{2}", nn.is_valid),
    _id(r"756[. ]?[0-9]{4}[. ]?[0-9]{4}[. ]?[0-9]{2}", ssn.is_valid),
    _id(r"[0-3][0-9][01][0-9]{3}[-+A-FU-Ya-fu-y][0-9]{3}[0-9A-Za-z]", hetu.is_valid),
    _id(rf"(?:19|20)?{_DATE}[-+][0-9]{{4}}", personnummer.is_valid),
    _id(r"[0-9]{2}[0156][0-9][0-3][0-9]/[0-9]{3,4}", rc.is_valid),
    _id(r"[0-3][0-9][01][0-9]{3}-[0-9]{4}", cpr.is_valid),
    _id(r"[0-9]{7}[A-Wa-w][A-IWa-iw]?", pps.is_valid),
    _id(r"[0-7][0-9][0-9]{4} ?[0-9]{5}", fodselsnummer.is_valid),
    _id(r"[1-9][0-9]{12}", cnp.is_valid),
    _id(r"[0-3][0-9][01][0-9]{10}", emso.is_valid),
    _id(r"[0-9]{11}", pesel.is_valid, r"pesel"),
    _id(r"[0-9]{9}", bsn.is_valid, r"bsn|burgerservice\w*|sofi\w*"),
    _id(r"[0-9]{3} ?[0-9]{3} ?[0-9]{3}", nif.is_valid, r"nif|contribuinte|fiscal"),
    _id(r"[0-9]{11}", ik.is_valid, r"isikukood\w*"),
    _id(r"[0-9]{11}", asmens.is_valid, r"asmens kod\w*"),
    _id(r"[0-9]{11}", oib.is_valid, r"oib"),
    _id(r"[0-9]{10}", egn.is_valid, r"егн|egn"),
    _id(r"[0-9]{11}", amka.is_valid, r"αμκα|amka"),
    _id(r"[0-9]{4} ?[0-9]{6}", vnr.is_valid, r"svnr|sozialversicherung\w*|sv-nummer|versicherungsnummer"),
)
_REACH = 48


def find_national_ids(text: str, start: int) -> Iterator[tuple[int, int]]:
    """Spans of valid numbers from `start` on, possibly the same span by several countries' rules."""
    for kind in _IDS:
        for match in kind.shape.finditer(text, start):
            if kind.names and not kind.names.search(text, max(0, match.start() - _REACH), match.start()):
                continue
            if kind.is_valid(match[0]):
                yield match.span()
