"""Selection of person names from the model's probability for each word and from the words themselves.

A small model's low probabilities are evidence too: for a name that is rare in its training data it gives 0.1, and
nearly 0 for the next word. A low probability therefore counts if the words look like a name: two capitalised words, the
first a given name (`name_rules/given_names.txt`). A single word needs a high probability, and a higher one where every
word is capitalised, as at the start of a sentence. The model was not trained on Greek and Cyrillic, so these are judged
only by given names and by the endings of surnames. Court decisions write persons as initials, which are recognised by
the words before them.
"""

import re
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

from policy.redact.names.name_lists import (
    given_names,
    is_inflected,
    is_place,
    offices,
    place_kinds,
    small_words,
    surnames,
)
from policy.redact.text.alphabet import LETTER

Shares = Sequence[tuple[int, int, float]]

_WORD = re.compile(rf"[{LETTER}]+(?:['’-][{LETTER}]+)*")
_IN_WORD = re.compile(rf"[{LETTER}0-9]")
_HEAD_BEFORE = re.compile(r"(?:\A| {3}|[.!?:;\n\"«»„“(\[*•-]\s*)\Z")
_JOINT = re.compile(
    r"[ \u00a0]{1,2}|\. ?|[ \u00a0](?:de|da|do|dos|di|del|della|van|von|der|den|la|le|el|af|zu|y|e|des|du|van der"
    r"|van den|de la|von der) "
)
# Words in capitals: one with fewer letters is an acronym unless a name is beside it; minimum probabilities of a listed
# word alone, and of an unlisted one beside a listed name.
_SHORT_CAPITALS, _IN_CAPITALS, _BESIDE_A_NAME = 3, 0.8, 0.3
_BESIDE = re.compile(r",? |, ?|/")
_NOT_LATIN = re.compile("[\u0370-\u03ff\u0400-\u052f\u1f00-\u1fff]")
# Minimum probabilities: of each word of several, of the best of them; of a single word within a sentence, of a single
# German noun after an article, of a single word at the start of a sentence; of words in a group with a given name, of a
# single given name, of one at the start of a sentence.
_EACH, _BEST, _LONE, _LONE_NOUN, _AT_HEAD = 0.03, 0.12, 0.45, 0.55, 0.8
_LONE_GERMAN = 0.5  # of a single noun in German text, where every noun is capitalised
_GIVEN, _LONE_GIVEN, _GIVEN_AT_HEAD = 0.001, 0.02, 0.2
# A single surname: in general, in German text, at the start of a sentence
_FAMILY, _FAMILY_NOUN, _FAMILY_AT_HEAD = 0.05, 0.12, 0.08
_FAMILY_AT_LISTED_HEAD = 0.02  # of a listed surname at the start of a sentence that is not German
_INTRODUCED = 0.2  # behind `I am`
_WHOLE_TEXT = 0.05  # of the only word of a text: the name under a judgment
_SAID, _SPEAKING = 0.004, 0.02  # after a word that announces a person, before a verb of speech
_SURE, _CERTAIN = 0.9, 0.98  # for words that are also places or function words
_BEST_UNLISTED = 0.25  # for several words of which none is in a list
_HONOURS = frozenset(
    {"Lord", "Lady", "Sir", "Miss", "Madame", "Don", "Dom", "Prinz", "Prince", "Saint", "San", "Santa"}
)
_INITIAL_BEFORE = re.compile(r"(?<!\w)(?P<initial>[A-ZÀ-Ž]\. ?)\Z")
_SUFFIX = re.compile(
    r" (?:[IVX]{1,4}(?:\.(?= ?[a-z,])|(?![\w.]))|de[mnr] (?:Älteren?|Jüngeren?|Großen?)|(?:the )?(?:Elder|Younger)"
    r"|(?:Jr|Sr|jr)\.?(?!\w)|Młodszy|Starszy)"
)
# Names with a capital within them: `McCartney`, `DiCaprio`, `LeBron`, `O'Neill`.
_INNER_CAPITAL = re.compile(r"(?:Ma?c|D[aeiu]|L[aeou]|V[ao]n|Fitz|Saint|[ODLdl]['’])(?=[^\W\d_]+\Z)")
_ORDINAL = re.compile(r"(?<= [IVX])\.(?= [a-zäöü])|(?<=[IVX][IVX])\.(?= [a-zäöü])")
# In German text, a noun after one of these, or after an adjective, is a thing; persons rarely follow them.
_ARTICLE_BEFORE = re.compile(
    r"(?<!\w)(?:de[rmns]|die|das|ein(?:e[rmns]?)?|kein(?:e[rmns]?)?|dies(?:e[rmns]?)|jede[rmns]?|ihre?[rmns]?"
    r"|sein(?:e[rmns]?)?|zu[mr]|[ib]m|am|vom|beim|ins|alle[rn]?|viele[rn]?"
    r"|\w{3,}(?:ige|iche|ische|igen|ichen|ischen|iger|ischer|liche|lichen))\s\Z"
)
_SHORTEST_ALONE = 4  # minimum letters of a word of a longer name that is then matched by itself
_REACH = 32
_SMALL = 0.98  # minimum probability of a word in lower case
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
        "zwar",  # this and the next words only begin a sentence
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
# Behind a single word, one of these makes it the name of a company or a body: `Loqate Inc`, `Ejby kommune`.
_BODY_BEHIND = re.compile(
    r",? (?:Inc|Ltd|LLC|Corp|Corporation|Group|Gruppe|Grupp?[eo]?n?|Holdings?|GmbH|AG|KG|plc|PLC|S\.?A\.?|S\.?p\.?A\.?"
    r"|SpA|AB|ASA|A/S|Oyj?|d\.o\.o"
    r"|Technologies|Investments|Partners|Capital|Industries|Systems|Software|Bank|University|Orchestra|Foundation"
    r"|Records|Airlines|Motors"
    r"|kommune|kommun|gmina|općina|municipality|county|district)(?!\w)"
)
_GERMAN = re.compile(r"\b(?:der|die|das|und|ist|nicht|mit|für|auf|des|dem|den)\b")
_ENGLISH = re.compile(r"\b(?:the|and|of|is|was|to|for)\b")  # `Power`, `Carry`: English surnames are words
_SURNAME = re.compile(
    r"(?:όπουλος|οπούλου|ίδης|ίδου|άδης|άδου|άκης|άκη|ιάδης|ιάδου|έας|έλης|ώτης|ώτη|άτος|ούσης|ίνης|άκος|άκου|ούλης"
    r"|ούλη|όγλου|ίου|ιανός|ιανού"
    r"|ов|ова|ев|ева|ски|ска|ский|ская|ович|овна|евич|евна|чев|чева|енко|чук|ић)\Z"
)
_SURNAME_ENDING = re.compile(
    r"(?:[iI]ćev\w{0,3}|ić[aiue]?|[^aeiou]ič|[^aeiou]sk[iyý]|czyk|wicz|cz?ak|niak|enko|escu|quist|[qk]vist|sson"
    r"|[a-zæøå]sen|str[öø]m|gren|g(?:aa|å|a)rd|dóttir"
    r"|opoulos|idis|akis|zzi|etti|ucci|acci|elli|ini|oni|otti|aldi|ardi)\Z"
)
# Endings that only names of persons have, and their possessives: `Đinđićeve`, `Ásgeirsdóttir`.
_PATRONYMIC = re.compile(
    r"(?:[^\W\d_](?:ović|ević|šić|nić|đić|žić|čić|jić)(?:a|u|em|ev\w{0,3})?|[^\W\d_]{3}s(?:dóttir|dottir))\Z"
)
# Verbs of speech, and roles of a person, directly before a name.
_PERSON_BEFORE = re.compile(
    r"(?<!\w)(?:(?:kaza|rek|izjavi|poruči|zaključi|doda|istaknu|rekl)(?:o|la)? je|(?:kazao|rekao|izjavio|poručio"
    r"|istaknuo|zaključio|dodao) je"
    r"|sagt(?:e)?|erklärte?|said|says|told|dijo|afirmó|explicó|declaró|disse|afirmou|explicou|ha detto|dichiara|afferma"
    r"|spiega|a déclaré|a dit|déclare"
    r"|sade|säger|berättar|sa|zei|zegt|verklaarde|powiedział(?:a)?|mówi|stwierdził(?:a)?|sagde|siger|udtaler"
    r"|[Pp]resident(?:e|s|a)?|[Pp]rezydent(?:a)?|[Pp]resid[eé]nt|[Pp]redsjednik(?:a)?|[Pp]rezident(?:a)?"
    r"|[Pp]remijer(?:a)?|[Mm]inister|[Mm]inistr[eo]|[Mm]inistar|[Pp]remier"
    r"|Präsident(?:en|in)?|Bundeskanzler(?:in)?|Kanzler(?:in)?|Königin|König|Senator(?:in|a)?|Schauspieler(?:in)?"
    r"|Sänger(?:in)?|Regisseur(?:in)?|Trainer(?:in)?|Autor(?:in)?"
    r"|trener|coach|senador|senatore|allenatore|regista|attore|attrice|cantante|pilota|scrittore|actor|actriz|singer"
    r"|director|author"
    r"|(?:il|lo|la|lo scozzese|lo) (?:tedesc[oa]|svedese|danese|francese|inglese|spagnol[oa]|brasilian[oa]|argentin[oa]"
    r"|scozzese|olandese|belga|russ[oa]|austriac[oa]|polacc[oa]|american[oa]|portoghese))"
    r"(?: je)? (?:(?:de|di|del|della|van|van der|von|zu|af|al|el|bin) )?\Z"
)
# A verb of speech directly behind a name: its subject is a person more often than not.
_SPEAKS = re.compile(
    r" (?:kaže|(?:re[kč]|kaza|izjavi|poruč|istak|doda|zaključi)\w* je|je (?:re[kč]|kaza|izjavi|poruč|istak|doda"
    r"|zaključi)\w*|smatra"
    r"|says|said|told|explain(?:s|ed)|sagte?|erklärte?|meint(?:e)?|dice|dijo|afirm[aó]|ha detto|spiega|afferma|diz"
    r"|disse|afirmou"
    r"|a (?:dit|déclaré)|déclare|explique|säger|sade|menar|siger|sagde|forklarer|mener|zegt|zei|verklaarde|mówi"
    r"|powiedział[ao]?|stwierdził[ao]?"
    r"|říká|řekl[ao]?)(?!\w)"
)
# `Richter Dr. M.`, `die Zeugin K.`, `Herrn N`: one or two initials after the person's role in a case.
_ROLE = (
    r"Herrn?|Herren|Frau|Dr\.|Prof\.|Ing\.|Zeugen?|Zeugin|Angeklagte[rn]?|Mitangeklagte[rn]?|Beklagte[rn]?|Kläger(?:in"
    r"|s)?|Nebenkläger(?:in|s)?|Geschädigte[rn]?"
    r"|Beigeladene[rn]?(?: zu [0-9](?: und)?)?|Richter(?:in|s)?|Justizinspektor(?:in)?|Patentanw[aä]lt(?:in)?"
    r"|Rechtsanw[aä]lt(?:in)?|Sachverständige[rn]?|Antragsteller(?:in|s)?"
    r"|Antragsgegner(?:in|s)?|Beschuldigte[rn]?|Betroffene[rn]?|Erblasser(?:in|s)?|Partnerin|Notar(?:in)?|Mandant(?:in"
    r"|en)?|Cousin|Sohn von|Tochter von|Vater|Mutter|Mr\.?|Mrs\.?|M\.|Mme|Sig\."
)
_INITIALS = (
    r"(?:[A-ZÄÖÜ][a-zäöü]{0,2}\.(?:[ -]?[A-ZÄÖÜ][a-zäöü]{0,2}\.){0,2}|[A-ZÄÖÜ][0-9]? ?…|[A-ZÄÖÜ][0-9]?(?![\w.…'’-]))"
)
INITIALS = re.compile(_INITIALS)
_BY_ROLE = re.compile(rf"(?<!\w)(?:{_ROLE}) (?:Dr\. |Prof\. )*(?P<name>(?!(?:Dr|Prof|Ing|Mag|Dipl)\.){_INITIALS})")
# `hätte K. in`, `durch M. hinreichend`: an initial between two lower-case words in a German legal text.
_INSIDE = re.compile(
    r"(?<=[a-zäöüß]{3} )(?<!\bin )(?<!\baus )(?<!\bnach )(?<!\bbei )(?<!\bzum )(?<!\bbis )(?<!\bals )(?<!\bgem )"
    r"(?<!\bsowie )(?P<name>(?!Art|Abs|Nr|Rn|Rz|Bd|Ziff|Kap|Vgl|Str|Lit|Hs|Anm|Aufl|Hrsg|Rs|Slg"
    r"|S\. ?[0-9])[A-ZÄÖÜ][a-zäöü]{0,1}\.(?: [A-ZÄÖÜ][a-zäöü]{0,2}\.)?)(?= [a-zäöü]{2,})"
)
_LAW = re.compile(r"§|Kläger|Beklagt|Angeklagt|Urteil|Senat|Gericht|Zeuge|Beschluss|StGB|BGB|ZPO|StPO")
_SIGNATURE = re.compile(rf"\A\s*(?P<name>[A-ZÄÖÜ]\. ?(?:von )?[A-ZÄÖÜ][{LETTER}-]{{2,24}})\s*\Z")


