"""Names of national numbers in a text: `PESEL: `, `numéro de sécurité sociale`, `"tax_id":`, a table heading."""

import re
from bisect import bisect_left
from collections.abc import Iterator
from typing import NamedTuple

from policy.redact.ids.kinds import IDS
from policy.redact.text.counts import counts, is_count
from policy.redact.text.reading import Reading, Spans
from policy.redact.text.tables import Column

# General names, which may refer to any kind.
GENERAL = (
    "national id*|national identi*|national insurance*|national number|national no|personal id*|personal code*"
    "|personal number*|personal no|personal nr|person id|person number|person no|personal identi*|identity "
    "number*|identity no|identity code|identification number*"
    "|identification no|identification code|id number*|id no|id nr|id code|id card*|id card number|tax id*|tax "
    "number*|tax no"
    "|tax code|tax ref*|taxpayer*|citizen id*|citizen number|citizen service*|social security*|social "
    "insurance*|ssn|ss number|nin"
    "|numero de identificacion*|numero identificativo|identidad|identite|identita|identiteit*|id nummer*|idnummer*|gov "
    "id"
    "|government id*|nationalid|taxid|personalid|numero fiscal*|health insurance n*|pension number|insurance "
    "number|nationalidnumber"
    "|personal ident*|state id*|fiscal code|fiscal number|national register*"
)
REACH = 40  # characters between a name and its number
_SHORT_REACH = 8  # for a name of one or two letters, which may be an ordinary word
_BEHIND = 36
_BRIEF = 8
_LETTERS_OF_A_NUMBER = 2  # `KT 08 69 22 C` begins with two letters that are a name in another country
_LONGEST_NAME = 48
# Excludes `11` in `fødselsnummer (11 siffer): `.
_NUMBER_START = re.compile(r"(?<![A-Za-z0-9_])(?:[A-Za-z]{1,9}|(?![0-9]{1,3}(?:[)\]:;]|,(?![0-9])| [^\W\d_]{3})))[0-9]")
# `Een paspoort kost € 77,85; aanvraag 4662317472`: the word before the number begins a new clause.
_OTHER_CLAUSE = re.compile(
    r"(?:[;!?]|(?<![Nn][ro])(?<!\.)\.) ?(?!(?i:num|nr|no\b|cod|kod|кож))(?:(?<=;)[^\W\d_]|(?<=; )[^\W\d_]"
    r"|[A-Z\u00c0-\u00de\u0391-\u03a9\u0410-\u042f])[^\W\d_]{2,15}:? (?:n[ro]\.? |n\.? ?º ?)?\Z"
)
_NUMBER_END = re.compile(
    r"(?P<number>[0-9][A-Za-z]{0,3})(?![A-Za-z0-9])(?P<letter>[ ./-][A-Z](?![A-Za-z0-9]))?[^0-9\n{}]*\Z"
)
_COUNTRY_BEFORE = re.compile(r"(?<![^\W_])([a-z]{2})[ _-]\Z")
_CLOSING_TAG = re.compile(r"</[\w:-]{0,13}\Z")  # `</clientEgn>` names the text before it
_NUMBER_FOLLOWS = re.compile(r"[^0-9\n]{0,12}(?![0-9]{1,3}(?:[)\]]| [^\W\d_]{3}))[0-9]")  # excludes `(12 siffror)`

_BRACKETED = re.compile(r"[0-9A-Za-z][\"'`*]{0,2} \((?:[^\W\d_]{1,10}[ -])?\Z")  # `34119004911 (ЕГН), …`
_NEXT_FIELD = re.compile(r"<(?:dt|th|tr|label|li|div)[ >]")  # the name belongs to the following field
_REST_OF_A_KEY = re.compile(r"[\w.-]{0,40}\"\s?:")  # `"passport_scans": 12` names what follows
_CLOSED = re.compile(r"[^0-9()]{0,12}\)(?! ?[:=]| ?[0-9])")

_FIELD_OF_A_PAGE = re.compile(r"[ :*]{0,3}</label>\s{0,4}<input[^<>]{0,80}?value=[\"']")
_LISTED = re.compile(r"\)\s{1,4}(?:VALUES|FROM)", re.IGNORECASE)
_TABULAR = re.compile(r"[;\t|]|,[^\s]|  ")


