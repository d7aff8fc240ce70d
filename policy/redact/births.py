"""Dates of birth: a numeric date behind words for being born, in the languages of the EU."""

import re
from collections.abc import Iterator

from policy.redact.shapes import BEGIN, END

_DATE = re.compile(
    rf"{BEGIN}(?:[0-3]?[0-9](?P<sign>\. ?|[/-])[01]?[0-9](?P=sign)(?:19|20)[0-9]{{2}}"
    rf"|(?:19|20)[0-9]{{2}}(?P<iso>[./-])[01][0-9](?P=iso)[0-3][0-9]){END}"
)
_BORN = re.compile(
    r"(?<![^\W\d_])(?:born|birth\w*|(?:date of |d\.?o\.?)b(?:irth)?|geb(?:\.|oren\w*|oorte\w*|urts\w*)|n[ée]e? le"
    r"|naissance"
    r"|nat[oa]|nascit[ao]|nacid[oa]|nacimiento|nascid[oa]|nascimento|ur(?:\.|odz\w*)|föd(?:d|else\w*)|født|fødsels\w*"
    r"|synty\w*|naro[zd]\w*|szül\w*|născut\w*|nașterii|ro[đj]en\w*|rojst\w*|γ[εέ]νν\w*|роден\w*|раждане\w*"
    r"|sünd\w*|sünni\w*"
    r"|dzim\w*|gim\w*|twelid\w*|rugadh)(?:\W[^0-9\n]{0,32})?\Z",
    re.IGNORECASE,
)
_BEFORE = 56


def find_births(text: str, start: int) -> Iterator[tuple[int, int]]:
    """Spans of dates of birth from `start` on."""
    for match in _DATE.finditer(text, start):
        if _BORN.search(text, max(0, match.start() - _BEFORE), match.start()):
            yield match.span()
