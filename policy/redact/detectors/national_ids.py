"""National identification numbers: candidates that pass the check of a kind (`ids.kinds`), and the context they need.

A number whose format and check are rare enough needs no context. One with a weaker check counts in a text of its
country where nothing calls it an order or an invoice. One whose check one in ten random numbers passes, or that has no
check, counts only next to its name. A name is also decisive: the first number after it is of that kind or none, so a
PESEL with a typing error is not mistaken for an OIB.
"""

import re
from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

from policy.redact.contacts.phone_names import heads_phones, is_called_phone
from policy.redact.contacts.records import Record, records_in
from policy.redact.context.figures import (
    is_dated,
    is_hex_dump,
    is_keyed,
    is_measured,
    is_progress,
    is_score,
    stands_among_figures,
)
from policy.redact.context.harmless import called_otherwise, shaped_otherwise
from policy.redact.context.mrz import ZONE_SIGN, find_zones
from policy.redact.ids.chains import SHAPES_OF, Chain, chains_at, goes_on, holds
from policy.redact.ids.kinds import IDS, UNCHECKED, Needs, with_trait
from policy.redact.ids.names import Named, named_numbers, numbers_before_names
from policy.redact.text.reading import Reading, Spans

_TOKEN = re.compile(r"[A-Za-z0-9]+")
# First digit of a candidate: nine digits, eight after a letter, or six to eight and a letter; not a date.
_NEXT = "[ ./+-]{0,3}[0-9]"  # repeated literally, which is faster than a counted group
_FIRST_DIGIT = re.compile(
    rf"[0-9](?<![0-9][0-9])(?<![0-9][./-][0-9])(?={_NEXT * 5}(?:{_NEXT * 3}"
    r"|(?:[ ./+-]{0,3}[0-9]){1,2}[ ./+-]{0,3}[A-Za-z]{1,2}(?![A-Za-z])"
    r"|[ ./+-]{0,3}(?:[A-Za-z][ ./+-]{0,3}[0-9]|[A-DTa-dt](?![A-Za-z0-9]))|[0-9]{2}(?:(?<=[A-Za-z][0-9]{8})"
    r"|(?<=[A-Za-z][ .-][0-9]{8}))))"
    r"(?!(?:[0-9]{0,1}[ ./+-]{1,3}[0-9]){8})"
    r"(?!(?:[0-9]?[./-][01]?[0-9][./-](?:19|20)[0-9]{2}|[0-9]{3}-[01][0-9]-[0-3][0-9])(?![0-9./-]| [0-9]))"
)
_BRITISH = re.compile(r"[A-Za-z]{2}[ .-]{0,2}(?:[0-9][ .-]?){6}[A-DTa-dt](?![A-Za-z0-9])")
_BESIDE_LETTERS = " .+-"
_LETTERS_BEFORE = re.compile(
    r"(?<![A-Za-z0-9_+\u00c0-\u052f])(?<![^\W\d_]['’])(?!(?:n|[Nn][or]|N[OR]|be|is|to|on|je|er|es|ir|as|at|by|in|it|of|or|en"
    r"|et)[ .])[A-Za-z]{1,2}(?:[ .+-]{1,2})?\Z"
)
_SMALL_SERIES_BEFORE = re.compile(r"(?<![A-Za-z0-9_])[A-Za-z]{3}[ -]?\Z")
_SERIES_BEFORE = re.compile(r"(?<![A-Za-z0-9_])[A-Z]{3}[ -]?\Z")  # of a document: `CDB 600336`
_AREA_BEFORE = re.compile(r"\(\+?[0-9]{1,4}\) ?\Z")  # area code of a phone number
_ITALIAN = re.compile(
    r"[0-9LMNPQRSTUV][ ./+-]?[0-9LMNPQRSTUV][ ./+-]?[ABCDEHLMPRST][ ./+-]?[0-9LMNPQRSTUV][ ./+-]?[0-9LMNPQRSTUV]"
    r"[ ./+-]?"
    r"[A-Z](?:[ ./+-]?[0-9LMNPQRSTUV]){3}[ ./+-]?[A-Z](?![A-Za-z0-9_])",
    re.IGNORECASE,
)
_ITALIAN_NAME = re.compile(r"(?<![A-Za-z0-9_])[A-Za-z](?:[ ./+-]?[A-Za-z]){5}[ ./+-]?\Z")
_ITALIAN_HEAD = re.compile(r"[0-9][ ./+-]?[0-9][ ./+-]?[ABCDEHLMPRSTabcdehlmprst][ ./+-]?[0-9]")
_LONGEST_WRITTEN = 32
_BY_SHAPE: dict[str, list[str]] = {}
for _kind, _each in IDS.items():
    for _shape in _each.shapes:
        _BY_SHAPE.setdefault(_shape, []).append(_kind)


