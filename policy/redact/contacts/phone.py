"""Phone numbers, validated by the numbering plans in `phonenumbers` (ITU-T E.164) for candidates with enough digits.

International numbers (+ or 00) need no context. A number that the text calls a phone is one regardless of the plans,
because people write extensions, old numbers and numbers with typing errors. Any other number must be valid: either in a
European plan, with a trunk 0 and separators, or in a country whose language the text uses, where nothing calls it an
order or an invoice.
"""

import re
from collections.abc import Iterator
from functools import cache
from typing import NamedTuple

import phonenumbers

from policy.redact.contacts.phone_names import is_called_phone, is_called_phone_behind, stands_in_a_signature
from policy.redact.context.figures import is_dated, is_figure, is_hex_dump, is_hours, is_share, stands_in_a_record
from policy.redact.context.harmless import called_otherwise, shaped_otherwise
from policy.redact.ids.names import named_numbers
from policy.redact.text.alphabet import LETTER
from policy.redact.text.counts import is_count
from policy.redact.text.reading import Reading

# EEA plans and their neighbours, those with many speakers first: the first few match most numbers.
REGIONS = ("DE", "FR", "IT", "ES", "PL", "NL", "BE", "AT", "SE", "PT", "GR", "CZ", "RO", "HU", "DK", "FI", "IE", "BG",
           "HR", "SK", "SI", "LT", "LV", "EE", "LU", "CY", "MT", "NO", "IS", "LI", "CH", "GB")  # fmt: skip