class Word(NamedTuple):
    """A capitalised word at ``text[start:end]`` with the model's probability (``share``) and its word lists.

    ``is_given``: given name. ``is_surname``: surname. ``is_small``: frequent word. ``is_place``: place name.
    """

    start: int
    end: int
    share: float
    is_given: bool
    is_surname: bool
    is_small: bool
    is_place: bool

    @property
    def is_common(self) -> bool:
        """Whether the word is usually not a person's name."""
        return self.is_small or self.is_place


def names_of(text: str, shares: Shares) -> Iterator[tuple[int, int]]:
    """Yield the spans of person names. ``shares``: (start, end, probability) of each token of the model, in order."""
    is_german = len(_GERMAN.findall(text, 0, 400)) > 1
    words = list(_words(text, shares))
    plain = frozenset(filter(str.islower, _WORD.findall(text)))
    done: set[Word] = set()
    whole: set[str] = set()  # words of names of several words; each may also appear alone
    for group in _groups(text, iter(words)):
        group = _without_ends(text, _from_a_given_name(text, group))
        if not _is_plain(text, group, plain) and _is_name(text, group, is_german=is_german):
            yield _begin(text, group[0].start), _end(text, group[-1].end)
            done.update(group)
            if len(group) > 1:
                whole |= {text[word.start : word.end] for word in group if _may_stand_alone(text, word)}
    for word in words:
        written = text[word.start : word.end]
        if word not in done and (written in whole or written.removesuffix("s") in whole):
            yield word.start, word.end
    yield from _in_small_letters(text, shares)
    yield from _initials(text)


