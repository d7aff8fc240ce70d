"""European postal addresses: a street of a known kind with its house number, then postal code and town.

Addresses are matched by pattern only; the words come from `grammar`. The house number may be before or after the
street. Without a word for a street, the sequence name, number, comma, postal code and town counts. An address has
several words, which a stream would have to buffer, so addresses are detected in prompts only.
"""

import re
from collections.abc import Iterator
from typing import NamedTuple
from unicodedata import normalize

from policy.redact.addresses.grammar import CODE, NAME, NUMBER, TOWN, UPPER, Block, LeadingCode, grammar, initials_of
from policy.redact.text.alphabet import LETTER
from policy.redact.text.reading import Reading

Found = tuple[int, int]

_GRAMMAR = grammar()
_INSIDE = _GRAMMAR.inside_of(())
_TOWN_BEHIND = re.compile(
    rf"(?: ?[.–-] {{1,2}}[0-9]{{5}},? {TOWN}(?![{LETTER}])|,{{0,2}} ?(?:\n ?"
    rf"|(?<=[ ,])){CODE},? ?\n?{TOWN}(?![{LETTER}])|,? {CODE},? {TOWN}(?![{LETTER}])"
    rf"|\.?, ?{TOWN}(?:,? {CODE}| [0-9]{{1,2}}(?![0-9]|[.,:][0-9])(?:,? {CODE})?)?(?![{LETTER}])"
    rf"|[ ,]{{0,2}}\n ?{TOWN}, (?:[A-Z]{{2}} )?[0-9]{{5,6}}(?![0-9])"
    rf"|[ ,]{{1,3}}{TOWN}, (?:[A-Z]{{2}} )?(?:LV-)?[0-9]{{4,6}}(?![0-9]))"
)
_ENGLISH_INITIALS = frozenset(kind[:3].lower() for kind in _GRAMMAR.before_number)
_ENGLISH = re.compile(
    rf"[0-9]{{1,4}}[A-Za-z]?,? (?:{NAME} ){{1,3}}(?:{'|'.join(_GRAMMAR.before_number)})(?![{LETTER}])\.?"
    rf"(?: [A-Z][0-9][0-9W] ?[0-9A-Z]{{4}}(?: {NAME}){{1,2}})?"
)
# `3 Maja`, `17. Juni`, `25 de Abril`: a date as the name of a street.
_DAY = (
    rf"[0-9]{{1,2}}(?:\.|[º°]|er)? (?:de |di )?(?i:{'|'.join(_GRAMMAR.months)})[{LETTER}]{{0,9}}"
    rf"(?: (?:18|19)[0-9]{{2}})?"
)
_OF = r"d[eu]s?|de[rmn]|aos?|às?|de la|del|della|delle|dei|da|do|dos|das|la|le|les|los|las|von|van|e|y|i"
_WORDS = re.compile(
    rf"(?: (?:(?:{_OF}) ){{0,2}}(?:(?:de )?[dl]['’]|[a-z]{{1,3}}-)?|(?<=[/.]))[„“\"»«]?(?:{NAME}(?: {_DAY})?|{_DAY})"
    rf"(?:[ -](?:(?:{_OF}) ){{0,2}}(?:[dl]['’])?{NAME}){{0,3}}[”“\"»«]?"
    rf"(?P<number>,? (?:(?:n[r.°º]{{1,2}} ?)?{NUMBER}|[Ss]/[Nn])(?![{LETTER}0-9]))?"
)
_DAY_NAMED = re.compile(_DAY)
_KIND = re.compile(rf"[{LETTER}]+(?:-[{LETTER}]{{2,3}})?[./]?")
_KIND_INITIALS = initials_of(_GRAMMAR.in_front)
_NUMBER_BEFORE = re.compile(rf"(?<![{LETTER}0-9]){NUMBER}(?: (?:bis|ter))?,? \Z")
_HOUSE = re.compile(
    rf"[0-9](?<![{LETTER}0-9.,/][0-9])(?![0-9]{{4}}){NUMBER.replace('{1,4}', '{0,3}', 1)}(?![{LETTER}0-9]|\.[0-9])"
)
_NAME_ENDS = re.compile(rf"(?:[{LETTER}.'’”\"»«°)],? ?|, ?)\Z")
_DAY_OF_A_MAIL = re.compile(
    r"(?:January|February|March|April|May|June|July|August|September|October|November"
    r"|December) [0-9]{1,2}, [0-9]{4} [A-Z]{2,4}(?![A-Za-z])|\w{0,40} ?(?:Mon|Tue|Wed|Thu|Fri|Sat"
    r"|Sun) [A-Z][a-z]{2} [0-9]{1,2}(?![0-9])"
)
_COPYRIGHT, _NOTICE_REACH = re.compile(r"[Cc]opyright|©|\([Cc]\)"), 400
_FIRST_DIGIT = re.compile(r"[0-9]{1,4}")