_SPAN = re.compile(
    r"[(+0-9](?<![A-Za-z0-9_@#./+-][(+0-9])(?:(?<=[0-9])|(?<=\()(?:\+ ?\(?)?[0-9]|(?<=\+) ?\(?[0-9])"
    rf"{'[ ./()-]{0,3}[0-9]' * 5}(?:[ ./()-]{{0,3}}[0-9]){{0,11}}"
    r"(?P<extension> ?(?:x|ext\.? ?|extension |durchwahl |dw ?|int\.? ?|wew\.? ?|poste )[0-9]{1,6})?(?![A-Za-z0-9_@]"
    r"|[./:-][0-9])",
    re.IGNORECASE,
)
_GROUPED = re.compile(r"[0-9)][ ./-]{1,3}[(0-9]")
_SEPARATORS = b" ./()+-"
_EXTENSION = re.compile(r" ?[a-z]+\.? ?[0-9]{1,6}\Z", re.IGNORECASE)
_DATE = re.compile(
    r"(?:19|20)[0-9]{2}(?:[./ -]|\. )[01]?[0-9](?:[./ -]|\. )[0-3]?[0-9].*"
    r"|[0-3]?[0-9](?:[./ -]|\. )[01]?[0-9](?:[./ -]|\. )(?:19|20)[0-9]{2}.*"
    r"|(?:0?[1-9]|1[0-2])/[0-3]?[0-9]/(?:19|20)[0-9]{2}"
)
_FILE = re.compile(
    r"[0-9]{2,7}/(?:19|20)[0-9]{2}(?:-[0-9]{1,3})?|[0-9]{2}\.[0-9]{2}\.[0-9]{4}|[0-9]{2}-[0-9]{2}\.[0-9]{3}"
    r"|[0-3]?[0-9]([./-])[01]?[0-9]\1[0-9]{2}|[0-9]{1,4}-[0-9]{1,4} \((?:19|20)[0-9]{2}\)?"
    r"|[0-9]{1,4}/[0-3]?[0-9]\.[01]?[0-9]\.(?:19|20)[0-9]{2}"
)  # a number and its year or day, an appeal in France, a date, pages and year
_COUNTED = re.compile(r" (?:times|calls|rows|requests|users|bytes|records|Stück|Mal|fois|veces|volte|razy|keer)(?!\w)")
# Date of birth and serial number, as in the Nordic countries
_PERSONAL = re.compile(r"[0-3][0-9][01][0-9]{3}[ -][0-9]{4,5}|[1-9][0-9]{5}-[0-9]{4}")
# `Lindenstraße 760 10115 Berlin`
_HOUSE_AND_CODE, _TOWN = re.compile("[1-9][0-9]{2,3} [0-9]{5}"), re.compile(rf" (?![a-z])[{LETTER}][a-zà-ÿ]")
_COORDINATES = re.compile(r"[+-][0-9]{4}(?:[0-9]{2})?[+-][0-9]{5}(?:[0-9]{2})?")  # ISO 6709
_LONGITUDE = re.compile(r"[+-][0-9]{5,7}(?![0-9])")
_OFFSET = re.compile(r"[+-]0[0-9][0-5][0-9](?: .*)?")  # from UTC: `+0230 1957`
_AMOUNT = re.compile(r"[1-9][0-9]{0,2}(?:[. ][0-9]{3}){2,}")
# Four numbers up to 255, one with three digits: phones are not grouped like this.
_HOST = re.compile(r"(?=.{0,12}[0-9]{3})(?:(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])(?:\.(?!\Z)|\Z)){4}")
_CALLED_HOST = re.compile(r"(?<![^\W_])(?:ip|ipv4|host|server)(?![^\W\d_])[^0-9\n]{0,16}\Z")
_LAST_AND_YEAR = re.compile(r"[0-9]{3} \(?(?:19|20)[0-9]{2}\)?")  # the end of `1,234,567 (2022)`
_VERSION = re.compile(
    r"[0-9]{1,3}\.(?:[0-9]{1,5}\.)?[0-9]\.(?:[0-9]{1,5}\.)?[0-9]{1,5}"
)  # one digit between two points
_THOUSANDS = re.compile(r"[1-9][0-9]{0,2}(?:\.[0-9]{3}){2,}")
_ACCOUNT_SO_FAR = re.compile(r"(?<![A-Za-z0-9])[A-Z]{2}[0-9]{2} (?:[A-Z0-9]{4} ){0,6}\Z")
_NUMBER_SO_FAR = re.compile(r"[#@][0-9]{1,6}[ -]\Z")  # `#263 063 8470` begins before the 0
_SUM = re.compile(r"\+ ?[0-9]{1,2}\.[0-9]{4,}|\+ [0-9]{1,4}\.[0-9]{1,5}")  # `x + 5.00032159`
_ANGLE = re.compile(r"\+?[0-9]{1,3} [0-5][0-9] [0-5][0-9]\.[0-9]{1,3}")  # hours or degrees, minutes, seconds
_OTHER_FORMS = (_DATE, _FILE, _ANGLE, _COORDINATES, _OFFSET, _VERSION)
_AMERICAN = re.compile(
    r"(?:1[ .-])?(?:\([2-9][0-9]{2}\) ?[2-9][0-9]{2}[.-]"
    r"|[2-9][0-9]{2}(?P<sign>[.-])[2-9][0-9]{2}(?P=sign))[0-9]{4}(?: ?x[0-9]{1,6})?"
)
_NAMED_BRACKET = re.compile(rf"(?![a-z])[{LETTER}][{LETTER}'’-]{{1,24}} (?![a-z])[{LETTER}][{LETTER}'’-]{{1,24}} \(\Z")
_CELL_BEFORE, _CELL_AFTER = re.compile(r"[;,|\t] ?[\"']?\Z"), re.compile(r"[\"']? ?(?:[;,|\t\n\r]|\Z)")
_SHORTEST_NATIONAL = 5  # digits behind a calling code
_LONE_ZERO = re.compile(r"(?:\A| )0 ")  # a column of a table: `31 0 714 599`
_USES = ("fixed_line", "mobile", "toll_free", "premium_rate", "shared_cost", "personal_number", "voip", "uan")
_AMERICA = "1"  # calling code of North America
_FIXED_OR_MOBILE = _USES[:2]


class _Candidate(NamedTuple):
    """A run of digits at ``reading[begin:end]``.

    ``bare``: the run without leading brackets. ``digits``: number of digits.
    """

    reading: Reading
    begin: int
    end: int
    span: str
    bare: str
    digits: int

    @property
    def is_grouped(self) -> bool:
        """Whether the digits are written in groups."""
        return _GROUPED.search(self.span) is not None

    @property
    def number(self) -> str:
        """The digits without separators and extension."""
        return "".join(filter(str.isdigit, _EXTENSION.sub("", self.span)))


def find_phones(text: str, start: int) -> Iterator[tuple[int, int]]:
    """Yield the spans of phone numbers from `start` on."""
    reading = text if isinstance(text, Reading) else Reading(text)
    for match in _SPAN.finditer(reading, start):
        span, begin = match[0], match.start()
        if span.startswith("(") and span.count("(") > span.count(")"):  # the bracket contains more than the number
            span, begin = span[1:], begin + 1
        number = _EXTENSION.sub("", span) if match["extension"] else span
        digits = len(number.encode().translate(None, _SEPARATORS))
        if not 6 <= digits <= 17 or reading.is_taken(begin + 1):
            continue
        candidate = _Candidate(reading, begin, match.end(), span, span.lstrip("("), digits)
        if not _is_never_a_phone(candidate) and _is_phone(candidate):
            yield begin, match.end()


