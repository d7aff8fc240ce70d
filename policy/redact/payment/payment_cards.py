"""Payment card numbers: issuer prefix and length (ISO/IEC 7812) and Luhn check digit, with or without groups."""

import re
from collections.abc import Iterator
from itertools import pairwise

from policy.redact.context.figures import is_hex_dump, stands_among_figures
from policy.redact.context.harmless import called_otherwise
from policy.redact.ids.kinds import IDS, UNCHECKED
from policy.redact.ids.names import named_numbers
from policy.redact.text.reading import Reading

_GROUPS = re.compile(
    r"[0-9](?<![A-Za-z0-9_+][0-9])(?<![0-9]\.[0-9])[0-9]{2,18}"
    r"(?:(?:\.[0-9]{4}){3}|\.[0-9]{6}\.[0-9]{4,5}|(?:[ -][0-9]{1,19})*)(?![A-Za-z0-9_]|\.[0-9])"
)
_GROUP = re.compile(r"[0-9]+")
_ACCOUNT_HEAD = re.compile(r"(?<![A-Za-z0-9])[A-Z]{2}[0-9]{2}[ -](?:[A-Z0-9]{4}[ -]){0,6}\Z")
_FIRST_DIGITS = frozenset("0123456")
_SHORTEST, _LONGEST = 12, 19
_LONGEST_ID = 15
_SURE = 14  # digits; shorter numbers need a name, to distinguish them from article and parcel numbers
_ISSUERS = re.compile(
    r"4(?:[0-9]{12}|[0-9]{15}|[0-9]{18})"  # Visa
    r"|(?:5[1-5][0-9]{2}|222[1-9]|22[3-9][0-9]|2[3-6][0-9]{2}|27[01][0-9]|2720)[0-9]{12}"  # Mastercard
    r"|3[47][0-9]{13}"  # American Express
    r"|3(?:0[0-5]|[689][0-9])[0-9]{11}"  # Diners Club
    r"|(?:6011|64[4-9][0-9]|65[0-9]{2})[0-9]{12,15}"  # Discover
    r"|35[0-9]{14,17}|(?:2131|1800)[0-9]{11}"  # JCB
    r"|62[0-9]{14,17}"  # UnionPay
    r"|(?:5018|5020|5038|5893|6304|6390|6759|676[1-3])[0-9]{8,15}|(?:50|67)[0-9]{14}(?:[0-9]{2,3})?"  # Maestro
    r"|(?:0604|5[678][0-9]{2})(?:[0-9]{8}|[0-9]{12})"
    r"|5019[0-9]{12}"  # Dankort
    r"|220[0-4][0-9]{12}"  # Mir
)
_HALF = 8  # digits of the longest group of two
_COORDINATE = 6  # digits; cards are not grouped like this, but rows of figures are
_THOUSANDS = 3  # digits; a card in such groups is no part of a longer row
_USUAL = 16  # digits; longer cards are written in groups or named
_LONG_NUMBER = re.compile(r"(?<![0-9.])[0-9]{13,19}(?![0-9.])")
_AROUND = 240  # characters
_EAN = 13  # digits; also the length of Visa cards of the last century
_SIGNS_OF_PROGRAMS = (":", "=", '"', "'")
_CARD = re.compile(
    r"card|kart|carte|tarjeta|c[aá]rta|cart[aã]o|kaart|kort|k[aá]rtya|kortel|visa|\bcc\b|pan|κάρτα|карт", re.IGNORECASE
)
_PAID_WITH = re.compile(
    r"\b(?:pay|paid|charge|bill|bezahl|zahl|abbuch|pag|paie|pay[eé]|cobr|betal|betaal|maks|plat|zap[lł]a|fizet|plač|mok[eė]|πληρ|плат)\w*[^0-9\n]{1,14}\Z",
    re.IGNORECASE,
)
_CARD_BEHIND = re.compile(rf"[\"')]{{0,2}} ?\((?:\w{{1,12}} )?(?:\w{{0,12}})(?:{_CARD.pattern})", re.IGNORECASE)
_DOUBLED = (0, 2, 4, 6, 8, 1, 3, 5, 7, 9)


def passes_luhn(digits: str) -> bool:
    """Return whether the last digit is the Luhn check digit (ISO/IEC 7812-1 annex B)."""
    values = [int(c) for c in reversed(digits)]
    return (sum(values[::2]) + sum(_DOUBLED[v] for v in values[1::2])) % 10 == 0


_QUARTERS, _SMALL_RISE = 4, 500


def find_cards(text: str, start: int) -> Iterator[tuple[int, int]]:
    """Yield the spans of card numbers from `start` on.

    Other numbers may be adjacent, so every group is tried as the first one of a card.
    """
    reading = text if isinstance(text, Reading) else Reading(text)
    for run in _GROUPS.finditer(text, start):
        if run.end() - run.start() < _SHORTEST:
            continue
        if _ACCOUNT_HEAD.search(text, max(0, run.start() - 36), run.start()):  # an IBAN with a typing error
            continue
        if reading.is_taken(run.start()):
            continue
        groups = [(m.start(), m.end()) for m in _GROUP.finditer(text, run.start(), run.end())]
        first = 0
        while first < len(groups):
            at, end = groups[first]
            is_inner = first > 0 and text[at - 1] == "-" and end - at < _SHORTEST  # part of an ISBN, for example
            last = None if is_inner or text[at] not in _FIRST_DIGITS else _last_group(reading, groups, first)
            if last is None:
                first += 1
                continue
            yield groups[first][0], groups[last][1]
            first = last + 1