def _names_before(joints: str) -> re.Pattern[str]:
    return re.compile(
        rf"(?<![{LETTER}])(?:[{LETTER}]{{2,9}}\. )?(?:(?:Unter|Auf|An|In|Zum|Zur) (?:den|der|dem) )?"
        rf"(?:{NAME},? (?:(?:{joints}) )?){{1,5}}(?:(?:al|pr|g|ul|u|tn|pl)\. )?(?:Nr\.? |č\. |no\. )?\Z"
    )


_JOINTS = rf"{_OF}|in|am|an der|pri|III?|IV"
_NAMES_BEFORE = _names_before(_JOINTS)
# `Vozna pot na Grad 9a`: asked only where such a word stands, since it is slower.
_SLAVIC_JOINTS = (" na ", " nad ", " pod ", " v ", " ob ")
_SLAVIC_NAMES_BEFORE = _names_before(rf"{_JOINTS}|(?:(?:pot|cesta|ulica|steza) )?(?:na|nad|pod|v|ob)")
# `Pod bregom 987, 2991 Tržič`: lower-case words after a preposition or a kind of way, if code and town follow.
_SMALL_NAMES_BEFORE = re.compile(
    rf"(?<![{LETTER}])(?:{'|'.join(_GRAMMAR.small_heads)}) (?:[{LETTER}]{{1,16}}\.? ){{1,4}}\Z"
)
_ROMAN, _ROMAN_ENDS = re.compile(r" [IVX]{1,8}\.?\Z"), frozenset("IVX.")
# Particles inside a street's name. Other small words, as in `Anna Bergman woont op Lindering 5`, are not part of it.
_PARTICLE = (
    r"(?:d[eu]r?|de[mns]|het|'t|te[nr]?|v[ao]n|vom|a[mn]|im|zu[mr]|auf|unter|la|le|og|och|i|på|a[fv]|n[ao]|pri|p[oř]d?"
    r"|u|v[e]?|ke?|ze?|od"
    r"|do|the|of|el|y|e|en|al|sv|svet\w{1,4})"
)
# `Vester Farimagsstræde`, `Norra Strandgatan`
_SIDES = (
    "Vester|Øster|Nørre|Sønder|Gammel|Gamle|Ny|Nye|Store|Lille|Nedre|Øvre|Norra|Södra|Östra|Västra|Stora|Lilla|Gamla"
    "|Nya|Övre|Nedre|Nordre|Søndre|Østre|Vestre|Alte|Neue|Große|Kleine|Obere|Untere|Hintere|Vordere|Oude|Nieuwe"
)
# At least one capital: `by the way 12` is not a street, but `Hoher Weg 12` and `Unter den Eichen-Allee 3` are.
_STREET = re.compile(
    rf"(?<![{LETTER}]){NAME}[ -](?:(?:{UPPER}[{LETTER}.'’]{{0,24}}|{_PARTICLE})[ -]){{0,3}}[{LETTER}]{{1,12}}\.?\Z"
    rf"|(?<![{LETTER}])(?:(?:{_SIDES}) )?{NAME}(?: [{LETTER}]{{1,16}} (?:utca|út|útja|tér|tere|körút))?\Z"
)
_ENDING = re.compile(rf"(?:{'|'.join(map(re.escape, sorted(_GRAMMAR.behind, key=len, reverse=True)))})\Z")
# Here only a country code may precede a postal code, and no decimal comma may follow: `BWV 1007, KV 525`, `145,650
# MHz`.
_PLAIN_CODE = (
    r"(?:(?:[A-Z]{1,2}-|[A-Z] (?=[0-9]{4,5} [A-Z]))?[0-9]{3,6}(?:[ -][0-9]{2,3})?(?: ?[A-Z]{2}\b)?"
    r"|[A-Z]{1,2}[0-9][0-9A-Z]? [0-9][A-Z]{2}"
    r"|[A-Z][0-9][0-9W] ?[0-9A-Z]{4}|[0-9]{2}-[0-9]{3}|(?:ΤΚ|TK"
    r"|T\.K\.) ?[0-9]{3} ?[0-9]{2})(?![0-9A-Z])(?!(?<![0-9]{5}),)"
)
_CODE_AND_TOWN = re.compile(
    rf"{_INSIDE.pattern}\.?(?:,{{1,2}} | ?[.–-] (?=[0-9]{{5}} )|,(?=[0-9]{{5}} )|,? ?\n ?)(?!(?:19[89][0-9]|200[1-9]"
    rf"|20[12][0-9]|203[0-5]) )"
    rf"(?P<code>{_PLAIN_CODE}),? ?\n?{TOWN}(?![{LETTER}])"
    rf"|{_INSIDE.pattern}(?:, ?| ?\n ?){TOWN}, (?:[A-Z]{{2}} )?[0-9]{{5,6}}(?![0-9])"
)
_LINE_AND_TOWN = re.compile(rf"(?:,? ?\n|, )(?:{CODE} {TOWN}(?![{LETTER}])|{TOWN}, [0-9]{{6}}(?![0-9]))")
# `Ulica svornosti 489, 845 61 Čižatice`: a lower-case street name counts if postal code and town follow.
_SMALL_WORDS = re.compile(
    rf"(?: [0-9]{{1,2}}\.)?(?: [{LETTER}]{{2,16}}){{1,3}} {NUMBER}(?:, ?|,? ?\n ?){CODE} {TOWN}(?![{LETTER}])"
)
# Kinds that precede a name only with an article: `Straße des 17. Juni 135`, `Platz der Republik 1, 11011 Berlin`.
_ARTICLE = re.compile(r" (?:de[srm]|am|im) ")
# `Apt 12, `, `Résidence Les Pins, `, `Stiege 2 Tür 15, ` before the house number.
_UNIT_BEFORE = re.compile(
    rf"(?<![{LETTER}])(?:(?:{'|'.join(_GRAMMAR.units_before)})\.? ?(?:[0-9]{{1,4}}[A-Za-z]?|[A-Z])(?: ?[-/,]? |, ?"
    rf"| ?\n)"
    rf"|(?:{'|'.join(_GRAMMAR.houses)})(?: (?:{_OF}))?(?: {NAME}){{1,3}}(?:, ?| ?\n)){{1,3}}\Z"
)
_LONGEST_UNIT = 60
# `Rožna dolina, cesta IV 1c`: such a road has only a number, and its quarter is part of the address.
_ROMAN_NAME = re.compile(" [IVX]{1,8} ")
_QUARTER_BEFORE = re.compile(rf"(?<![{LETTER}]){NAME}(?: [{LETTER}]{{2,14}})?, \Z")
# `Ob potoku 6c\n4763 Ljubljana`, `Mlynské nivy 55, 040 01 Košice`: only on a separate line or before a long postal
# code.
_SMALL_NAME_BEFORE = re.compile(rf"(?<![{LETTER}]){NAME} (?:(?![A-Z])[{LETTER}]{{3,16}} ){{1,2}}(?:[IVX]{{1,4}} )?\Z")
_SHORT_CODE = 4  # digits
_THREE_DIGITS = re.compile("[0-9]{3}")  # postal code of Iceland
_YEAR = re.compile("(?:19|20)[0-9]{2}")
_POSTAL_CODE = re.compile(r"(?<![0-9])(?!(?:19|20)[0-9]{2}(?![0-9A-Z -]))[0-9]{2,3}[ -]?[0-9]{2,3}")
_NO_STREET = re.compile(
    r"(?:lager|lehr|spiel|bau|sitz|steh|stell|park|arbeits|liege|speicher|treff|markt ?stand|start|tabellen)(?:platz"
    r"|plads|ring)\Z"
    r"|\b(?:um|aus|rück|hin)weg\Z"
)
_TOWN_FIRST = re.compile(
    rf"(?<![{LETTER}0-9])[1-9][0-9]{{3}} {NAME}, ?(?:{NAME} ){{1,4}}(?:{'|'.join(_GRAMMAR.behind_town)})\.? \Z"
)
_TOWN_FIRST_ENDS = tuple(f"{kind}{dot} " for kind in _GRAMMAR.behind_town for dot in ("", "."))
_BOX = re.compile(rf"(?:{'|'.join(_GRAMMAR.boxes)})(?: n[.°ro]{{1,2}})? [0-9][0-9 ]{{0,9}}")
_BOX_INITIALS = frozenset(match[0][:3] for each in _GRAMMAR.boxes if (match := re.match("[a-z]+", each)))
_BOX_TOWN = re.compile(rf"(?: {NAME})?(?:,? ?\n|, ?){CODE} {TOWN}(?![{LETTER}])")
# `1061 Budapest, ` before the street.
_TOWN_BEFORE = re.compile(rf"(?<![{LETTER}0-9])[1-9][0-9]{{3}} {NAME}, ?\Z")
_LONGEST_NAME = 96
_FIELD = re.compile(
    rf"(?:{'|'.join(sorted(_GRAMMAR.fields, key=len, reverse=True))})(?![^\W\d_])[\"']?\s?[:=]\s{{0,3}}[\"']?"
)
_FIELD_INITIALS = frozenset(field[:3] for field in _GRAMMAR.fields)
_OTHER_ADDRESS = re.compile(r"(?:mail|ip|mac|web|bus|http|hardware|memory|server|net|speicher|wallet)[ _.-]{0,2}\Z")
# A word and then a house number, up to the end of the line, the field or the sentence.
_VALUE = re.compile(
    rf"[{LETTER}][{LETTER}0-9 ,.'’/ºª°&-]{{2,60}}?[ ,][0-9]{{1,4}}(?![0-9.:])[{LETTER}0-9 ,'’/ºª°-]{{0,48}}?(?=\.? ?(?:"
    rf"[\n\r;\"<>|]|\Z)|\. [A-Z])"
)
_NO_HOUSE = re.compile(r"[0-9]{6}|[0-9]\.[0-9]|(?:19|20)[0-9]{2}-|\b(?:of|bytes?|bits?|is|was|see)\b")
_LAST_WORD = re.compile(rf"([{LETTER}]+\.?),? ?\Z")
_CITED = re.compile(rf"§+ ?[0-9]{{1,4}}[a-z]?(?:[, ]{{1,2}}[{LETTER}0-9.]{{1,10}}){{0,6}}[, ]{{0,2}}\Z")
_QUOTE_AND_COMMA = re.compile(r"['\"][,)](?: |$)|['\"], ?['\"]")  # the end of one value in a list


