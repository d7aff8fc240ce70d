"""Numbers that are figures: decimals, years, versions, times and process ids, cells of a table of numbers.

The format of a figure, of its line or of its column distinguishes it from a phone, a card and an identity number, even
after a label: a score of the label `PHONE_NUMBER` is not a phone. The functions examine the number, the 64 characters
before it and, in complete texts, what follows; never text for which a stream would have to wait.
"""

import re

from policy.redact.text.reading import Reading

_DECIMAL = re.compile(r"\(?-?(?:(?:0|[1-9][0-9]{0,9})\.[0-9]{1,17}|0[0-9]\.[0-9]{7,17})\)?")
# A ratio, a score or a percentage. No personal number has this format, whatever label precedes it.
_SHARE = re.compile(r"\(?-?(?:[01]\.[0-9]{2,17}|[1-9][0-9]?\.[0-9]{3,5})\)?")
_CELL_SIGNS = frozenset(",;\t")
_DECIMAL_CELL = re.compile(r"[0-9]{1,6}\.[0-9]{1,17}")
_SCORE = re.compile(r"[01]\.[0-9]{1,17}|[1-9][0-9]?\.[0-9]{4,5}")
_POINT_BEFORE = re.compile(r"[0-9]\.\Z")
_WHOLE_AND_COMMA_BEFORE = re.compile(r"(?:^|[;\t\n (\[=:-])[0-9]{1,6},\Z")
_PARTS_OF_AN_HOUR = re.compile(r".*[ :][0-9]{1,3}\.[0-9]{1,6}")  # `0 38 36.493`
# Two years, the first not after the second: lives, reigns, wars. Phones are not split into two such numbers.
_YEARS = re.compile(r"\(?([1-9][0-9]{2,3}) ?[-–/] ?([1-9][0-9]{2,3})\)?")
_LATEST_YEAR, _LONGEST_SPAN = 2100, 400
_EARLIEST_OF_FOUR = 1000
# `2019/1021`, an act of the European Union; `30 2013 045`, a trade mark file.
_ACT = re.compile(r"(?:1[89]|20)[0-9]{2}/[0-9]{1,6}")
_VERSION_FIRST = re.compile(r"v?[0-9]{1,2}(?:\.[0-9]{1,4}){1,3} ?[/(-] ?(?:[0-9].*)")
_VERSION_WITH_DAY = re.compile(
    r"[0-9]{1,4}(?:\.[0-9]{1,4}){0,3}[.-](?:19|20)[0-9]{2}[01][0-9][0-3][0-9](?:[.-][0-9]{1,6})?"
)
_ISO_DAY = re.compile(r"(?<![0-9])(?:19|20)[0-9]{2}-[01][0-9]-[0-3][0-9](?![0-9])")
_DAY = re.compile(_ISO_DAY.pattern + r"|(?<![0-9])[01]?[0-9]/[0-3]?[0-9]/(?:19|20)[0-9]{2}(?![0-9])")
_COMPACT_DAY = re.compile(
    r"(?:19|20)[0-9]{2}(?:0[1-9]|1[0-2])(?:0[1-9]|[12][0-9]|3[01])(?:[01][0-9]|2[0-3])?(?:[0-5][0-9]){0,2}"
)
_ONE_DECIMAL = re.compile(r"(?<![0-9.])[0-9]{1,6}\.[0-9]{1,6}(?![0-9.])")
_RATIO_FIRST = re.compile(r"0\.[0-9]{2,9} ")  # `0.969 9850`
_ALIGNED = re.compile(r"[0-9)] {3}|[0-9)] {2}[^ ].*[0-9)] {2}")  # numbers of several columns
_COMPANY = re.compile(r"[0-9]{7}-[0-9]")  # the number of a Finnish company
_OF_A_FILE = re.compile(r" \.{0,2}/[A-Za-z._]")  # `4839109 8669 /usr/bin/dpkg`, a checksum or a size and its file
_ZIP, _STATE_BEFORE = (
    re.compile(r"[0-9]{5}-[0-9]{4}"),
    re.compile(r"(?<![A-Za-z])[A-Z]{2}[\s#*]{1,8}\Z"),
)  # `MA 02110-1301`
_TWO_YEARS = re.compile(r"(?:1[5-9]|20)[0-9]{2} (?:1[5-9]|20)[0-9]{2}")
_STANDARD = re.compile(r"[0-9]{4}-(?:19|20)[0-9]{2}")  # `0208-1983`, its number and year
_REVISION = re.compile(
    r"[0-9]{1,2}(?:\.[0-9]{1,3}){1,3}-[0-9](?:\.[0-9]{1,2})?(?: .*)?"
)  # a version of a package: `2.13.1-4.5`
_HOURS = re.compile(r"(?:[01][0-9]|2[0-3])[0-5][0-9]-(?:[01][0-9]|2[0-4])[0-5][0-9]")  # `0900-1730`
_SETS = re.compile(r"(?:[0-7]-[0-7](?:\([0-9]{1,2}\))?(?: |\Z)){2,5}")  # of tennis
_SHARE_BEFORE = "% ("  # `66% (93610/140759)`, progress of git
_TENDER_BEFORE = re.compile(r"20[0-9]{2}/S \Z")  # in the supplement of the Official Journal: `2026/S 213-553208`
_POSTAL_CODE = re.compile(r"[0-9]{5}-[0-9]{3}|[1-9][0-9]{4}-[0-9]{4}")  # of Brazil and of the United States
_EPOCH_SECONDS = re.compile(r"1[0-9]{9}(?:\.[0-9]{1,9})?")
_FORMS = (_COMPACT_DAY, _EPOCH_SECONDS, _POSTAL_CODE, _STANDARD, _REVISION, _TWO_YEARS)
# Day and time at the start of a line, followed by process and thread: `081109 203615 148 INFO`.
_DAY_AND_TIME = re.compile(
    r"(?:[0-9]{2}(?:0[1-9]|1[0-2])(?:0[1-9]|[12][0-9]|3[01])[ -](?:[01][0-9]"
    r"|2[0-3])[0-5][0-9][0-5][0-9](?:[.,][0-9]{1,6})?)"
    r"(?: {1,3}[0-9]{1,7}){0,3}"
)
_LINE_BEFORE = re.compile(r"(?:\A|[\n>\[(|;\"'])[ \[]{0,2}\Z")
_CLOCK_BEFORE = re.compile(
    r"[0-9]{2}:[0-9]{2}:[0-9]{2}(?:[.,][0-9]{1,9}[Z\]]?|\])[ \t]{1,4}(?:[0-9]{1,9}[ \t]{1,8}){0,3}\Z"
)
_NUMERIC_CELL_BEFORE = re.compile(
    r"(?:(?:\A|[,;\t|\[({\n])[ ]{0,2}[\"']?|[ ]{2,4})-?[0-9]+(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?[\"']?[ ]?[,;\t"
    r"|][ ]{0,2}[\"']?-?\Z"
)
_NUMERIC_CELL_AFTER = re.compile(
    r"[\"']?[ ]?[,;\t|][ ]{0,2}[\"']?-?[0-9]+(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?[\"']?[ ]?(?=[,;\t|\])}\n]|\Z)"
)
_FIGURES_LINE = re.compile(r"[-+0-9.eE \t]{0,200}[0-9]\.[0-9]{3,17}[-+0-9.eE \t]{0,200}")
_MAIL_SIGN = re.compile(r"[^\W_]@[^\W_]")
_KERNEL_TIME = re.compile(r"[0-9]{1,9}\.[0-9]{6}")
_BYTES_BEFORE = re.compile(r"(?<![A-Za-z0-9])[0-9a-fA-F]{2} {1,2}[0-9a-fA-F]{2} {1,2}\Z")
_BYTES_BEHIND = re.compile(r" {1,2}[0-9a-fA-F]{2} {1,2}[0-9a-fA-F]{2}(?![A-Za-z0-9])")
# A line of `xxd`, `hexdump` or `objdump`: an address, then bytes in groups of one, two or four.
_DUMP_LINE = re.compile(
    r"[ \t]{0,8}(?:0x)?(?P<zeros>000)?[0-9a-fA-F]{4,16}(?::(?P<tab>(?=\t))?|(?= {2}))[ \t]+(?:(?:[0-9a-fA-F]{2}"
    r"|[0-9a-fA-F]{4}|[0-9a-fA-F]{8})[ \t]{1,2})*"
)
_DUMPED = re.compile(
    r"[0-9a-fA-F]{2}(?: {1,2}[0-9a-fA-F]{2})+|[0-9a-fA-F]{4}(?: {1,2}[0-9a-fA-F]{4})+"
    r"|[0-9a-fA-F]{8}(?: {1,2}[0-9a-fA-F]{8})+"
)
# Bytes of a JavaScript buffer, code points of Unicode.
_CODES_BEFORE = re.compile(
    r"<Buffer (?:[0-9a-f]{2} ){0,20}\Z|U\+[0-9A-F]{4,5} ?[=;-]>? ?(?:[0-9A-F]{4,5} ){0,4}\Z"
    r"|(?<![0-9A-Za-z])(?=[0-9]{0,3}[A-F])[0-9A-F]{4} \Z"
)
_DUMP_REACH = 90
_NO_HEX_LETTERS = str.maketrans("", "", "abcdefABCDEF")
_KEY_BEFORE = re.compile(
    r"(?:<(?!(?:td|th|p|li|b|i|span|div|dd|strong|em|code)[ >])[\w:.-]{1,20}(?: [^<>]{0,40})?>|[\w-]\"\s?:\s?\"?"
    r"|(?<![\w])[A-Za-z_]\w{0,24}=[\"'\[]?)\Z"
)
_REACH = 64
_RECORD = 240  # characters of a line on each side