def _is_plain(text: str, group: list[Word], plain: frozenset[str]) -> bool:
    """Return whether the only word of a group is in no list of names, and in the same text in lower case too."""
    first = group[0]
    is_listed = len(group) > 1 or first.is_given or first.is_surname
    return not is_listed and text[first.start : first.end].lower() in plain


def is_person(written: str, span: tuple[int, int], shares: Shares) -> bool:
    """Return whether words behind `I am` are a name: a given name that is no other word, or likely to the model."""
    first = written.split()[0]
    if first.isupper():
        return False
    if first in given_names() and first.lower() not in small_words() and not is_place(first):
        return True
    return any(share >= _INTRODUCED for start, end, share in shares if start < span[1] and span[0] < end)


def _in_small_letters(text: str, shares: Shares) -> Iterator[tuple[int, int]]:
    """Yield words that begin with a lower-case letter and have a very high probability.

    They are parts of a name (`van`) or a name that was typed in lower case: `lena andersson`.
    """
    for start, end, share in shares:
        is_inner = start > 0 and _IN_WORD.match(text, start - 1)
        if share >= _SMALL and text[start].islower() and not is_inner:
            yield start, end


def _from_a_given_name(text: str, group: list[Word]) -> list[Word]:
    """Return a Greek or Cyrillic group from its given name on: `Ονομάζομαι Γιώργος`, of which no probability tells."""
    if not _NOT_LATIN.match(text, group[0].start):
        return group
    return group[next((index for index, word in enumerate(group) if word.is_given), 0) :]


