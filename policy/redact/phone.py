# ruff: noqa: E501  # tables read better in one line a row
"""Phone numbers, judged by the numbering plans in `phonenumbers` (ITU-T E.164), asked only about digit-rich spans.

International numbers (+ or 00) stand alone. A number that the text calls a phone is one, whatever the plans say: people
give extensions, old numbers and numbers with a slip. A number that nothing names must be valid: anywhere in Europe with
a trunk 0 and separators, or in a country whose language the text speaks where nothing calls it an order or an invoice.
"""

import re
from collections.abc import Iterator
from functools import cache

import phonenumbers

from policy.redact.alphabet import LETTER
from policy.redact.figures import is_dated, is_share, is_figure, stands_among_figures, stands_in_a_record
from policy.redact.harmless import called_otherwise, follows_a_noun, shaped_otherwise
from policy.redact.id_names import named_numbers
from policy.redact.phone_names import is_called_phone, is_called_phone_behind, stands_in_a_signature
from policy.redact.reading import Reading

# EEA plans and their neighbours, those with many speakers first: most numbers are settled by the first few.
REGIONS = ("DE", "FR", "IT", "ES", "PL", "NL", "BE", "AT", "SE", "PT", "GR", "CZ", "RO", "HU", "DK", "FI", "IE", "BG",
           "HR", "SK", "SI", "LT", "LV", "EE", "LU", "CY", "MT", "NO", "IS", "LI", "CH", "GB")  # fmt: skip

_SPAN = re.compile(
    r"[(+0-9](?<![A-Za-z0-9_@#./+-][(+0-9])(?:(?<=[0-9])|(?<=\()(?:\+ ?\(?)?[0-9]|(?<=\+) ?\(?[0-9])"
    rf"{'[ ./()-]{0,3}[0-9]' * 5}(?:[ ./()-]{{0,3}}[0-9]){{0,11}}"
    r"(?P<extension> ?(?:x|ext\.? ?|extension |durchwahl |dw ?|int\.? ?|wew\.? ?|poste )[0-9]{1,6})?(?![A-Za-z0-9_@]|[./:-][0-9])",
    re.IGNORECASE,
)
_AFTER_SIGN = re.compile(r"[-/.][+(]?0?[0-9]")  # `tel/+48…` and `Tel.-030…`
_GROUPED = re.compile(r"[0-9)][ ./-]{1,3}[(0-9]")
_SEPARATORS = b" ./()+-"
_EXTENSION = re.compile(r" ?[a-z]+\.? ?[0-9]{1,6}\Z", re.IGNORECASE)
_DATE = re.compile(
    r"(?:19|20)[0-9]{2}(?:[./ -]|\. )[01]?[0-9](?:[./ -]|\. )[0-3]?[0-9].*"
    r"|[0-3]?[0-9](?:[./ -]|\. )[01]?[0-9](?:[./ -]|\. )(?:19|20)[0-9]{2}.*"
)
_FILE = re.compile(
    r"[0-9]{2,7}/(?:19|20)[0-9]{2}(?:-[0-9]{1,3})?|[0-9]{2}\.[0-9]{2}\.[0-9]{4}|[0-3]?[0-9]([./-])[01]?[0-9]\1[0-9]{2}"
)  # a number and its year, a date
_PERSONAL = re.compile(r"[0-3][0-9][01][0-9]{3}[ -][0-9]{4,5}")  # date of birth and serial, as north of the Baltic
_AMOUNT = re.compile(r"[1-9][0-9]{0,2}(?:[. ][0-9]{3}){2,}")
# Four numbers up to 255 of which one has three digits: nobody groups a phone so.
_HOST = re.compile(r"(?=.{0,12}[0-9]{3})(?:(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])(?:\.(?!\Z)|\Z)){4}")
_CALLED_HOST = re.compile(r"(?<![^\W_])(?:ip|ipv4|host|server)(?![^\W\d_])[^0-9\n]{0,16}\Z")
_LAST_AND_YEAR = re.compile(r"[0-9]{3} \(?(?:19|20)[0-9]{2}\)?")  # of `1,234,567 (2022)`
_THOUSANDS = re.compile(r"[1-9][0-9]{0,2}(?:\.[0-9]{3}){2,}")
_ACCOUNT_SO_FAR = re.compile(r"(?<![A-Za-z0-9])[A-Z]{2}[0-9]{2} (?:[A-Z0-9]{4} ){0,6}\Z")
_NUMBER = re.compile(
    r"[;.:] (?:номер|nummer|number|numero|numer|numeris|numurs|cislo|broj|stevilka|αριθμος) \Z"
)  # of what, it does not say
_SUM = re.compile(r"\+ ?[0-9]{1,2}\.[0-9]{4,}")  # `x + 5.00032159`
_AMERICAN = re.compile(
    r"(?:1[ .-])?(?:\([2-9][0-9]{2}\) ?|[2-9][0-9]{2}[.-])[2-9][0-9]{2}[.-][0-9]{4}(?: ?x[0-9]{1,6})?"
)
_NAMED_BRACKET = re.compile(rf"(?![a-z])[{LETTER}][{LETTER}'’-]{{1,24}} (?![a-z])[{LETTER}][{LETTER}'’-]{{1,24}} \(\Z")
# Elements of a message (EDIFACT, XML that is no page) and members of one: their name says what the number is.
_FIELD_BEFORE = re.compile(
    r"(?:<(?!(?:td|th|p|li|b|i|span|div|dd|strong|em|code)[ >])[\w:.-]{1,20}(?: [^<>]{0,40})?>|[A-Z]{2,3}[+:])\Z"
)
_CELL_BEFORE, _CELL_AFTER = re.compile(r"[;,|\t] ?[\"']?\Z"), re.compile(r"[\"']? ?(?:[;,|\t\n\r]|\Z)")
_USES = ("fixed_line", "mobile", "toll_free", "premium_rate", "shared_cost", "personal_number", "voip", "uan")
_AMERICA = "1"  # calling code of its north
_FIXED_OR_MOBILE = _USES[:2]