def is_score(reading: Reading, begin: int, end: int) -> bool:
    """Return whether it is a ratio between 0 and 1, a percentage with several decimals, or the decimals of one."""
    if _POINT_BEFORE.search(reading, max(0, begin - 2), begin):
        begin -= 2
    return _SCORE.fullmatch(reading, begin, end) is not None


def is_share(reading: Reading, begin: int, end: int) -> bool:
    """Return whether ``reading[begin:end]`` is a ratio, a score or a percentage, its decimals, or a decimal cell."""
    if reading[begin - 1 : begin] in _CELL_SIGNS and _DECIMAL_CELL.fullmatch(reading, begin, end):
        return True
    if _POINT_BEFORE.search(reading, max(0, begin - 2), begin):
        begin -= 2
    return _SHARE.fullmatch(reading, begin, end) is not None


def is_figure(reading: Reading, begin: int, end: int) -> bool:
    """Return whether a number that nothing calls a phone is a measurement, a day, epoch seconds or a postal code."""
    written = reading[begin:end]
    return (
        is_measured(reading, begin, end)
        or is_dated(written)
        or any(form.fullmatch(written) for form in _FORMS)
        or _OF_A_FILE.match(reading, end) is not None
        or (
            _ZIP.fullmatch(written) is not None and _STATE_BEFORE.search(reading, max(0, begin - 12), begin) is not None
        )
        or (" " in written and written.count(".") == 1 and _PARTS_OF_AN_HOUR.fullmatch(written) is not None)
        or _is_several(written)
        or is_progress(reading, begin)
        or _TENDER_BEFORE.search(reading, max(0, begin - 7), begin) is not None
    )


