"""Postal addresses as Europe writes them: a street of a known kind with its number, then postal code and town.

Pattern level only: the words for streets in the languages of the EU, number before or behind, and, without any such
word, name, number, comma, postal code and town together. An address is several words, so it is looked for in prompts
and not in streams, which would have to hold them back.
"""

import re
from collections.abc import Iterator

from policy.redact.alphabet import LETTER

_UPPER = rf"(?![a-z])[{LETTER}]"
_NAME = rf"{_UPPER}[{LETTER}.'’-]{{0,30}}"
_NUMBER = r"[0-9]{1,4}(?:[ -]?[A-Za-z](?![A-Za-z]))?(?:[/-][0-9]{1,4})?"
_CODE = r"(?:[A-Z]{1,2}[- ]?)?[0-9]{3,5}(?:[ -][0-9]{2,3})?(?: ?[A-Z]{2}\b)?"
_TOWN = rf"{_NAME}(?:[ -](?:(?:am|an der|sur|sous|de|la|di|del) )?{_NAME}){{0,2}}"
_TAIL = re.compile(rf",?[ \n]{{1,2}}{_CODE},? {_TOWN}|, ?{_TOWN}(?:,? {_CODE}(?![0-9]))?(?![{LETTER}])")

# Kinds of street behind the name, as its ending or as a word of their own; the number follows.
_BEHIND = re.compile(
    r"(?:stra(?:ß|ss)e|str\.|weg|platz|allee|gasse|ring|damm|ufer|chaussee|straat|laan|plein|gracht|kade|dreef"
    r"|steenweg"
    r"|gatan|vägen|gränd|torget|stigen|gade|vej|vejen|allé|stræde|gata|gate|veien|vei|vegur|stræti|braut|katu|tie"
    r"|kuja|polku|bulevardi"
    r"| utca| út| útja| tér| tere| körút| iela| prospekts| g\.| gatvė| pr\.| tn\.?| tänav| mnt\.?| maantee| pst)"
    rf",? (?:nr\.? ?)?(?P<number>{_NUMBER})(?![{LETTER}0-9])",
    re.IGNORECASE,
)
_NAME_BEFORE = re.compile(rf"(?:(?<![{LETTER}]){_NAME}[ -]){{0,2}}(?<![{LETTER}]){_NAME}\Z")
_LONGEST_NAME = 96
# Kinds of street in front of the name; the number stands before them or behind the name.
_KIND = (
    r"(?:rue|avenue|av\.|boulevard|bd\.?|place|chemin|all[ée]e|impasse|quai|route|cours|square|calle|c/|avenida"
    r"|avda\.|plaza|paseo"
    r"|camino|ronda|via|viale|piazza|corso|vicolo|largo|strada|rua|travessa|praça|estrada|ul\.|ulica|al\.|aleja"
    r"|os\.|plac|pl\."
    r"|str\.|bulevardul|bd\.|calea|aleea|șoseaua|ulice|nám\.|náměstí|námestie|cesta|trg|triq|οδός|οδ\."
    r"|λεωφ(?:όρος|\.)|ул\.|бул\.)"
)
_OF = r"d[eu]s?|de la|del|della|delle|dei|da|do|dos|das|la|le|les|los|las|von|van|e|y"
_WORDS = (
    rf"(?: (?:(?:{_OF}) ){{0,2}}(?:(?:de )?[dl]['’])?|(?<=[/.])){_NAME}"
    rf"(?:[ -](?:(?:{_OF}) ){{0,2}}(?:[dl]['’])?{_NAME}){{0,3}}"
)
_IN_FRONT = re.compile(
    rf"(?<![{LETTER}0-9])(?:(?P<first>{_NUMBER}(?: (?:bis|ter))?,? )?(?i:{_KIND}){_WORDS}"
    rf"(?P<number>,? (?:n[r.°º]{{1,2}} ?)?{_NUMBER}(?![{LETTER}0-9]))?)"
)
_ENGLISH = re.compile(
    rf"(?<![{LETTER}0-9.,/])[0-9]{{1,4}}[A-Za-z]? (?:{_NAME} ){{1,3}}(?:Street|St|Road|Rd|Avenue|Ave|Lane|Ln"
    rf"|Drive|Close|Square|Terrace"
    rf"|Gardens|Quay|Boulevard|Crescent|Court|Grove|Parade)(?![{LETTER}])\.?"
)
_PLAIN = re.compile(rf"(?<![{LETTER}])(?:{_NAME} ){{1,3}}{_NUMBER}, ?{_CODE} {_TOWN}(?![{LETTER}])")
_HAS_NUMBER = re.compile(r"[0-9]")


def find_addresses(text: str, start: int) -> Iterator[tuple[int, int]]:
    """Spans of postal addresses from `start` on, town included where it follows."""
    if not _HAS_NUMBER.search(text, start):
        return
    for street in _BEHIND.finditer(text, start):
        kind = street.start() + (text[street.start()] == " ")
        first = max(start, kind - _LONGEST_NAME)
        while kind > first and text[kind - 1].isalpha():  # to where the word begins that ends in the kind
            kind -= 1
        word = kind
        if (
            (before := _NAME_BEFORE.search(text[first:word].rstrip()))
            and text[word - 1 : word] == " "
            and not text[word].isupper()
        ):
            yield first + before.start(), _with_town(text, street.end())
        elif text[word].isupper() and word < street.start():
            yield word, _with_town(text, street.end())
    for pattern in (_IN_FRONT, _ENGLISH, _PLAIN):
        for street in pattern.finditer(text, start):
            if pattern is _IN_FRONT and not (street["first"] or street["number"]):
                continue
            yield street.start(), _with_town(text, street.end())


def _with_town(text: str, end: int) -> int:
    tail = _TAIL.match(text, end)
    return tail.end() if tail else end