class _Alone(NamedTuple):
    """Kinds of one shape that need no name.

    ``anywhere``: need no context. ``written``: need none if written in their country's format. ``at_home``: by country.
    """

    anywhere: tuple[str, ...]
    written: tuple[str, ...]
    at_home: dict[str, tuple[str, ...]]


def _alone(kinds: list[str]) -> _Alone:
    by_needs = {needs: tuple(kind for kind in kinds if IDS[kind].needs is needs) for needs in Needs}
    free = [kind for kind in kinds if IDS[kind].needs is not Needs.NAME]
    at_home = {code: tuple(kind for kind in free if kind[:2] == code) for code in {kind[:2] for kind in free}}
    return _Alone(by_needs[Needs.NOTHING], by_needs[Needs.WRITTEN], at_home)


_ALONE = {shape: _alone(kinds) for shape, kinds in _BY_SHAPE.items()}
_WRITTEN = {kind: re.compile(each.written) for kind, each in IDS.items() if each.written}
# Kinds that count without a name only if the text uses the language of their country or no known language.
_HOME_ONLY = {kind: each.home for kind, each in IDS.items() if each.home}
_ONE_IN_TWENTY = with_trait("one_in_twenty")
_RARE = with_trait("rare")  # which generated numbers do not pass by chance
_DATE_CODED = with_trait("date_coded")


def find_national_ids(text: str, start: int) -> Iterator[tuple[int, int, str]]:
    """Yield the spans of valid numbers from `start` on, with their kind (a key of `IDS`)."""
    reading = text if isinstance(text, Reading) else Reading(text)
    settled: set[int] = set()
    yield from _named(reading, start, settled)
    behind = list(_behind(reading, start))
    yield from behind
    yield from _italian(reading.latin, start)
    if ZONE_SIGN in reading:
        for first, last in find_zones(reading, start):
            yield first, last, "mrz"
    known = Spans((first, last) for first, last, _ in behind) if behind else None
    if "@" in reading and (cells := list(_in_records(reading, start))):
        for first, last, kind in cells:
            if kind and first not in settled and not (known and known.covers(first, last)):
                yield first, last, kind
        known = Spans((first, last) for first, last, _ in (*behind, *cells))
    yield from _unnamed(reading, start, settled, known)


def _named(reading: Reading, start: int, settled: set[int]) -> Iterator[tuple[int, int, str]]:
    """Yield numbers after their names.

    Adds to `settled` the offset of each number that is of its name's kind or of none.
    """
    named = named_numbers(reading)
    for begin in sorted(named):
        if begin < start:
            continue
        if found := _best_named(reading, begin, named[begin]):
            settled.add(begin)
            yield found
        elif named[begin].is_sure or _is_a_slip(reading, begin, named[begin]):
            settled.add(begin)


def _unnamed(reading: Reading, start: int, settled: set[int], known: Spans | None) -> Iterator[tuple[int, int, str]]:
    """Yield numbers without a name, outside the `settled` offsets and `known` spans."""
    done = start
    for match in _FIRST_DIGIT.finditer(reading.latin, start):
        digit = match.start()
        if digit < done or digit in settled or reading.is_taken(digit):
            continue
        for begin in _begins(reading.latin, max(start, done), digit):
            if begin in settled or (known and known.covers(begin, begin + 1)):
                continue
            if begin != digit and reading.is_taken(begin):
                continue
            if shaped_otherwise(reading, begin, begin + 1):  # no number that begins there counts without a name
                continue
            if found := _best_alone(reading, begin):
                yield found
                done = found[1]
                break