class _Street(NamedTuple):
    """The name of a street before its house number.

    ``length``: characters up to the house number. ``languages``: languages of its kind of street.
    """

    length: int
    languages: frozenset[str]


def find_addresses(text: str, start: int) -> Iterator[Found]:
    """Yield the spans of postal addresses from `start` on, including the town if it follows."""
    if not _FIRST_DIGIT.search(text, start):
        return
    reading = text if isinstance(text, Reading) else Reading(text)
    for form in _FORMS:
        for first, last in form(reading, start):
            end = _before_a_quote(text, first, last)
            if not _FIRST_DIGIT.search(text, first, end) or _DAY_OF_A_MAIL.match(text, first):
                continue
            unit = _UNIT_BEFORE.search(text, max(start, first - _LONGEST_UNIT), first)
            yield (unit.start() if unit else first), end


def _is_of_a_notice(text: str, at: int) -> bool:
    """Return whether a number is the year of a copyright notice, which a holder's name follows: `2016 Iain Lane`."""
    return bool(_YEAR.match(text, at) and _COPYRIGHT.search(text, max(0, at - _NOTICE_REACH), at))


def _before_a_quote(text: str, first: int, last: int) -> int:
    """Return the end of an address, cut at the end of a quoted list value.

    No value continues after its closing quote.
    """
    cut = _QUOTE_AND_COMMA.search(text, first, last)
    return cut.start() if cut else last