def _is_never_a_phone(it: _Candidate) -> bool:
    """Return whether it is a time, date, host, file number, ratio or range of years, whatever the text calls it."""
    before = it.reading[max(0, it.begin - 2) : it.begin]
    if before[:1].isdigit() and (before[1:] == ":" or (before[1:] == "," and _LAST_AND_YEAR.fullmatch(it.span))):
        return True  # `07:06:01.491989` is a time
    return _is_host(it) or _is_written_otherwise(it) or is_count(it.reading, it.begin)


def _is_host(it: _Candidate) -> bool:
    if it.span.count(".") != 3:
        return False
    if _HOST.fullmatch(it.span):
        return True
    return _CALLED_HOST.search(it.reading.folded, max(0, it.begin - 24), it.begin) is not None


def _is_written_otherwise(it: _Candidate) -> bool:
    """Return whether it has the form of a date, a file number, a sum, a version or a ratio."""
    return (
        any(form.fullmatch(it.span) for form in _OTHER_FORMS)
        or (it.bare[0] == "+" and _SUM.fullmatch(it.bare) is not None)
        or (it.bare[0] == "+" and _LONGITUDE.match(it.reading, it.end) is not None)
        or (it.bare.startswith("00") and (is_hours(it.span) or is_hex_dump(it.reading, it.begin, it.end)))
        or is_dated(it.span)
        or _COUNTED.match(it.reading, it.end) is not None
        or is_share(it.reading, it.begin, it.end)
    )


def compile_plans() -> None:
    """Compile the patterns that `find_phones` would otherwise compile with the first number that needs them."""
    _plans(REGIONS, _USES)
    for region in REGIONS:
        _plans((region,), _FIXED_OR_MOBILE)
        _lengths(str(phonenumbers.country_code_for_region(region)))
    _lengths(_AMERICA)


def _is_phone(it: _Candidate) -> bool:
    named_id = named_numbers(it.reading).get(it.begin)
    is_another = named_id is not None and named_id.is_sure
    if it.bare.startswith(("+", "00")) and it.digits >= 7 and _is_international(it.bare):
        return _is_marked(it) or not (is_another or _stands_in_a_table_or_account(it))
    if it.digits <= 15 and not is_another and is_called_phone(it.reading, it.begin):
        return True
    if it.digits < 7 or named_id or not _speaks_for_a_phone(it):  # the checks below cost more
        return False
    return not (
        is_figure(it.reading, it.begin, it.end)
        or called_otherwise(it.reading, it.begin, it.end)
        or shaped_otherwise(it.reading, it.begin, it.end)
    )


def _is_marked(it: _Candidate) -> bool:
    """Return whether a plus before it, or a word behind it, makes an international number a phone."""
    return it.bare[0] == "+" or is_called_phone_behind(it.reading, it.end)


def _stands_in_a_table_or_account(it: _Candidate) -> bool:
    """Return whether a number that begins with 00 is of several cells of a table, or the rest of an account."""
    if "  " in it.bare and not is_called_phone(it.reading, it.begin):
        return True
    return _ACCOUNT_SO_FAR.search(it.reading, max(0, it.begin - 32), it.begin) is not None


def _speaks_for_a_phone(it: _Candidate) -> bool:
    """Return whether the position or a numbering plan makes the number a phone, without a word before it."""
    return (
        _AMERICAN.fullmatch(it.span) is not None
        or (it.digits >= 8 and _stands_in_a_record(it.reading, it.begin, it.end))
        or is_called_phone_behind(it.reading, it.end)
        or stands_in_a_signature(it.reading, it.begin, it.end)
        or _stands_behind_a_name(it)
        or _is_planned(it)
    )


def _is_planned(it: _Candidate) -> bool:
    """Return whether a plan assigns a grouped number.

    With a trunk 0, the plan of any country counts; otherwise only those of the text's countries. An unbroken number may
    as well be a count, a size or a key, and needs a name or a position that indicates a phone.
    """
    if _HOUSE_AND_CODE.fullmatch(it.span) and _TOWN.match(it.reading, it.end):
        return False
    if _PERSONAL.fullmatch(it.span) or not it.is_grouped or _LONE_ZERO.search(it.bare):
        return False
    if it.bare[0] == "0" and not _AMOUNT.fullmatch(it.span):
        if _NUMBER_SO_FAR.search(it.reading, max(0, it.begin - 8), it.begin):
            return False
        return _plans(REGIONS, _USES).fullmatch(it.number) is not None
    if it.digits < 8 or not it.reading.countries or _THOUSANDS.fullmatch(it.span):
        return False
    before = it.reading[max(0, it.begin - 2) : it.begin]
    if before[1:] == " " and before[:1].isdigit():
        return False
    number = it.number
    return any(_plans((code.upper(),), _FIXED_OR_MOBILE).fullmatch(number) for code in it.reading.countries)