def find_phones(text: str, start: int) -> Iterator[tuple[int, int]]:
    """Spans of phone numbers from `start` on."""
    reading = text if isinstance(text, Reading) else Reading(text)
    for match in _SPAN.finditer(reading, start):
        span, begin = match[0], match.start()
        if span.startswith("(") and span.count("(") > span.count(")"):  # it opens more than the number
            span, begin = span[1:], begin + 1
        if reading.is_taken(begin + 1) or (begin > 1 and reading[begin - 1] == ":" and reading[begin - 2].isdigit()):
            continue  # `07:06:01.491989` is a time
        if begin > 1 and reading[begin - 1] == "," and reading[begin - 2].isdigit() and _LAST_AND_YEAR.fullmatch(span):
            continue
        if span.count(".") == 3 and (
            _HOST.fullmatch(span) or _CALLED_HOST.search(reading.folded, max(0, begin - 24), begin)
        ):
            continue
        number = _EXTENSION.sub("", span) if match["extension"] else span
        digits = len(number.encode().translate(None, _SEPARATORS))
        if not 6 <= digits <= 17 or _DATE.fullmatch(span) or _FILE.fullmatch(span) or is_dated(span):
            continue
        if is_share(reading, begin, match.end()):
            continue
        if _is_phone(reading, span, begin, match.end(), digits):
            yield begin, match.end()


def compile_plans() -> None:
    """All that `find_phones` otherwise compiles with the first number that needs it."""
    _plans(REGIONS, _USES)
    for region in REGIONS:
        _plans((region,), _FIXED_OR_MOBILE)
        _lengths(str(phonenumbers.country_code_for_region(region)))
    _lengths(_AMERICA)