def _last_group(reading: Reading, groups: list[tuple[int, int]], first: int) -> int | None:
    """Return the index of the last group of the longest card that begins with group `first`; None if there is none."""
    digits, last = "", None
    begin = groups[first][0]
    for index in range(first, len(groups)):
        digits += reading[slice(*groups[index])]
        if len(digits) > _LONGEST:
            break
        if len(digits) < _SHORTEST or not (_ISSUERS.fullmatch(digits) and passes_luhn(digits)):
            continue
        if _is_a_part(groups, first, index, len(digits)) or _is_of_a_row(reading, groups, first, index):
            continue
        if not _may_be_card(reading, groups[first : index + 1], digits):
            continue
        if (
            len(digits) >= _SURE
            or _heads_cards(reading, begin)
            or not called_otherwise(reading, begin, groups[index][1])
        ):
            last = index
        if len(digits) <= _LONGEST_ID and _is_named_id(reading, begin, digits):
            return None
    return last


def _is_a_part(groups: list[tuple[int, int]], first: int, last: int, digits: int) -> bool:
    """Return whether groups are the rest of a longer number that fails the check, or thousands beside others."""
    if first and digits < _SURE and _size(groups[first - 1]) == _size(groups[first]):
        return True
    return _size(groups[first]) == _THOUSANDS and (first > 0 or last + 1 < len(groups))


def _size(group: tuple[int, int]) -> int:
    return group[1] - group[0]


def _may_be_card(reading: Reading, groups: list[tuple[int, int]], digits: str) -> bool:
    """Return whether digits that pass the check are grouped like a card and are no article number or generated id."""
    begin = groups[0][0]
    if not _is_grouped([end - at for at, end in groups]):
        return False
    if len(groups) > 1 and is_hex_dump(reading, begin, groups[-1][1]):
        return False
    if len(groups) == 2 and begin and reading[begin - 1] == ":":  # a range of positions: `chr17:24024060-23655714`
        return False
    if len(digits) == _EAN and _is_article(reading, begin, digits):
        return False
    return len(groups) > 1 or not _is_a_word_of_64_bits(reading, begin, digits)


def _is_of_a_row(reading: Reading, groups: list[tuple[int, int]], first: int, last: int) -> bool:
    """Return whether four groups of more rise by little, as a table's numbers do: `2238 2244 2250 2256 2263 2268`."""
    if last - first + 1 != _QUARTERS or len(groups) == _QUARTERS:
        return False
    values = [int(reading[at:end]) for at, end in groups[first : last + 1]]
    return all(low < high for low, high in pairwise(values)) and values[-1] - values[0] < _SMALL_RISE


def _is_grouped(sizes: list[int]) -> bool:
    """Return whether card numbers are grouped in these sizes.

    Accepted are groups that begin with 4 and 6, and equal groups with the rest at the end.
    """
    return (
        len(sizes) == 1
        or sizes[:2] == [4, 6]
        or (
            len(set(sizes[:-1])) == 1
            and sizes[-1] <= sizes[0] != _COORDINATE
            and (len(sizes) > 2 or sizes[0] == sizes[1] <= _HALF)
        )
    )


def _heads_cards(reading: Reading, begin: int) -> bool:
    """Return whether the number is below a heading that names cards."""
    return reading.is_below(begin, "cards", lambda column: _CARD.search(reading, column.start, column.end) is not None)


def _is_article(reading: Reading, begin: int, digits: str) -> bool:
    """Return whether the number is also a valid article number (GS1 check digit) and nothing calls it a card."""
    if reading.columns or sum(int(digit) * (1, 3)[at % 2] for at, digit in enumerate(digits)) % 10:
        return False
    return _CARD.search(reading, max(0, begin - 40), begin) is None


def _is_a_word_of_64_bits(reading: Reading, begin: int, digits: str) -> bool:
    """Return whether an unbroken number may be an id generated by a program.

    It may if it is longer than cards usually are, has thirteen digits like an article number, is a program's value of
    twelve digits like an account of a cloud (`arn:aws:iam::…`), or is in a column of numbers of its length that fail
    the check. A number that is called a card is never one.
    """
    is_long = len(digits) > _USUAL or len(digits) == _EAN
    is_long = is_long or (
        len(digits) < _EAN and reading[max(0, begin - 3) : begin].rstrip(" ").endswith(_SIGNS_OF_PROGRAMS)
    )
    is_short = len(digits) < _USUAL and stands_among_figures(reading, begin, begin + len(digits))
    if not (is_long or is_short or _stands_among_failing(reading, begin, digits)):
        return False
    end = begin + len(digits)
    return not (
        _CARD.search(reading, max(0, begin - 40), begin)
        or _PAID_WITH.search(reading, max(0, begin - 24), begin)
        or _CARD_BEHIND.match(reading, end)
        or _heads_cards(reading, begin)
    )


def _stands_among_failing(reading: Reading, begin: int, digits: str) -> bool:
    """Return whether most nearby numbers of the same length fail the check, so this one passes by chance."""
    first, last = max(0, begin - _AROUND), begin + len(digits) + _AROUND
    others = [each[0] for each in _LONG_NUMBER.finditer(reading, first, last) if len(each[0]) == len(digits)]
    others = [each for each in others if each != digits]
    return len(others) > 1 and sum(map(passes_luhn, others)) * 2 < len(others)


def _is_named_id(reading: Reading, begin: int, digits: str) -> bool:
    named = named_numbers(reading).get(begin)
    return named is not None and any(IDS[kind].is_valid(digits) for kind in named.kinds if kind not in UNCHECKED)