def _houses(reading: Reading, start: int) -> Iterator[Found]:
    """Yield addresses with the number after the street, and English ones with the number before it."""
    text: str = reading
    may_be_english = not _ENGLISH_INITIALS.isdisjoint(reading.initials)
    for house in _HOUSE.finditer(text, start):
        if reading.taken and reading.is_taken(house.start()):
            continue
        if may_be_english and (english := _ENGLISH.match(text, house.start())):
            end = _with_town(text, english.end(), frozenset({"gb"}))
            if end > english.end() or not _is_of_a_notice(text, house.start()):
                yield house.start(), end
        if not _NAME_ENDS.search(text, max(start, house.start() - 3), house.start()):
            continue
        before = text[max(start, house.start() - _LONGEST_NAME) : house.start()]
        if (
            found := (
                _behind_a_kind(reading, start, house, before)
                or _behind_its_town(text, house, before)
                or _before_a_code(reading, house, before)
            )
        ) and not _is_citation(before):
            yield found


def _behind_a_kind(reading: Reading, start: int, house: re.Match[str], before: str) -> Found | None:
    """Match a number after a kind of street: `Hauptstraße 5`, `1061 Budapest, Andrássy út 12`."""
    street = _street_before(before)
    if street is None:
        return None
    begin = house.start() - street.length
    end = _with_town(reading, house.end(), street.languages)
    town_before = _TOWN_BEFORE.search(reading, max(start, begin - 40), begin)
    if town_before:
        return town_before.start(), end
    if _GRAMMAR.loose_behind.search(before) and not _has_code(reading, house.end(), end):
        return None
    return begin, end