def _without_ends(text: str, group: list[Word]) -> list[Word]:
    """Return the group without a first word that only begins the sentence and a last word that is not a person's.

    Examples: `Iako` in `Iako Marko Marić`, `Show` in `Andrew Marr Show`.
    """
    first = group[0]
    is_common = (first.is_small and first.share < _CERTAIN) or (first.is_place and first.share < _LONE_NOUN)
    if len(group) > 1 and not first.is_given and is_common:
        group = group[1:] if text[first.start : first.end] not in _HONOURS else group
    if len(group) > 2 and text[group[-1].start : group[-1].end].lower() in _NO_PERSON and group[0].is_given:
        group = group[:-1]
    return group


def _begin(text: str, start: int) -> int:
    """Return where a name begins, including an initial before it: `H. Bruce Humberstone`."""
    initial = _INITIAL_BEFORE.search(text, max(0, start - 6), start)
    return initial.start("initial") if initial else start


def _end(text: str, end: int) -> int:
    """Return where a name ends, including its epithet: `Richard III.`, `Lucas Cranach dem Älteren`."""
    suffix = _SUFFIX.match(text, end) or _ORDINAL.match(text, end)
    return suffix.end() if suffix else end


def _may_stand_alone(text: str, word: Word) -> bool:
    return word.end - word.start >= _SHORTEST_ALONE and not word.is_common