def is_progress(reading: Reading, begin: int) -> bool:
    """Return whether a percentage before the number says that it is a part of a whole: `66% (93610/140759)`."""
    return begin > 0 and reading[begin - 1] == "(" and reading.endswith(_SHARE_BEFORE, 0, begin)


def is_hours(written: str) -> bool:
    """Return whether it is a range of hours: `0900-1730`."""
    return _HOURS.fullmatch(written) is not None


def _is_several(written: str) -> bool:
    """Whether it is two decimals, a range of hours, a score, a company's number, or numbers of several columns."""
    return (
        (written.count(".") > 1 and len(_ONE_DECIMAL.findall(written)) > 1)
        or _RATIO_FIRST.match(written) is not None
        or is_hours(written)
        or _COMPANY.fullmatch(written) is not None
        or _SETS.fullmatch(written) is not None
        or _ALIGNED.search(written) is not None
    )


def is_measured(reading: Reading, begin: int, end: int) -> bool:
    """Return whether a number without a name is a decimal, a time stamp, or follows a time as a process id does."""
    return (
        _DECIMAL.fullmatch(reading, begin, end) is not None
        or _CLOCK_BEFORE.search(reading, max(0, begin - _REACH), begin) is not None
        or is_stamp(reading, begin, end)
        or is_hex_dump(reading, begin, end)
        or (reading[begin - 1 : begin] == "[" and _KERNEL_TIME.fullmatch(reading, begin, end) is not None)
        or (reading[begin - 1 : begin] == ":" and reading[begin - 2 : begin - 1].isdigit())
        or _is_behind_a_comma(reading, begin, end)
    )