def _behind_its_town(text: str, house: re.Match[str], before: str) -> Found | None:
    if not before.endswith(_TOWN_FIRST_ENDS):
        return None
    town = _TOWN_FIRST.search(before)
    return (house.start() - len(town[0]), _with_town(text, house.end(), frozenset({"hu"}))) if town else None


def _before_a_code(reading: Reading, house: re.Match[str], before: str) -> Found | None:
    """Match a number after a name without a kind of street, if a postal code and a town follow."""
    if _YEAR.fullmatch(house[0]):
        return None
    town = _CODE_AND_TOWN.match(reading, house.end())
    if town is None:
        return None
    if town["code"] and _THREE_DIGITS.fullmatch(town["code"]) and "is" not in reading.countries:
        return None
    is_slavic = any(joint in before for joint in _SLAVIC_JOINTS)
    names = _SMALL_NAMES_BEFORE.search(before)
    names = names or (_SLAVIC_NAMES_BEFORE if is_slavic else _NAMES_BEFORE).search(before)
    if names is None and ("\n" in town[0] or sum(map(str.isdigit, town[0])) > _SHORT_CODE):
        names = _SMALL_NAME_BEFORE.search(before)
    return (house.start() - len(names[0]), town.end()) if names else None


def _is_citation(before: str) -> bool:
    """Return whether the word before a number makes it a citation: `Satz 1, 172 FGO`, `Slg. 1993, I-4023`."""
    word = _LAST_WORD.search(before)
    return (word is not None and word[1].lower() in _GRAMMAR.not_streets) or (
        "§" in before and _CITED.search(before) is not None
    )


def _leading_codes(reading: Reading, start: int) -> Iterator[Found]:
    for rule in _GRAMMAR.leading_codes:
        if rule.quick.search(reading, start):
            yield from _led_back(reading, start, rule)


def _led_back(text: str, start: int, rule: LeadingCode) -> Iterator[Found]:
    for code in rule.code.finditer(text, start):
        for head in rule.head.finditer(text, max(start, code.start() - rule.reach), code.start()):
            whole = rule.whole.match(text, head.start())
            if whole and whole.end() == code.end():
                yield head.start(), code.end()
                break


def _boxes(reading: Reading, start: int) -> Iterator[Found]:
    """Yield post office boxes: `Postfach 12 34, 10115 Berlin`."""
    for at in reading.words_from(_BOX_INITIALS):
        box = _BOX.match(reading.folded, at) if at >= start else None
        if box and (line := _BOX_TOWN.match(reading, at + len(box[0].rstrip()))):
            yield at, line.end()


def _blocks(reading: Reading, start: int) -> Iterator[Found]:
    for block in _GRAMMAR.blocks:
        yield from _of_block(reading, start, block)


def _of_block(reading: Reading, start: int, block: Block) -> Iterator[Found]:
    for at in reading.words_from(block.initials):
        if at >= start and reading[at] in block.letters and (found := block.pattern.match(reading, at)):
            yield found.span()