def _begins(latin: str, start: int, digit: int) -> list[int]:
    """Return where a number with its first digit at `digit` may begin: at letters before it, or at the digit."""
    if digit < start:
        return []
    if not digit or not (latin[digit - 1].isalnum() or latin[digit - 1] in "_+ .-"):
        return [digit]
    letters = _LETTERS_BEFORE.search(latin, max(start, digit - 4), digit)
    if letters and letters[0][1:2].isalpha() and not _BRITISH.match(latin, letters.start()):
        letters = None  # no other number begins with two letters
    glued = latin[digit - 1] in "_+" or (latin[digit - 1].isascii() and latin[digit - 1].isalnum())
    return [*([letters.start()] if letters else ()), *(() if glued else (digit,))]


def _best_named(reading: Reading, begin: int, named: Named) -> tuple[int, int, str] | None:
    latin = reading.latin
    if latin[begin - 1 : begin] == "+":  # a calling code
        return None
    begins = [begin]
    series = _SMALL_SERIES_BEFORE if "pl_id" in named.kinds else _SERIES_BEFORE
    letters = None
    if latin[max(0, begin - 3) : begin].rstrip(_BESIDE_LETTERS)[-1:].isalpha():
        if latin[begin].isdigit() or latin[begin] in "OoIl|":
            letters = _LETTERS_BEFORE.search(latin, max(named.after, begin - 4), begin)
        letters = letters or series.search(latin, max(named.after, begin - 5), begin)
    if letters:
        begins.insert(0, letters.start())
    for at in begins:
        if found := _named_at(reading, at, named, chains_at(latin, at)[::-1]):
            return found
    return None


def _is_a_slip(reading: Reading, begin: int, named: Named) -> bool:
    """Return whether a number that passes no check has the format of what its name means: a typing error."""
    chains = chains_at(reading.latin, begin)
    return bool(chains) and chains[-1].shape in _shapes_meant(reading, named)


def _behind(reading: Reading, start: int) -> Iterator[tuple[int, int, str]]:
    """Yield numbers before their names, each from the earliest offset that gives a valid one."""
    latin = reading.latin
    for end, named in numbers_before_names(reading).items():
        for token in _TOKEN.finditer(latin, max(start, end - _LONGEST_WRITTEN), end):
            begin = token.start()
            if begin and (latin[begin - 1].isalnum() or latin[begin - 1] == "_"):
                continue
            if begin > 1 and latin[begin - 1] in "./-" and latin[begin - 2].isdigit():  # inside a date
                continue
            chains = [chain for chain in chains_at(latin, begin) if chain.end == end]
            if found := _named_at(reading, begin, named, chains):
                yield found
                break


def _named_at(reading: Reading, at: int, named: Named, chains: list[Chain]) -> tuple[int, int, str] | None:
    """Return the first kind that the name allows and a chain satisfies.

    For a general name, kinds without a check are tried last.
    """
    if not chains:
        return None
    for kind, chain in _named_order(reading, named, chains):
        if chain.groups > _FEW_GROUPS and IDS[kind].needs > Needs.WRITTEN and goes_on(reading.latin, chain):
            continue
        if chain.groups == _GROUPS_OF_A_DATE and _A_DATE.fullmatch(reading.latin, at, chain.end):
            continue
        if _is_something_else(reading.latin[at : chain.end], kind):
            continue
        if chain.compact.isdigit() and is_score(reading, at, chain.end):
            continue
        if kind in _MIXED and is_measured(reading, at, chain.end):
            continue
        if holds(kind, reading.latin, chain):
            return at, chain.end, kind
    return None