class Name(NamedTuple):
    """A name at ``text[start:end]``.

    ``kinds``: kinds that it may mean. ``is_short``: may be an ordinary word. ``is_general``: may mean any kind.
    """

    start: int
    end: int
    kinds: tuple[str, ...]
    is_short: bool
    is_general: bool


class Named(NamedTuple):
    """What the names of a number say about it.

    Attributes:
        kinds: kinds that the names may mean, nearest name first.
        is_general: the number may be of any kind.
        is_sure: the number is of one of these kinds or none.
        after: end of the nearest name of more than two letters, at most the number's offset; 0 if there is none.
    """

    kinds: tuple[str, ...]
    is_general: bool
    is_sure: bool
    after: int = 0


def _expression(name: str) -> str:
    parts = [re.escape(part).replace(r"\*", r"[^\W\d_]*") for part in name.split(" ")]
    return r"[ _.\-–'’°]{0,3}".join(parts) + r"(?![^\W\d_])"


class _Entry(NamedTuple):
    """A name in the lookup table.

    Attributes:
        pattern: matches the name.
        second: first letters of its second word.
        place: sort key: length of the first word, position in the table.
        kinds: kinds that it may mean.
        is_short: whether it has at most two letters.
        is_general: whether it may mean any kind.
    """

    pattern: re.Pattern[str]
    second: str
    place: tuple[int, int]
    kinds: tuple[str, ...]
    is_short: bool
    is_general: bool


class _Stem(NamedTuple):
    """Names that share their first part.

    ``whole``: for a word equal to that part. ``longer``: for a word that continues after it. ``seconds``: names with a
    second part, by its first letter.
    """

    whole: list[_Entry]
    longer: list[_Entry]
    seconds: dict[str, list[_Entry]]


_Stems = dict[str, _Stem]


def _kinds_by_name() -> dict[str, list[str]]:
    """Return the kinds in `IDS` that list each name; empty for a general name that no kind lists."""
    meant: dict[str, list[str]] = {}
    for kind, each in IDS.items():
        for name in each.names:
            meant.setdefault(name, []).append(kind)
    for name in GENERAL.split("|"):
        meant.setdefault(name, [])
    return meant


def _table() -> dict[str, list[tuple[int, _Stems]]]:
    """Return the names by the first three letters of a word, then by length and text of their first part."""
    general = frozenset(GENERAL.split("|"))
    entries: dict[str, _Stems] = {}
    for place, (name, kinds) in enumerate(_kinds_by_name().items()):
        parts = [part.rstrip("*") for part in name.split(" ")]
        first, joined = parts[0], "".join(parts)
        is_open = name.startswith(f"{first}*") or (len(parts) > 1 and not parts[1].isalpha())
        second = parts[1] if len(parts) > 1 and not is_open else ""
        pattern = re.compile(_expression(name))
        entry = _Entry(pattern, second, (len(first), place), tuple(kinds), len(joined) <= 2, name in general)
        for initial in {first[:3], joined[:3]}:
            stem = entries.setdefault(initial, {}).setdefault(first, _Stem([], [], {}))
            for group in (
                (stem.seconds.setdefault(second[:1], []),) if second else (stem.whole, stem.longer)[: 1 + is_open]
            ):
                group.append(entry)
    return {
        initial: [
            (length, {stem: each for stem, each in by_stem.items() if len(stem) == length})
            for length in sorted(set(map(len, by_stem)))
        ]
        for initial, by_stem in entries.items()
    }


# `ipp://host`, `Passport Reader`: a scheme, a device, an office.
_OF_OTHER_THINGS = re.compile(r"://|[ _-](?:reader|scanner|control|office|photo)s?(?![^\W\d_])")

_NAMES = _table()
_INITIALS = frozenset(_NAMES)


def names_in(reading: Reading) -> tuple[Name, ...]:
    """Return every name in the text, in order; cached in the reading."""
    known: tuple[Name, ...] | None = reading.__dict__.get("id_names")
    if known is None:
        known = reading.__dict__["id_names"] = tuple(_find(reading))
    return known