def countries_of_number(written: str) -> frozenset[str]:
    """Return the countries whose plan assigns a number, as ISO 3166 codes in lower case.

    A number with a calling code has the countries of that code.
    """
    digits = "".join(filter(str.isdigit, written))
    if written.startswith(("+", "00")):
        for width in (2, 3):
            code = digits.removeprefix("00")[:width]
            if regions := phonenumbers.COUNTRY_CODE_TO_REGION_CODE.get(int(code or 0)):
                return frozenset(region.lower() for region in regions)
        return frozenset()
    return frozenset(
        region.lower() for region in REGIONS if _plans((region,), _FIXED_OR_MOBILE).fullmatch(digits) is not None
    )


def _stands_in_a_record(reading: Reading, begin: int, end: int) -> bool:
    """Return whether the number fills a cell on a line with an e-mail address: `Anna;4580 7302;anna@example.org`."""
    if not stands_in_a_record(reading, begin, end):
        return False
    first = reading.rfind("\n", 0, begin) + 1
    return bool(_CELL_BEFORE.search(reading, first, begin) and _CELL_AFTER.match(reading, end))


def _stands_behind_a_name(it: _Candidate) -> bool:
    """Return whether the number is in brackets after a name: `Kirsten Steffensen (2276 6155)`."""
    if it.digits < 8 or it.reading[it.end : it.end + 1] != ")":
        return False
    is_grouped = it.is_grouped and not _AMOUNT.fullmatch(it.span)
    if not (is_grouped or it.bare[0] == "0"):
        return False
    return _NAMED_BRACKET.search(it.reading, max(0, it.begin - 48), it.begin) is not None


def _is_international(bare: str) -> bool:
    """Return whether the number has a length that its country code's plan allows, with or without a trunk 0."""
    digits = "".join(filter(str.isdigit, _EXTENSION.sub("", bare).replace("(0)", ""))).removeprefix("00")
    if digits.startswith("0"):  # no country code begins with 0
        return False
    for width in (2, 3, 1):
        if lengths := _lengths(digits[:width]):
            national = digits[width:]
            trimmed = national.lstrip("0")
            if len(trimmed) < _SHORTEST_NATIONAL or len(national) > len(trimmed) + 1:  # one trunk 0 at most
                return False
            return len(national) in lengths or len(trimmed) in lengths
    return False


@cache
def _lengths(code: str) -> frozenset[int]:
    """Return the possible lengths of national numbers after a country's calling code; empty for an invalid code."""
    regions = phonenumbers.COUNTRY_CODE_TO_REGION_CODE.get(int(code or 0), ())
    lengths: set[int] = set()
    for region in regions:
        metadata = (
            phonenumbers.PhoneMetadata.metadata_for_nongeo_region(int(code))
            if region == phonenumbers.REGION_CODE_FOR_NON_GEO_ENTITY
            else phonenumbers.PhoneMetadata.metadata_for_region(region)
        )
        if metadata is not None and metadata.general_desc is not None:
            lengths.update(metadata.general_desc.possible_length)
    return frozenset(lengths - {-1})


@cache
def _plans(regions: tuple[str, ...], uses: tuple[str, ...]) -> re.Pattern[str]:
    """Return a pattern for every national number that a plan of `regions` assigns to one of `uses`.

    The trunk prefix is optional. A single pattern is used because asking the library for each region takes a
    millisecond per number.
    """
    plans = ["(?!)"]
    for region in regions:
        metadata = phonenumbers.PhoneMetadata.metadata_for_region(region)
        if metadata is None:
            continue
        assigned = [getattr(metadata, use) for use in uses]
        numbers = "|".join(desc.national_number_pattern for desc in assigned if desc and desc.national_number_pattern)
        trunk = metadata.national_prefix_for_parsing
        plans.append(f"(?:{trunk})?(?:{numbers})" if trunk else f"(?:{numbers})")
    return re.compile("|".join(plans))