def _is_something_else(written: str, kind: str) -> bool:
    """Return whether a date, or a number with adjacent words, would pass as a `kind` with a weak check."""
    if _WORD_AND_DATE.fullmatch(written):
        return True
    is_mixed = kind in _MIXED and _LONE_LETTERS.match(written) is not None
    return kind in _LAX and (is_mixed or _A_DATE.fullmatch(written) is not None)


def _named_order(reading: Reading, named: Named, chains: list[Chain]) -> Iterator[tuple[str, Chain]]:
    """Yield kinds and chains to try: kinds of the text's countries before others, checked before unchecked ones."""
    return _general_order(reading, named, chains) if named.is_general else _own_order(reading, named, chains)


def _own_order(reading: Reading, named: Named, chains: list[Chain]) -> Iterator[tuple[str, Chain]]:
    """Yield the order for a name that means only its own kinds."""
    fitting = [
        (kind, chain)
        for kind in named.kinds
        for chain in chains
        if (chain.shape in SHAPES_OF[kind] or not (SHAPES_OF[kind] and chain.compact.isdigit()))
        and not (kind in UNCHECKED and len(named.kinds) > 1 and len(chain.compact) > _SHORT_NUMBER)
    ]
    if len(fitting) > 1 and len(named.kinds) > 1:
        fitting.sort(
            key=lambda each: (
                each[0][:2] not in reading.countries,
                each[0] in UNCHECKED or each[0] == "passport",
                each[0] in _MIXED,
            )
        )
    yield from fitting


class _Rank(NamedTuple):
    """Sort key of a kind; lower values are tried first.

    If ``first`` is equal, the position of the chain decides, then ``then``.
    """

    first: tuple[bool, bool, bool]
    then: tuple[bool, bool]


def _general_order(reading: Reading, named: Named, chains: list[Chain]) -> Iterator[tuple[str, Chain]]:
    """Yield the order for a general name.

    Such a name also allows kinds that need no name, and the kinds of the text's countries.
    """
    mistaken = _shapes_meant(reading, named)
    ranked: list[tuple[tuple[bool, bool, bool], int, tuple[bool, bool], Needs, str]] = []
    for index, chain in enumerate(chains):
        for kind in {*_BY_SHAPE.get(chain.shape, ()), *named.kinds}:
            if kind in UNCHECKED:
                rank = _rank_unchecked(reading, named, kind, chain)
            else:
                rank = _rank_checked(reading, named, kind, chain, mistaken)
            if rank is not None:
                ranked.append((rank.first, index, rank.then, IDS[kind].needs, kind))
    for _, index, _, _, kind in sorted(ranked):
        yield kind, chains[index]


def _rank_unchecked(reading: Reading, named: Named, kind: str, chain: Chain) -> _Rank | None:
    """Return the rank of a kind without a check; None if a general name does not allow it."""
    is_foreign, is_american = kind[:2] not in reading.countries, kind == "us_ssn"
    is_strange = is_foreign and not is_american and len(chain.compact) > _SHORT_NUMBER
    if kind not in named.kinds or is_strange or goes_on(reading.latin, chain):
        return None
    is_likely = is_american and _is_written(kind, reading.latin, chain)
    return _Rank((is_foreign and not is_american, not is_likely, False), (is_foreign, True))


def _rank_checked(reading: Reading, named: Named, kind: str, chain: Chain, mistaken: frozenset[str]) -> _Rank | None:
    """Return the rank of a kind with a check; None if a general name does not allow it.

    ``mistaken``: shapes of the name's own kinds; a number of such a shape is one of those kinds or none.
    """
    is_foreign, is_own = kind[:2] not in reading.countries, kind in named.kinds
    needs = IDS[kind].needs
    if not is_own:
        if kind in _OWN_NAME_ONLY:
            return None
        if is_foreign and (needs is Needs.NAME or chain.shape in mistaken or _is_old(kind, chain)):
            return None
    is_strong = is_own and needs is Needs.NOTHING
    is_meant = is_own or (kind in _DATE_CODED and not is_foreign)
    is_strange = not _is_written(kind, reading.latin, chain)
    return _Rank((is_foreign and not is_strong, kind in _MIXED, not is_meant), (is_foreign, is_strange))