def is_dated(written: str) -> bool:
    """Return whether it is a range of years, an act with its year, or a version with a day.

    This holds even if a word calls it a phone.
    """
    if years := _YEARS.fullmatch(written):
        first, last = int(years[1]), int(years[2])
        is_span = first <= last <= min(_LATEST_YEAR, first + _LONGEST_SPAN)
        if is_span and (first >= _EARLIEST_OF_FOUR or "(" in written):
            return True
    return (
        _ACT.fullmatch(written) is not None
        or (" " in written and _ISO_DAY.search(written) is not None)
        or _VERSION_WITH_DAY.fullmatch(written) is not None
        or (_VERSION_FIRST.fullmatch(written) is not None and ("/ " in written or _DAY.search(written) is not None))
    )


def is_stamp(reading: Reading, begin: int, end: int) -> bool:
    """Return whether it starts a line and is a day and time, possibly followed by a process."""
    stamp = _DAY_AND_TIME.match(reading, begin)
    return (
        stamp is not None and stamp.end() >= end and _LINE_BEFORE.search(reading, max(0, begin - 3), begin) is not None
    )


def is_hex_dump(reading: Reading, begin: int, end: int) -> bool:
    """Return whether hexadecimal bytes are directly before or after it, or the line begins as one of a dump."""
    if _CODES_BEFORE.search(reading, max(0, begin - _REACH), begin):
        return True
    if _DUMPED.fullmatch(reading, begin, end):
        line = max(reading.rfind("\n", max(0, begin - _DUMP_REACH), begin) + 1, begin - _DUMP_REACH)
        if head := _DUMP_LINE.fullmatch(reading, line, begin):
            return head["zeros"] is not None or head["tab"] is not None or head[0].translate(_NO_HEX_LETTERS) != head[0]
    before = _BYTES_BEFORE.search(reading, max(0, begin - 8), begin)
    if before and not before[0].replace(" ", "").isdigit():
        return True
    behind = _BYTES_BEHIND.match(reading, end)
    return behind is not None and not behind[0].replace(" ", "").isdigit()


def is_keyed(reading: Reading, begin: int) -> bool:
    """Return whether a key, or an element that is not HTML, is directly before the number and names it."""
    return _KEY_BEFORE.search(reading, max(0, begin - _REACH), begin) is not None


def stands_among_figures(reading: Reading, begin: int, end: int) -> bool:
    """Return whether an adjacent cell holds only a number and the line has no e-mail address.

    A line with an e-mail address may be a person's record.
    """
    if not (
        _is_line_of_figures(reading, begin, end)
        or _NUMERIC_CELL_BEFORE.search(reading, max(0, begin - _REACH), begin)
        or _NUMERIC_CELL_AFTER.match(reading, end, end + _REACH)
    ):
        return False
    return not stands_in_a_record(reading, begin, end)


def _is_line_of_figures(reading: Reading, begin: int, end: int) -> bool:
    """Return whether the line holds nothing but numbers, one of them a decimal: `0.0790386 17960799 480702677`."""
    first = max(reading.rfind("\n", 0, begin) + 1, begin - _RECORD)
    until = reading.find("\n", end, end + _RECORD)
    return _FIGURES_LINE.fullmatch(reading, first, len(reading) if until < 0 else until) is not None


def stands_in_a_record(reading: Reading, begin: int, end: int) -> bool:
    """Return whether the line of a number contains an e-mail address."""
    first = max(reading.rfind("\n", 0, begin) + 1, begin - _RECORD)
    until = reading.find("\n", end, end + _RECORD)
    return _MAIL_SIGN.search(reading, first, min(len(reading), end + _RECORD) if until < 0 else until) is not None


def _is_behind_a_comma(reading: Reading, begin: int, end: int) -> bool:
    """Return whether the digits are the decimals after a decimal comma, not a list: `0,246783997558;`."""
    if not reading[begin:end].isdigit() or reading[end : end + 1] == ",":
        return False
    return _WHOLE_AND_COMMA_BEFORE.search(reading, max(0, begin - 9), begin) is not None