def _find(reading: Reading) -> Iterator[Name]:
    small = reading.folded
    if _INITIALS.isdisjoint(reading.initials):
        return
    words, starts = reading.words, reading.starts
    for index, head in enumerate(reading.heads):
        by_length = _NAMES.get(head)
        if by_length is None:
            continue
        word, start = words[index], starts[index]
        following, at = (words[index + 1], starts[index + 1]) if index + 1 < len(words) else ("", len(small))
        found = _starting_at(small, start, len(small), word, following, by_length)
        if not found and at < start + len(word):  # `tajNumber`
            found = _starting_at(small, start, at, small[start:at], "", by_length)
        if not found or _means_something_else(reading, start, found):
            continue
        end, entry = found[0] if len(found) == 1 else _joined(found)
        is_word = entry.is_short and small[end : end + 1] not in ".:\"'" and reading[start:end].islower()
        is_word = is_word and not _follows_its_country(small, start, entry)
        yield Name(start, end, entry.kinds, is_word, entry.is_general)


def _follows_its_country(small: str, start: int, entry: _Entry) -> bool:
    """Return whether the code of a kind's country stands before its short name, which is then no word: `ee ik`."""
    before = _COUNTRY_BEFORE.search(small, max(0, start - 4), start)
    return before is not None and any(kind[:2] == before[1] for kind in entry.kinds)


def _means_something_else(reading: Reading, start: int, found: list[tuple[int, _Entry]]) -> bool:
    """Return whether a closing tag, Niño (a person), a scheme or a device is written like the name at `start`."""
    small = reading.folded
    return (
        _CLOSING_TAG.search(small, max(0, start - 16), start) is not None
        or (small.startswith("nino", start) and not reading[start : start + 4].isascii())
        or any(_OF_OTHER_THINGS.match(small, end) for end, _ in found)
    )


def _joined(found: list[tuple[int, _Entry]]) -> tuple[int, _Entry]:
    """Return the longest of the names that begin at one position, with its end and the kinds of all of them."""
    found.sort(key=lambda each: (-each[0], each[1].place))
    end, longest = found[0]
    return end, longest._replace(
        kinds=tuple(dict.fromkeys(kind for _, entry in found for kind in entry.kinds)),
        is_short=all(entry.is_short for _, entry in found),
        is_general=any(entry.is_general for _, entry in found),
    )


def _starting_at(
    small: str, start: int, last: int, word: str, following: str, by_length: list[tuple[int, _Stems]]
) -> list[tuple[int, _Entry]]:
    """Return each name that begins at `start`, with its end. ``following``: the word after `word`."""
    found: list[tuple[int, _Entry]] = []
    for length, stems in by_length:
        stem = stems.get(word[:length])
        if stem is None:
            continue
        entries, rest = (stem.whole, following) if len(word) == length else (stem.longer, word[length:])
        for entry in entries:
            if match := entry.pattern.match(small, start, last):
                found.append((match.end(), entry))
        for entry in stem.seconds.get(rest[:1], ()):
            if rest.startswith(entry.second) and (match := entry.pattern.match(small, start, last)):
                found.append((match.end(), entry))
    return found


def named_numbers(reading: Reading) -> dict[int, Named]:
    """Return, by offset, the numbers after a name or in a named column; cached in the reading."""
    known: dict[int, Named] | None = reading.__dict__.get("named_numbers")
    if known is None:
        known = reading.__dict__["named_numbers"] = _named(reading)
    return known


def _named(reading: Reading) -> dict[int, Named]:
    found: dict[int, Named] = {}
    names = names_in(reading)
    if not names:
        return found
    headings = Spans((column.start, column.end) for column in reading.columns) if reading.columns else None
    for name in reversed(names):  # the nearest name comes first
        begin = _number_behind(reading, name, headings)
        if begin is not None and not is_count(reading, begin):
            _add(found, begin, name)
    for column in reading.columns:
        heading = _names_of_column(reading, names, column)
        for start, end in column.cells if heading else ():
            if number := _NUMBER_START.search(reading.latin, start, end):
                found.pop(number.start(), None)
                for name in heading:
                    _add(found, number.start(), name._replace(is_short=False))
    return found