def _shapes_meant(reading: Reading, named: Named) -> frozenset[str]:
    """Return the shapes of the kinds that a name means in the text's countries.

    A number of such a shape is one of those kinds or none.
    """
    return frozenset(
        shape
        for kind in named.kinds
        if kind[:2] in reading.countries and kind not in UNCHECKED
        for shape in SHAPES_OF[kind]
    )


def _is_written(kind: str, latin: str, chain: Chain) -> bool:
    return kind in _WRITTEN and _WRITTEN[kind].fullmatch(latin, chain.begin, chain.end) is not None


def _may_be_written(kind: str, latin: str, chain: Chain) -> bool:
    """Return whether a number is unbroken, or grouped as in its country if the country has a format."""
    return chain.groups == 1 or kind not in _WRITTEN or _is_written(kind, latin, chain)


def _is_written_apart(kind: str, latin: str, chain: Chain) -> bool:
    """Return whether the separators of its country, which are not spaces, separate it from adjacent numbers."""
    return " " not in latin[chain.begin : chain.end] and _is_written(kind, latin, chain)


def _best_alone(reading: Reading, begin: int) -> tuple[int, int, str] | None:
    latin = reading.latin
    chains = chains_at(latin, begin)
    for chain in reversed(chains):
        if chain.shape not in _ALONE:
            continue
        for kind in _ranked(reading, chain):
            if holds(kind, latin, chain):
                whole = chain is chains[-1] and (
                    begin < 2 or not (latin[begin - 1] == " " and latin[begin - 2].isdigit())
                )
                if _is_plausible(kind, latin, begin, chain) and _is_free(
                    reading,
                    kind,
                    begin,
                    chain,
                    is_whole=whole or chain.groups == 1 or _is_written_apart(kind, latin, chain),
                ):
                    return begin, chain.end, kind
                break
    return None


def _in_records(reading: Reading, start: int) -> Iterator[tuple[int, int, str] | tuple[int, int, None]]:
    """Yield the number cells of person records with their kinds, then the phone cell of such a record with None."""
    for record in records_in(reading, start):
        found = [(*cell, kind) for cell in record.others if (kind := _kind_of_cell(reading, cell, record))]
        yield from found
        if found and not any(begin <= record.phone[0] < end for begin, end, _ in found):
            yield *record.phone, None


def _kind_of_cell(reading: Reading, cell: tuple[int, int], record: Record) -> str | None:
    """Return the kind that a cell after a phone matches, preferring the record's countries; None if it matches none."""
    begin, end = cell
    chain = next((each for each in chains_at(reading.latin, begin) if each.end == end), None)
    if chain is None or chain.compact.isalpha():
        return None
    if shaped_otherwise(reading, *cell) or called_otherwise(reading, *cell) or heads_phones(reading, begin):
        return None
    scores = record.countries
    valid = [
        kind
        for kind in _kinds_in_record(chain, record)
        if not _is_old(kind, chain)
        and _may_be_written(kind, reading.latin, chain)
        and holds(kind, reading.latin, chain)
    ]
    return min(
        valid,
        key=lambda kind: (-scores.get(kind[:2], 0), kind not in _DATE_CODED, IDS[kind].needs, kind),
        default=None,
    )


def _kinds_in_record(chain: Chain, record: Record) -> list[str]:
    """Return the kinds of a chain's shape that may be in a record of its countries."""
    scores = record.countries
    # If nothing identifies the country, a cell may be of any. One in two nine-digit numbers is valid in some country.
    is_open = not record.is_sure and len(chain.compact) >= _SHORT_NUMBER and chain.compact[0].isdigit()
    kinds = [
        kind
        for kind in _BY_SHAPE.get(chain.shape, ())
        if kind not in _LAX
        and kind not in _OWN_NAME_ONLY
        and (kind[:2] in scores or kind in _DATE_CODED or IDS[kind].needs is Needs.NOTHING or is_open)
    ]
    if "de" in scores and chain.groups == 1 and len(chain.compact) == _GERMAN_DOCUMENT and chain.compact[0].isalpha():
        kinds.append("de_id")
    return kinds


