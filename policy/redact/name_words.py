# ruff: noqa: E501  # tables read better in one line a row
"""Names of persons in a text, from a model's share for each word and from what the words themselves show.

A small model knows more than it says: of a name that is rare in its training it is a tenth sure, of the next word not at
all. So a weak share counts where the words look like a name: two capitalised ones, the first a given name
(`name_rules/given_names.txt`). A lone word needs a strong share, and a stronger one where any word has a capital, as at
the head of a sentence. Greek and Cyrillic, which the model has not learned, are judged by given names and by the endings
of surnames alone; judgments write persons as initials, which the words before them tell.
"""

import re
from collections.abc import Iterator, Sequence
from functools import cache
from importlib.resources import files
from typing import NamedTuple

from policy.redact.alphabet import LETTER

Shares = Sequence[tuple[int, int, float]]

_WORD = re.compile(rf"[{LETTER}]+(?:['’-][{LETTER}]+)*")
_HEAD_BEFORE = re.compile(r"(?:\A|[.!?:;\n\"«»„“(\[*•-]\s*)\Z")
_JOINT = re.compile(
    r"[ \u00a0]{1,2}|\. ?|[ \u00a0](?:de|da|do|dos|di|del|della|van|von|der|den|la|le|el|af|zu|y|e|van der|van den|de la|von der) "
)
_LONGEST_CAPITALS = 3  # more is an acronym, or a heading
_NOT_LATIN = re.compile("[\u0370-\u03ff\u0400-\u052f\u1f00-\u1fff]")
# Shares: of each of several words, of the best of them, of a lone word inside a sentence and at its head, and of a
# lone word or the words behind a given name.
_EACH, _BEST, _LONE, _LONE_NOUN, _AT_HEAD = 0.03, 0.12, 0.3, 0.55, 0.6
_GIVEN, _LONE_GIVEN, _GIVEN_AT_HEAD = 0.001, 0.1, 0.3
_SMALL = 0.85  # of a word in small letters
_MOST_WORDS = 4
_MONTHS = frozenset(
    [
        "januar",
        "jänner",
        "februar",
        "märz",
        "april",
        "mai",
        "juni",
        "juli",
        "august",
        "september",
        "oktober",
        "november",
        "dezember",
        "january",
        "february",
        "march",
        "may",
        "june",
        "july",
        "october",
        "december",
        "enero",
        "febrero",
        "marzo",
        "abril",
        "mayo",
        "junio",
        "julio",
        "agosto",
        "janvier",
        "février",
        "mars",
        "avril",
        "juin",
        "juillet",
        "août",
    ]
)
_NO_PERSON = frozenset(
    [
        "inc",
        "ltd",
        "llc",
        "gmbh",
        "ag",
        "kg",
        "se",
        "plc",
        "corp",
        "group",
        "holding",
        "show",
        "team",
        "club",
        "band",
        "university",
        "universität",
        "institut",
        "street",
        "road",
        "avenue",
        "straße",
        "platz",
        "award",
        "cup",
        "park",
        "foundation",
        "stiftung",
        "bank",
        "church",
        "city",
        "county",
        "company",
        "zwar",  # and other words that only begin a sentence
        "ferner",
        "danach",
        "davon",
        "dazu",
        "deshalb",
        "somit",
        "hierzu",
        "insoweit",
        "allerdings",
        "jedoch",
    ]
)
_GERMAN = re.compile(r"\b(?:der|die|das|und|ist|nicht|mit|für|auf|des|dem|den)\b")
_SURNAME = re.compile(
    r"(?:όπουλος|οπούλου|ίδης|ίδου|άδης|άδου|άκης|άκη|ιάδης|ιάδου|έας|έλης|ώτης|ώτη|άτος|ούσης|ίνης|άκος|άκου|ούλης|ούλη|όγλου|ίου|ιανός|ιανού"
    r"|ов|ова|ев|ева|ски|ска|ский|ская|ович|овна|евич|евна|чев|чева|енко|чук|ић)\Z"
)
# `Richter Dr. M.`, `die Zeugin K.`, `Herrn N`: a person by one or two initials, behind what he is in a case.
_ROLE = (
    r"Herrn?|Herren|Frau|Dr\.|Prof\.|Ing\.|Zeugen?|Zeugin|Angeklagte[rn]?|Mitangeklagte[rn]?|Beklagte[rn]?|Kläger(?:in|s)?|Nebenkläger(?:in|s)?|Geschädigte[rn]?"
    r"|Beigeladene[rn]?(?: zu [0-9](?: und)?)?|Richter(?:in|s)?|Justizinspektor(?:in)?|Patentanw[aä]lt(?:in)?|Rechtsanw[aä]lt(?:in)?|Sachverständige[rn]?|Antragsteller(?:in|s)?"
    r"|Antragsgegner(?:in|s)?|Beschuldigte[rn]?|Betroffene[rn]?|Erblasser(?:in|s)?|Partnerin|Notar(?:in)?|Mandant(?:in|en)?|Cousin|Sohn von|Tochter von|Vater|Mutter|Mr\.?|Mrs\.?|M\.|Mme|Sig\."
)
_INITIALS = (
    r"(?:[A-ZÄÖÜ][a-zäöü]{0,2}\.(?:[ -]?[A-ZÄÖÜ][a-zäöü]{0,2}\.){0,2}|[A-ZÄÖÜ][0-9]? ?…|[A-ZÄÖÜ][0-9]?(?![\w.…'’-]))"
)
INITIALS = re.compile(_INITIALS)
_BY_ROLE = re.compile(rf"(?<!\w)(?:{_ROLE}) (?:Dr\. |Prof\. )*(?P<name>{_INITIALS})")
# `hätte K. in`, `durch M. hinreichend`: an initial between two words in small letters, in a German text of law.
_INSIDE = re.compile(
    r"(?<=[a-zäöüß]{3} )(?<!\bin )(?<!\baus )(?<!\bnach )(?<!\bbei )(?<!\bzum )(?<!\bbis )(?<!\bals )(?<!\bgem )(?<!\bsowie )(?P<name>(?!Art|Abs|Nr|Rn|Rz|Bd|Ziff|Kap|Vgl|Str|Lit|Hs|Anm|Aufl|Hrsg|Rs|Slg|S\. ?[0-9])[A-ZÄÖÜ][a-zäöü]{0,1}\.(?: [A-ZÄÖÜ][a-zäöü]{0,2}\.)?)(?= [a-zäöü]{2,})"
)
_LAW = re.compile(r"§|Kläger|Beklagt|Angeklagt|Urteil|Senat|Gericht|Zeuge|Beschluss|StGB|BGB|ZPO|StPO")
_SIGNATURE = re.compile(rf"\A\s*(?P<name>[A-ZÄÖÜ]\. ?(?:von )?[A-ZÄÖÜ][{LETTER}-]{{2,24}})\s*\Z")