def _words(text: str, shares: Shares) -> Iterator[Word]:
    """Yield capitalised words with the highest probability of their tokens. Acronyms and identifiers are skipped."""
    given, families, small = given_names(), surnames(), small_words()
    at = 0
    found = list(_WORD.finditer(text))
    for index, word in enumerate(found):
        start, end = word.span()
        while at < len(shares) and shares[at][1] <= start:
            at += 1
        if not text[start].isupper():
            continue
        share, next_token = 0.0, at
        while next_token < len(shares) and shares[next_token][0] < end:
            share = max(share, shares[next_token][2])
            next_token += 1
        written = word[0]
        if written.isupper() and end - start > 1:
            if not _is_in_capitals(text, found, index, share):
                continue
            written = written.title()
        elif _is_identifier(written):
            continue
        is_given = written in given or written.partition("-")[0] in given
        yield Word(start, end, share, is_given, written in families, written.lower() in small, is_place(written))


def _is_in_capitals(text: str, words: Sequence[re.Match[str]], index: int, share: float) -> bool:
    """Return whether a word in capitals is a name rather than an acronym or a heading: `GARCÍA`, `Jean DUPONT`.

    It is listed and likely, or likely beside a listed name. A short one needs such a name beside it.
    """
    word = words[index]
    is_listed = _is_listed(word[0])
    if is_listed and word.end() - word.start() > _SHORT_CAPITALS and share >= _IN_CAPITALS:
        return True
    if share < (_EACH if is_listed else _BESIDE_A_NAME):
        return False
    beside = (words[at] for at in (index - 1, index + 1) if 0 <= at < len(words))
    return any(
        each[0][0].isupper()
        and _is_listed(each[0])
        and _BESIDE.fullmatch(text, min(word.end(), each.end()), max(word.start(), each.start()))
        for each in beside
    )


def _is_listed(word: str) -> bool:
    """Return whether a word, or the first of two with a hyphen, is in a list of names whatever its case."""
    as_name = word.title()
    return as_name in surnames() or as_name in given_names() or as_name.partition("-")[0] in given_names()


def _is_identifier(word: str) -> bool:
    """Return whether a word that is in no list of names has a capital within, like an identifier: `SELinux`."""
    part = _INNER_CAPITAL.sub("", word, count=1)
    has_inner_capital = any(before.isalpha() and after.isupper() for before, after in pairwise(part))
    return has_inner_capital and not (_is_listed(word) or word in given_names() or word in surnames())


def _groups(text: str, words: Iterator[Word]) -> Iterator[list[Word]]:
    """Yield groups of adjacent words that are each likely to be part of a name.

    The required probability is much lower in a group with a given name.
    """
    group: list[Word] = []
    for word in words:
        is_likely = word.share >= (_GIVEN if word.is_given or any(each.is_given for each in group) else _EACH)
        is_likely |= _NOT_LATIN.match(text, word.start) is not None or _is_said(text, word)
        is_likely |= _PATRONYMIC.search(text, word.start, word.end) is not None and not word.is_common
        joins = bool(group) and _JOINT.fullmatch(text, group[-1].end, word.start) is not None
        if group and not (joins and is_likely and len(group) < _MOST_WORDS):
            yield group
            group = []
        if is_likely:
            group.append(word)
    if group:
        yield group