def _is_plausible(kind: str, latin: str, begin: int, chain: Chain) -> bool:
    """Return whether a valid number without a name is written as people write it."""
    if kind in _DATED and not _DATED[kind].match(chain.compact):
        return False
    if _NEGATIVE.search(latin, max(0, begin - 2), begin):
        return False
    if chain.groups == 1:
        return True
    if (
        _A_DATE_AND.fullmatch(latin, begin, chain.end)
        or _TWICE.search(latin, begin, chain.end)
        or (chain.groups == _PARTS_OF_A_DECIMAL and _is_a_decimal(kind, latin, chain))
        or _A_SUM.fullmatch(latin, begin, chain.end)
        or (kind != "gb_nino" and _SMALL_WORD.search(latin, begin, chain.end))
    ):
        return False
    is_inner = begin > 0 and latin[begin - 1] == "-"
    return not (kind in _ONE_SIGN and (is_inner or len(set(latin[begin : chain.end]) & _SIGNS) > 1))


def _is_a_decimal(kind: str, latin: str, chain: Chain) -> bool:
    """Return whether a number has one point and its country does not write it so."""
    return _DECIMAL.fullmatch(latin, chain.begin, chain.end) is not None and not _is_written(kind, latin, chain)


def _ranked(reading: Reading, chain: Chain) -> Iterator[str]:
    """Yield the kinds that may count without a name, most likely first."""
    for kind, is_by_spelling in _candidates(chain.shape, chain.groups > 1, reading.countries):
        if kind in _FIRST and not is_by_spelling and chain.compact[0] not in _FIRST[kind]:
            continue
        if is_by_spelling and not _is_written(kind, reading.latin, chain):
            continue
        if (not is_by_spelling or kind == "lv_pk") and _is_old(kind, chain):
            continue
        yield kind


@lru_cache(maxsize=4096)
def _candidates(shape: str, is_grouped: bool, countries: frozenset[str]) -> tuple[tuple[str, bool], ...]:
    """Return the kinds of a shape that may count without a name in a text of these countries, most likely first.

    The second value says whether the kind counts only if the number is written in its country's format.
    """
    alone = _ALONE[shape]
    strong = [(2, kind, False) for kind in alone.anywhere]
    if is_grouped:
        strong += [(2, kind, True) for kind in alone.written]
    if not countries:
        return tuple((kind, by_spelling) for _, kind, by_spelling in sorted(strong))
    ranked = [
        (0 if kind[:2] in countries else rank, kind, by_spelling)
        for rank, kind, by_spelling in strong
        if kind not in _HOME_ONLY or countries & _HOME_ONLY[kind]
    ]
    for code in countries & alone.at_home.keys():
        ranked += [(1, kind, False) for kind in alone.at_home[code] if IDS[kind].needs is not Needs.NOTHING]
    return tuple((kind, by_spelling) for _, kind, by_spelling in sorted(ranked))


def _is_old(kind: str, chain: Chain) -> bool:
    """Return whether the number may lack a check digit.

    These are birth numbers from before 1954, and Latvian codes since 2017.
    """
    if kind == "lv_pk":
        return chain.compact.startswith("32")
    return len(chain.compact) == _OLD_BIRTH_NUMBER and kind in ("cz_rc", "sk_rc")


def _is_free(reading: Reading, kind: str, begin: int, chain: Chain, *, is_whole: bool) -> bool:
    """Return whether nothing contradicts the kind: adjacent digits, another format, another name."""
    if _is_of_another_kind(reading, kind, begin, chain):
        return False
    if IDS[kind].needs is Needs.NOTHING and kind not in _HOME_ONLY and kind not in _ONE_IN_TWENTY:
        return True
    if is_measured(reading, begin, chain.end):
        return False
    if chain.groups == 1 and chain.compact.isdigit() and IDS[kind].needs is Needs.COUNTRY and kind not in _DATE_CODED:
        return False
    if chain.compact.isdigit() and stands_among_figures(reading, begin, chain.end):
        return False
    return is_whole and not called_otherwise(reading, begin, chain.end) and not is_called_phone(reading, begin)


