"""Phone numbers, judged by the numbering plans in `phonenumbers` (ITU-T E.164), asked only about digit-rich spans.

International numbers (+ or 00) stand alone. National ones are ambiguous, so they need a trunk 0 and separators, or a
word such as `Tel.` before them, and must be valid in one of the regions.
"""

import re
from collections.abc import Iterator
from functools import cache

import phonenumbers

# EEA plans and their neighbours, those with many speakers first: most numbers are settled by the first few.
REGIONS = ("DE", "FR", "IT", "ES", "PL", "NL", "BE", "AT", "SE", "PT", "GR", "CZ", "RO", "HU", "DK", "FI", "IE", "BG",
           "HR", "SK", "SI", "LT", "LV", "EE", "LU", "CY", "MT", "NO", "IS", "LI", "CH", "GB")  # fmt: skip

_SPAN = re.compile(r"(?<![\w@#./+-])\(?(?:\+ ?)?[0-9](?:[ ./()-]{0,3}[0-9]){6,16}(?![\w@]|[./-][0-9])", re.ASCII)
_GROUPED = re.compile(r"[0-9)][ ./-]{1,3}[(0-9]")
_DATE = re.compile(
    r"(?:19|20)[0-9]{2}[./ -][01]?[0-9][./ -][0-3]?[0-9].*|[0-3]?[0-9][./ -][01]?[0-9][./ -](?:19|20)[0-9]{2}.*"
)
_PERSONAL = re.compile(r"[0-3][0-9][01][0-9]{3}[ -][0-9]{4,5}")  # date of birth and serial, as north of the Baltic
_AMOUNT = re.compile(r"[1-9][0-9]{0,2}(?:[. ][0-9]{3}){2,}")
_CONTEXT = re.compile(
    r"(?:\btel|fono?|phone|\bmob|handy|cell|\bfax|call|\bsms|whatsapp|\bring|(?:\b|an)ruf|\bt[ée]l|portable|m[óo]vil|cellulare|"
    r"telem[óo]vel|puhelin|telefax|kom[óo]rk|τηλ|κιν|тел|моб|\bnum[ée]ro)\w{0,8}\W{0,4}(?:\w{1,8}\W{1,3}){0,2}\Z",
    re.IGNORECASE,
)
_CONTEXT_REACH = 48
_USES = ("fixed_line", "mobile", "toll_free", "premium_rate", "shared_cost", "personal_number", "voip", "uan")


def find_phones(text: str, start: int) -> Iterator[tuple[int, int]]:
    """Spans of phone numbers from `start` on."""
    for match in _SPAN.finditer(text, start):
        span, begin = match[0], match.start()
        if span.startswith("(") and span.count("(") > span.count(")"):  # it opens more than the number
            span, begin = span[1:], begin + 1
        if not 7 <= sum(map(str.isdigit, span)) <= 17 or _DATE.fullmatch(span):
            continue
        if span.lstrip("(").startswith(("+", "00")):
            if _is_international(span):
                yield begin, match.end()
            continue
        named = _CONTEXT.search(text, max(0, begin - _CONTEXT_REACH), begin) is not None
        has_trunk = span.lstrip("(").startswith("0") and _GROUPED.search(span) is not None
        if (named or (has_trunk and not (_AMOUNT.fullmatch(span) or _PERSONAL.fullmatch(span)))) and _is_national(span):
            yield begin, match.end()


def _is_international(span: str) -> bool:
    bare = span.lstrip("(")
    number = "+" + bare[2:] if bare.startswith("00") else bare
    try:
        return phonenumbers.is_possible_number(phonenumbers.parse(number.replace("(0)", ""), None))
    except phonenumbers.NumberParseException:
        return False


@cache
def _national_plans() -> re.Pattern[str]:
    """Every national number, trunk prefix in front or not, that a plan of `REGIONS` assigns to some use.

    One expression, because asking the library region by region costs a millisecond a number.
    """
    plans = []
    for region in REGIONS:
        metadata = phonenumbers.PhoneMetadata.metadata_for_region(region)
        if metadata is None:
            continue
        assigned = [getattr(metadata, use) for use in _USES]
        numbers = "|".join(desc.national_number_pattern for desc in assigned if desc and desc.national_number_pattern)
        trunk = metadata.national_prefix_for_parsing
        plans.append(f"(?:{trunk})?(?:{numbers})" if trunk else f"(?:{numbers})")
    return re.compile("|".join(plans))


def _is_national(span: str) -> bool:
    return _national_plans().fullmatch("".join(filter(str.isdigit, span))) is not None