def _is_said(text: str, word: Word) -> bool:
    """Return whether the words around a word announce a person: `kazao je`, `dijo`, `minister`."""
    may_be = not word.is_common or word.is_given or word.is_surname
    return may_be and (
        _PERSON_BEFORE.search(text, max(0, word.start - _REACH), word.start) is not None
        or (word.share >= _SPEAKING and _SPEAKS.match(text, word.end) is not None)
    )


def _is_name(text: str, group: list[Word], *, is_german: bool) -> bool:
    first, last = group[0], group[-1]
    written = text[last.start : last.end]
    if _is_no_person(text, group):
        return False
    if _NOT_LATIN.match(text, first.start):
        return len(group) > 1 and (first.is_given or _SURNAME.search(written) is not None)
    if len(group) > 1:
        return first.is_given or _is_likely_name(text, group)
    if first.is_common and not _is_said(text, first):
        return first.share >= (_SURE if first.is_given else _CERTAIN)
    is_head = _HEAD_BEFORE.search(text, max(0, first.start - 3), first.start) is not None
    return first.share >= _least(text, first, is_head=is_head, is_german=is_german)


def _is_no_person(text: str, group: list[Word]) -> bool:
    """Return whether the words name a company, a month, a place, an office or a body, or are a single letter."""
    first, last = group[0], group[-1]
    begin = text[first.start : first.end].lower()
    if text[last.start : last.end].lower() in _NO_PERSON or begin in _MONTHS:
        return True
    if begin in place_kinds() and not first.is_given:
        return True
    is_latin = not _NOT_LATIN.match(text, first.start)
    return (
        is_latin
        and first is last
        and (len(begin) < 2 or begin in offices() or _BODY_BEHIND.match(text, first.end) is not None)
    )


def _is_likely_name(text: str, group: list[Word]) -> bool:
    """Return whether several words have the probabilities of a name. The first of them is not a given name."""
    shares = [word.share for word in group]
    if all(word.is_common for word in group):
        return min(shares) >= _SURE
    is_listed = _SURNAME_ENDING.search(text[group[-1].start : group[-1].end]) is not None or any(
        word.is_given or word.is_surname or is_inflected(text[word.start : word.end]) for word in group
    )
    return max(shares) >= (_BEST if is_listed else _BEST_UNLISTED) and sum(shares) / len(shares) >= 2 * _EACH


def _least(text: str, word: Word, *, is_head: bool, is_german: bool) -> float:
    """Return the minimum probability at which a single word counts as a name."""
    if _is_said(text, word):
        return _SAID
    if _PATRONYMIC.search(text, word.start, word.end):
        return 0.0
    if word.is_given:
        return _GIVEN_AT_HEAD if is_head else _LONE_GIVEN
    if is_head and not text[: word.start].strip() and not text[word.end :].strip():
        return _WHOLE_TEXT
    if _is_family(text, word):
        return _least_of_a_family(text, word, is_head=is_head, is_german=is_german)
    if is_german and not is_head:
        is_thing = _ARTICLE_BEFORE.search(text, max(0, word.start - 24), word.start) is not None
        return _LONE_NOUN if is_thing else _LONE_GERMAN
    return _AT_HEAD if is_head else _LONE


def _least_of_a_family(text: str, word: Word, *, is_head: bool, is_german: bool) -> float:
    if not is_head:
        return _FAMILY_NOUN if is_german else _FAMILY
    is_english = len(_ENGLISH.findall(text, 0, 400)) > 1
    return _FAMILY_AT_LISTED_HEAD if word.is_surname and not is_german and not is_english else _FAMILY_AT_HEAD


def _is_family(text: str, word: Word) -> bool:
    """Return whether a word is a surname, in the nominative or inflected, or ends as surnames do."""
    return (
        word.is_surname
        or _SURNAME_ENDING.search(text, word.start, word.end) is not None
        or is_inflected(text[word.start : word.end])
    )


def _initials(text: str) -> Iterator[tuple[int, int]]:
    for match in _BY_ROLE.finditer(text):
        yield match.span("name")
    if signature := _SIGNATURE.match(text):
        yield signature.span("name")
    if _LAW.search(text):
        for match in _INSIDE.finditer(text):
            yield match.span("name")