def _number_behind(reading: Reading, name: Name, headings: Spans | None) -> int | None:
    """Return the offset of the number that a name refers to.

    None if the name refers to no number, to a number before it, or to the cells of a column.
    """
    if _is_bracketed(reading.latin, name):
        return None
    reach = _SHORT_REACH if name.is_short else REACH
    number = _NUMBER_START.search(reading.latin, name.end, name.end + reach + 8)
    if not number and (field := _FIELD_OF_A_PAGE.match(reading, name.end)):
        number = _NUMBER_START.match(reading.latin, field.end())
    if not number:
        return None
    begin = number.start()
    if name.is_general and "; " in reading[name.end : begin]:
        return None  # `a national ID has eleven digits; the case number is …`
    if headings and headings.covers(name.start, name.end) and _names_a_column(reading, name, begin):
        return None
    return None if _OTHER_CLAUSE.search(reading, name.end, begin) else begin


def _names_of_column(reading: Reading, names: tuple[Name, ...], column: Column) -> list[Name]:
    """Return the names in a column's heading.

    A short name counts only at the end of a key, or if it is the entire heading.
    """
    if counts(reading[column.start : column.end]):
        return []
    first, last = bisect_left(names, (column.start,)), bisect_left(names, (column.end,))
    is_brief = column.end - column.start <= _BRIEF  # `lv_pk`, `rc`: the heading is only the name
    return [
        name
        for name in names[first:last]
        if name.end <= column.end and (is_brief or not name.is_short or _ends_a_key(reading, name, column.end))
    ]


def _names_a_column(reading: Reading, name: Name, number: int) -> bool:
    """Return whether a name in a heading refers only to its column.

    This is not the case in prose whose lines contain commas.
    """
    between = reading[name.end : number]
    if "</t" in between or (")" in between and _LISTED.search(between)):
        return True
    line = reading[reading.rfind("\n", 0, name.start) + 1 : name.end + (between.find("\n") if "\n" in between else 0)]
    return "\n" in between and _TABULAR.search(line) is not None


def _ends_a_key(reading: Reading, name: Name, end: int) -> bool:
    """Return whether the name ends a key at `end`: `customer_rc`."""
    return name.end == end and name.start > 0 and reading[name.start - 1] == "_"


def _add(found: dict[int, Named], at: int, name: Name) -> None:
    after = min(name.end, at) if name.end - name.start > _LETTERS_OF_A_NUMBER else 0
    is_sure = not (name.is_general or name.is_short)
    before = found.get(at)
    if before is None:
        found[at] = Named(name.kinds, name.is_general, is_sure, after)
        return
    found[at] = Named(
        (*before.kinds, *(kind for kind in name.kinds if kind not in before.kinds)),
        before.is_general or name.is_general,
        before.is_sure or is_sure,
        before.after or after,
    )


def _is_bracketed(latin: str, name: Name) -> bool:
    """Return whether the name is in brackets directly after a number, and so refers to that number."""
    if latin.find("(", max(0, name.start - 12), name.start) < 0:
        return False
    before = _BRACKETED.search(latin, max(0, name.start - 14), name.start)
    number = before and _NUMBER_END.search(latin, max(0, before.start() - 4), before.start() + 1)
    return bool(number) and _CLOSED.match(latin, name.end) is not None


def numbers_before_names(reading: Reading) -> dict[int, Named]:
    """Return, by end offset, the numbers that a name follows with nothing numeric between: `… is my PESEL`.

    A name directly followed by a number refers to that number instead.
    """
    found: dict[int, Named] = {}
    for name in names_in(reading):
        if _REST_OF_A_KEY.match(reading, name.end):
            continue
        number = _NUMBER_END.search(reading.latin, max(0, name.start - _BEHIND - 4), name.start)
        if number and _NEXT_FIELD.search(reading.latin, number.end("number"), name.start):
            continue
        if number and (
            _is_bracketed(reading.latin, name) or not (name.is_short or _NUMBER_FOLLOWS.match(reading.latin, name.end))
        ):
            _add(found, number.end("number"), name)
            if number["letter"]:
                _add(found, number.end("letter"), name)
    return found
