"""Phone numbers, judged by the numbering plans in `phonenumbers` (ITU-T E.164), asked only about digit-rich spans.

International numbers (+ or 00) stand alone. National ones are ambiguous, so they need a trunk 0 and separators, or a
word such as `Tel.` before them, and must be valid in one of the regions.
"""

import re
from collections.abc import Iterator

import phonenumbers

# EEA plans and their neighbours, those with many speakers first: most numbers are settled by the first few.
REGIONS = ("DE", "FR", "IT", "ES", "PL", "NL", "BE", "AT", "SE", "PT", "GR", "CZ", "RO", "HU", "DK", "FI", "IE", "BG",
           "HR", "SK", "SI", "LT", "LV", "EE", "LU", "CY", "MT", "NO", "IS", "LI", "CH", "GB")  # fmt: skip

_SPAN = re.compile(
    r"(?<![\w@#./+-])(?P<lead>\+ ?|00 ?|\()?[0-9](?:[ ./()-]{0,3}[0-9]){6,16}(?![\w@]|[./-][0-9])", re.ASCII
)
_GROUPED = re.compile(r"[0-9)][ ./-]{1,3}[(0-9]")
_DATE_OR_AMOUNT = re.compile(
    r"(?:19|20)[0-9]{2}[./ -][01]?[0-9][./ -][0-3]?[0-9].*|[0-3]?[0-9][./ -][01]?[0-9][./ -](?:19|20)[0-9]{2}.*"
    r"|[0-9]{1,3}(?:[. ][0-9]{3}){2,}"
)
_CONTEXT = re.compile(
    r"(?:\btel|fono?|phone|\bmob|handy|cell|\bfax|call|\bsms|whatsapp|\bring|ruf|t[ée]l|portable|m[óo]vil|cellulare|"
    r"telem[óo]vel|puhelin|telefax|kom[óo]rk|τηλ|κιν|тел|моб|\bnum[ée]ro)\w{0,8}\W{0,4}(?:\w{1,8}\W{1,3}){0,2}\Z",
    re.IGNORECASE,
)
_CONTEXT_REACH = 48


def find_phones(text: str, start: int) -> Iterator[tuple[int, int]]:
    """Spans of phone numbers from `start` on."""
    for match in _SPAN.finditer(text, start):
        span = match[0]
        digits = sum(map(str.isdigit, span))
        if not 7 <= digits <= 17 or _DATE_OR_AMOUNT.fullmatch(span):
            continue
        if (match["lead"] or "").strip() in ("+", "00"):
            if _is_international(span):
                yield match.span()
            continue
        named = _CONTEXT.search(text, max(0, match.start() - _CONTEXT_REACH), match.start()) is not None
        has_trunk = span.lstrip("(").startswith("0") and _GROUPED.search(span) is not None
        if (named or has_trunk) and _is_national(span):
            yield match.span()


def _is_international(span: str) -> bool:
    number = "+" + span[2:] if span.startswith("00") else span
    try:
        return phonenumbers.is_possible_number(phonenumbers.parse(number.replace("(0)", ""), None))
    except phonenumbers.NumberParseException:
        return False


def _is_national(span: str) -> bool:
    for region in REGIONS:
        try:
            if phonenumbers.is_valid_number(phonenumbers.parse(span, region)):
                return True
        except phonenumbers.NumberParseException:
            continue
    return False