def _kinds_in_front(reading: Reading, start: int) -> Iterator[Found]:
    """Yield addresses that begin with a kind of street: `12 rue de la Paix`, `Via Roma 5`, `ul. Długa 7`."""
    for at in reading.words_from(_KIND_INITIALS):
        word = _KIND.match(reading, at)
        if at < start or not word:
            continue
        written = word[0].lower()
        if kind := _kind_in(written):
            yield from _in_front(reading, start, at, at + len(kind), kind)
        elif not written.isascii() and (composed := normalize("NFC", written)) in _GRAMMAR.in_front:
            yield from _in_front(reading, start, at, word.end(), composed)


def _kind_in(written: str) -> str | None:
    """Return the kind of street that a word is, with or without the part after its hyphen; None if it is none."""
    for kind in (written, written.partition("-")[0]):
        if kind in _GRAMMAR.in_front:
            return kind
    return None


def _in_front(reading: Reading, start: int, at: int, end: int, kind: str) -> Iterator[Found]:
    """Yield addresses whose kind of street is ``reading[at:end]``."""
    name = _WORDS.match(reading, end)
    if kind in _GRAMMAR.articled and not (name and name["number"] and _ARTICLE.match(reading, end)):
        return
    if (name is None or not name["number"] or name["number"].endswith(".")) and (
        line := _SMALL_WORDS.match(reading, end)
    ):
        yield at, line.end()
    if name is None:
        return
    first = _NUMBER_BEFORE.search(reading, max(start, at - 16), at)
    if not first and not name["number"]:
        if line := _LINE_AND_TOWN.match(reading, name.end()):
            yield at, line.end()
        return
    if found := _with_number(reading, start, first.start() if first else at, name, kind):
        yield found


def _with_number(reading: Reading, start: int, begin: int, name: re.Match[str], kind: str) -> Found | None:
    """Return the address from `begin` on of a street with a house number, including its town.

    Returns None for a kind of street that is also another word, unless a following town or a date as the street's name
    confirms the street.
    """
    whole = _with_town(reading, name.end(), _GRAMMAR.in_front[kind])
    is_bare = kind in _GRAMMAR.bare or kind in _GRAMMAR.articled
    if is_bare and not _TOWN_BEHIND.search(reading, name.end(), whole) and not _DAY_NAMED.search(name[0]):
        return None
    if kind == "cesta" and _ROMAN_NAME.match(reading, name.start()):
        quarter = _QUARTER_BEFORE.search(reading, max(start, begin - 40), begin)
        begin = quarter.start() if quarter else begin
    return begin, whole


def _fields(reading: Reading, start: int) -> Iterator[Found]:
    """Yield values of address fields, also in lower case: `Domicilio: Calle la bañeza 38, 9A`."""
    for at in reading.words_from(_FIELD_INITIALS):
        name = _FIELD.match(reading.folded, at) if at >= start else None
        if name is None or _OTHER_ADDRESS.search(reading.folded, max(0, at - 12), at):
            continue
        value = _VALUE.match(reading, name.end())
        if value and not _NO_HOUSE.search(value[0]):
            yield value.span()


_FORMS = (_fields, _houses, _leading_codes, _boxes, _blocks, _kinds_in_front)


def _street_before(before: str) -> _Street | None:
    """Return the street whose name `before` ends in, or None."""
    words = before.removesuffix(" ").removesuffix(",")
    for suffix in (" nr", " nr.", " Nr."):
        words = words.removesuffix(suffix)
    if words[-1:] in _ROMAN_ENDS:
        words = _ROMAN.sub("", words)
    small = normalize("NFC", words.lower())
    if not small.endswith(_GRAMMAR.behind) or _NO_STREET.search(small):
        return None
    name, ending = _STREET.search(words), _ENDING.search(small)
    if name is None or ending is None or normalize("NFC", name[0].lower()) in _GRAMMAR.behind:
        return None
    return _Street(len(before) - name.start(), _GRAMMAR.languages_behind[ending[0]])


def _has_code(text: str, start: int, end: int) -> bool:
    """Return whether a postal code, not a year, is in ``text[start:end]``."""
    return _POSTAL_CODE.search(text, start, end) is not None


def _with_town(text: str, end: int, languages: frozenset[str]) -> int:
    """Return the end of an address whose house number ends at `end`, including floor, door and town."""
    inside = _GRAMMAR.inside_of(languages).match(text, end)
    within = inside.end() if inside else end
    for last in (within, end) if within > end else (end,):
        if tail := _TOWN_BEHIND.match(text, last):
            return tail.end()
    return within if text[end:within].strip(" .,") else end
