"""Dates of birth: a date with a numeric or spelled month, next to a word for birth in a language of the EU."""

import re
from collections.abc import Iterator

from policy.redact.context.fields import columns_at, places
from policy.redact.text.alphabet import LETTER
from policy.redact.text.reading import Reading
from policy.redact.text.shapes import BEGIN, END

_LONGEST = 36
_MONTH = rf"[{LETTER}]{{3,14}}\.?"
# Not before a time with nanoseconds, which is of the birth of a file, as `stat` prints it.
_NO_FILE = r"(?! [0-9]{2}:[0-9]{2}:[0-9]{2}\.[0-9]{9})"
_DATE = re.compile(
    rf"{BEGIN}(?:[0-3]?[0-9](?P<sign>\. ?|[/-])[01]?[0-9](?P=sign)(?:(?:19|20)[0-9]{{2}}|[0-9]{{2}})"
    rf"|(?:19|20)[0-9]{{2}}(?P<iso>[./-])[01]?[0-9](?P=iso)[0-3]?[0-9]"
    rf"|[0-3]?[0-9](?:\.|st|nd|rd|th|er|º|-an|-én)? (?:de |of )?{_MONTH},? (?:de )?(?:19|20)[0-9]{{2}}){END}{_NO_FILE}"
    rf"|(?<![{LETTER}]){_MONTH} [0-3]?[0-9](?:st|nd|rd|th)?,? (?:19|20)[0-9]{{2}}{END}"
    rf"|{BEGIN}(?:19|20)[0-9]{{2}}\. {_MONTH} [0-3]?[0-9]{END}"
)
_VERBS = frozenset(
    {
        "born",
        "geboren",
        "nato",
        "nata",
        "nacido",
        "nacida",
        "nascido",
        "nascida",
        "fodt",
        "fodd",
        "narozen",
        "narozena",
        "ur.",
    }
)  # not table headings
_FIELD = re.compile(rf"[\"'`* ]{{0,3}}(?P<date>{_DATE.pattern})")
_BEFORE = re.compile(
    rf"(?P<date>{_DATE.pattern})[\"'`*]{{0,2}} ?\((?:[^\W\d_]{{2,10}}[ -]){{0,2}}\Z"
)  # `12.05.1980 (date of birth)`
_BORN = re.compile(
    r"(?:born|date[_ -]?of[_ -]?birth|birth|dob(?![^\W\d_])|d\.o\.b|geb(?:\.|or|urt|dat|oorte)|nee?[ _]le|naissance"
    r"|nat[oaie]\b|nascit|nacid|nacim|nascid|nascim|ur\.|urodz"
    r"|fodd|fodsel|fodt|fodels|fadd|fading|synty|naro[zd]|szul|nascut|nasteri|rod(?:j|en)|rojst|rojen|γεν|γενν|роден"
    r"|рожд|ражда|sundin|sund(?![^\W\d_])|sunni"
    r"|breithe|dzim|gim(?:e|im|us)|tw(?:el|iel)[ei]d|rugadh|dat[_ ]?nasc|bday)[^\W\d_]*"
)
INITIALS = frozenset(
    {
        "bor",
        "bir",
        "bre",
        "dob",
        "d",
        "geb",
        "nee",
        "ne",
        "nai",
        "nat",
        "nas",
        "nac",
        "ur",
        "uro",
        "fod",
        "fad",
        "syn",
        "nar",
        "szu",
        "rod",
        "roj",
        "γεν",
        "род",
        "рож",
        "раж",
        "sun",
        "dzi",
        "gim",
        "twi",
        "twe",
        "rug",
        "dat",
        "bda",
    }
)
_BETWEEN = re.compile(r"[^0-9\n]*\Z")
_REACH = 36  # characters between the word and its date


def find_births(text: str, start: int) -> Iterator[tuple[int, int]]:
    """Yield the spans of dates of birth from `start` on."""
    reading = text if isinstance(text, Reading) else Reading(text)
    found: dict[tuple[int, int], None] = {}  # unique spans: `date of birth` matches as two names
    done = start
    for at in reading.words_from(INITIALS):
        born = _BORN.match(reading.folded, at)
        if born is None:
            continue
        date = _DATE.search(reading, max(done, born.end()), born.end() + _REACH + _LONGEST)
        if date and date.start() <= born.end() + _REACH and _BETWEEN.match(reading, born.end(), date.start()):
            found[date.span()] = None
            done = date.end()
        elif before := _BEFORE.search(reading, max(done, at - _LONGEST), at):
            found[before.span("date")] = None
        is_heading = born[0] not in _VERBS or any(columns_at(reading, at))
        for first, last in places(reading, at, born.end()):
            if is_heading or "\n" not in reading[at:first]:
                field = _FIELD.match(reading, first, last)
                if field and field.start("date") >= max(start, done):
                    found[field.span("date")] = None
    yield from found