def _is_phone(reading: Reading, span: str, begin: int, end: int, digits: int) -> bool:
    bare = span.lstrip("(")
    if bare[0] == "+" and _SUM.fullmatch(bare):
        return False
    named_id = named_numbers(reading).get(begin)
    if bare.startswith(("+", "00")) and digits >= 7 and _is_international(bare):
        if bare[0] == "+":
            return True
        return not (named_id and named_id.is_sure) and not _ACCOUNT_SO_FAR.search(reading, max(0, begin - 32), begin)
    if digits <= 15 and not (named_id and named_id.is_sure) and is_called_phone(reading, begin):
        return True
    if reading[begin - 1 : begin] == ":" and reading[begin - 2 : begin - 1].isdigit():  # seconds
        return False
    if digits < 7 or named_id or is_figure(reading, begin, end) or _is_otherwise(reading, begin, end):
        return False
    if _AMERICAN.fullmatch(span) or (digits >= 8 and _stands_in_a_record(reading, begin, end)):
        return True
    if is_called_phone_behind(reading, end) or stands_in_a_signature(reading, begin, end):
        return True
    is_grouped = _GROUPED.search(span) is not None and not _AMOUNT.fullmatch(span)
    if digits >= 8 and (is_grouped or bare[0] == "0") and _stands_behind_a_name(reading, begin, end):
        return True
    number = "".join(filter(str.isdigit, _EXTENSION.sub("", span)))
    if bare.startswith("0") and _GROUPED.search(span) and not (_AMOUNT.fullmatch(span) or _PERSONAL.fullmatch(span)):
        return _plans(REGIONS, _USES).fullmatch(number) is not None
    if digits < 8 or not reading.countries or _PERSONAL.fullmatch(span) or _THOUSANDS.fullmatch(span):
        return False
    if not _GROUPED.search(span) and bare[0] != "0" and _is_explained(reading, begin, end):
        return False
    if begin and reading[begin - 1] == " " and begin > 1 and reading[begin - 2].isdigit():
        return False
    return any(_plans((code.upper(),), _FIXED_OR_MOBILE).fullmatch(number) for code in reading.countries)


def _is_explained(reading: Reading, begin: int, end: int) -> bool:
    """Whether a word, a tag or a sign right before a number in one piece says what it is, or a row of figures holds it."""
    return (
        follows_a_noun(reading, begin)
        or _NUMBER.search(reading.folded, max(0, begin - 12), begin) is not None
        or _FIELD_BEFORE.search(reading, max(0, begin - 24), begin) is not None
        or stands_among_figures(reading, begin, end)
    )


def countries_of_number(written: str) -> frozenset[str]:
    """Countries whose plan assigns a number, by its calling code where it has one; ISO 3166 codes in small letters."""
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
    """Whether a number fills a cell of a line that holds an e-mail address too: `Anna;4580 7302;anna@example.org`."""
    if not stands_in_a_record(reading, begin, end):
        return False
    first = reading.rfind("\n", 0, begin) + 1
    return bool(_CELL_BEFORE.search(reading, first, begin) and _CELL_AFTER.match(reading, end))


def _stands_behind_a_name(reading: Reading, begin: int, end: int) -> bool:
    """`Kirsten Steffensen (2276 6155)`"""
    return reading[end : end + 1] == ")" and _NAMED_BRACKET.search(reading, max(0, begin - 48), begin) is not None


def _is_otherwise(reading: Reading, begin: int, end: int) -> bool:
    return called_otherwise(reading, begin, end) or shaped_otherwise(reading, begin, end)


def _is_international(bare: str) -> bool:
    """Whether a number has the length that the plan of its country's code allows, a trunk 0 left in or out."""
    digits = "".join(filter(str.isdigit, _EXTENSION.sub("", bare).replace("(0)", ""))).removeprefix("00")
    if digits.startswith("0"):  # no code does
        return False
    for width in (2, 3, 1):
        if lengths := _lengths(digits[:width]):
            national = digits[width:]
            return len(national) in lengths or len(national.lstrip("0")) in lengths
    return False


@cache
def _lengths(code: str) -> frozenset[int]:
    """How long the national numbers behind a country's calling code may be; none for what is no code."""
    regions = phonenumbers.COUNTRY_CODE_TO_REGION_CODE.get(int(code or 0), ())
    lengths: set[int] = set()
    for region in regions:
        metadata = (
            phonenumbers.PhoneMetadata.metadata_for_nongeo_region(int(code))
            if region == phonenumbers.REGION_CODE_FOR_NON_GEO_ENTITY
            else phonenumbers.PhoneMetadata.metadata_for_region(region)
        )
        if metadata is not None and metadata.general_desc is not None:
            lengths.update(metadata.general_desc.possible_length, metadata.general_desc.possible_length_local_only)
    return frozenset(lengths - {-1})


@cache
def _plans(regions: tuple[str, ...], uses: tuple[str, ...]) -> re.Pattern[str]:
    """Every national number, trunk prefix in front or not, that a plan of `regions` assigns to one of `uses`.

    One expression, because asking the library region by region costs a millisecond a number.
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