def _is_of_another_kind(reading: Reading, kind: str, begin: int, chain: Chain) -> bool:
    """Return whether the context shows a date, a phone, a hex dump or a program's key.

    This applies however rare the kind's check is.
    """
    is_grouped = chain.groups > 1
    if is_grouped and is_dated(reading[begin : chain.end]):
        return True
    if shaped_otherwise(reading, begin, chain.end) or _AREA_BEFORE.search(reading, max(0, begin - 8), begin):
        return True
    if is_grouped:
        return (
            is_hex_dump(reading, begin, chain.end)
            or is_progress(reading, begin)
            or (
                _NUMBER_BEFORE.search(reading, max(0, begin - 9), begin) is not None
                and not _is_written(kind, reading.latin, chain)
            )
        )
    return chain.compact.isdigit() and kind not in _RARE and is_keyed(reading, begin)


_FEW_GROUPS = 3
_PARTS_OF_A_DECIMAL = 2
_DECIMAL = re.compile(r"[0-9]+\.[0-9]+")
_NUMBER_BEFORE = re.compile(r"[0-9] {1,8}\Z")
_NEGATIVE = re.compile(r"(?:\A|[\s\"'=(\[{,:])-\Z")
_GROUPS_OF_A_DATE = 3
_GERMAN_DOCUMENT = 10  # characters with the check digit
_SHORT_NUMBER = 9  # digits; few numbers with a check are this short, so a match is unlikely to be chance
_A_DATE = re.compile(
    r"(?:[0-3]?[0-9]([./-])[01]?[0-9]\1(?:19|20)?[0-9]{2}|(?:19|20)[0-9]{2}([./-])[01]?[0-9]\2[0-3]?[0-9]"
    r"|[0-3]?[0-9]\.? [A-Za-z]{3,9} (?:19|20)[0-9]{2})"
)
_A_DATE_AND = re.compile(rf"{_A_DATE.pattern}[ ,.][A-Za-z]")  # `2025-03-12 p`
_TWICE = re.compile(r"  |\.\.")  # cells of a table, fields left blank: `6.8...6...34..8.3..17`
_WORD_AND_DATE = re.compile(rf"[A-Za-z]{{1,2}} (?:{_A_DATE.pattern})")  # `nascido a 16.05.1997`
# Thousands, possibly followed by a year
_A_SUM = re.compile(r"[1-9][0-9]{0,2}(?:\.[0-9]{3}){1,4}(?: (?:19|20)[0-9]{2})?")
_SMALL_WORD = re.compile(
    r"[0-9] [a-z]{1,2}\Z|\A[a-z]{1,2} [0-9]|[0-9]\. [A-Za-z]{1,2}\Z"
)  # adjacent to a number but not part of it
_DATED = {kind: re.compile(each.plausible) for kind, each in IDS.items() if each.plausible}
_SIGNS = frozenset(" ./-")
_ONE_SIGN = with_trait("one_sign")
_LONE_LETTERS = re.compile(r"[A-Za-z][ .-]|.*[ .-][A-Za-z]+\Z")
_MIXED = with_trait("mixed")
_OWN_NAME_ONLY = with_trait("own_name_only")
_LAX = UNCHECKED | _MIXED
_OLD_BIRTH_NUMBER = 9  # digits
_FIRST = {kind: each.first for kind, each in IDS.items() if each.first}


def _italian(latin: str, start: int) -> Iterator[tuple[int, int, str]]:
    """Yield codici fiscali. Their sixteen characters begin with six letters, so the search starts at the year."""
    for head in _ITALIAN_HEAD.finditer(latin, start):
        at = head.start()
        name = _ITALIAN_NAME.search(latin, max(start, at - 14), at)
        rest = _ITALIAN.match(latin, at) if name else None
        if name and rest:
            compact = "".join(filter(str.isalnum, latin[name.start() : rest.end()]))
            if IDS["it_cf"].is_valid(compact):
                yield name.start(), rest.end(), "it_cf"