class Word(NamedTuple):
    """A capitalised word at ``text[start:end]`` and the model's share for it; ``is_given``: a given name."""

    start: int
    end: int
    share: float
    is_given: bool


def names_of(text: str, shares: Shares) -> Iterator[tuple[int, int]]:
    """Spans of names. ``shares``: (start, end, share) of each token of the model, in order."""
    is_german = len(_GERMAN.findall(text, 0, 400)) > 1
    for group in _groups(text, _words(text, shares)):
        if _NOT_LATIN.match(text, group[0].start):  # `Ονομάζομαι Γιώργος`: no share tells where the name begins
            group = group[next((index for index, word in enumerate(group) if word.is_given), 0) :]
        if _is_name(text, group, is_german=is_german):
            yield group[0].start, group[-1].end
    for start, end, share in shares:
        if share >= _SMALL and not text[start].isupper() and not _NOT_LATIN.match(text, start):
            yield start, end
    yield from _initials(text)


def _words(text: str, shares: Shares) -> Iterator[Word]:
    """Capitalised words, each with the best share of its tokens; acronyms left out."""
    given = _given_names()
    at = 0
    for word in _WORD.finditer(text):
        start, end = word.span()
        while at < len(shares) and shares[at][1] <= start:
            at += 1
        if not text[start].isupper() or (word[0].isupper() and end - start > _LONGEST_CAPITALS):
            continue
        share, next_token = 0.0, at
        while next_token < len(shares) and shares[next_token][0] < end:
            share = max(share, shares[next_token][2])
            next_token += 1
        yield Word(start, end, share, word[0] in given or word[0].partition("-")[0] in given)


def _groups(text: str, words: Iterator[Word]) -> Iterator[list[Word]]:
    """Neighbours of which each is likely enough to belong to a name; behind a given name that is little."""
    group: list[Word] = []
    for word in words:
        is_likely = word.share >= (_GIVEN if word.is_given or (group and group[0].is_given) else _EACH)
        is_likely |= _NOT_LATIN.match(text, word.start) is not None
        joins = bool(group) and _JOINT.fullmatch(text, group[-1].end, word.start) is not None
        if group and not (joins and is_likely and len(group) < _MOST_WORDS):
            yield group
            group = []
        if is_likely:
            group.append(word)
    if group:
        yield group


def _is_name(text: str, group: list[Word], *, is_german: bool) -> bool:
    first, last = group[0], group[-1]
    written = text[last.start : last.end]
    if written.lower() in _NO_PERSON or text[first.start : first.end].lower() in _MONTHS:
        return False
    if _NOT_LATIN.match(text, first.start):
        return len(group) > 1 and (first.is_given or _SURNAME.search(written) is not None)
    if len(group) > 1:
        if first.is_given:
            return True
        shares = [word.share for word in group]
        return max(shares) >= _BEST and sum(shares) / len(shares) >= 2 * _EACH
    is_head = _HEAD_BEFORE.search(text, max(0, first.start - 3), first.start) is not None
    if first.is_given:
        return first.share >= (_GIVEN_AT_HEAD if is_head else _LONE_GIVEN)
    # Of German any noun has a capital.
    return first.share >= (_AT_HEAD if is_head else _LONE_NOUN if is_german else _LONE) and len(written) > 1


def _initials(text: str) -> Iterator[tuple[int, int]]:
    for match in _BY_ROLE.finditer(text):
        yield match.span("name")
    if signature := _SIGNATURE.match(text):
        yield signature.span("name")
    if _LAW.search(text):
        for match in _INSIDE.finditer(text):
            yield match.span("name")


@cache
def _given_names() -> frozenset[str]:
    lines = files("policy.redact").joinpath("name_rules", "given_names.txt").read_text(encoding="utf-8").splitlines()
    return frozenset(line for line in lines if line and not line.startswith("#"))
