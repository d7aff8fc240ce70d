"""Address grammars: the words of `address_rules/*.toml`, compiled to patterns.

Each file belongs to one language and lists its kinds of street, words for floor and door, boxes, and formats that only
it has. A new language needs one file and one test.
"""

import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any, NamedTuple

from policy.redact.text.alphabet import LETTER
from policy.redact.text.reading import Reading

UPPER = rf"(?![a-z])[{LETTER}]"
NAME = rf"{UPPER}[{LETTER}.'’-]{{0,30}}"
NUMBER = (
    r"[0-9]{1,4}(?:-?[A-Za-z](?![A-Za-z])| [A-Za-z](?![A-Za-z.]))?"
    r"(?:[/-](?:[0-9]{1,4}[A-Za-z]?|[A-Z]|[IVX]{1,4})(?![A-Za-z0-9])){0,3}(?: bis\b)?"
)
CODE = (
    r"(?:[A-Z]{1,2}[0-9][0-9A-Z]? [0-9][A-Z]{2}|[A-Z][0-9][0-9W] ?[0-9A-Z]{4}|[0-9]{2}-[0-9]{3}|(?:ΤΚ|TK"
    r"|T\.K\.) ?[0-9]{3} ?[0-9]{2}"
    r"|(?:[A-Z]{1,3}[- ]?)?[0-9]{3,6}(?:[ -][0-9]{2,3})?(?: ?[A-Z]{2}\b)?)(?![0-9A-Z])"
)
TOWN = (
    rf"(?:'[ts][ -])?{NAME}(?: (?:mesto|vas|gora|polje|sobota|gradec|mesta)(?![{LETTER}]))?(?:[ -](?:(?:am|an|an der|im"
    rf"|in|bei|vor|vorm|ob"
    rf"|der|den|van|sur|sous|de|la|le|en|lès|près|di|del|do|da|dos|pri|při|nad|na|pod|v|ve"
    rf"|vo|u|i|aan|op|cu|lui|In|Nel|nel|sul|Sul)[ -](?:der |la |el "
    rf"|sub )?)?{NAME})"
    rf"{{0,3}}(?: (?:goricah|gorah|polju)(?![{LETTER}])| by"
    rf"(?=[.,;\n\"'<|]|\Z)| [–-] {NAME}(?=[.,;\n\"'<|\t`*]|\Z))?(?:/{NAME})?"
    rf"(?: \((?:[A-Z]{{2}}|(?:okres )?{NAME}(?: {NAME}){{0,2}})\))?"
    rf"(?:(?<=Praha)(?: [0-9]{{1,2}}(?![0-9]))|(?<=Bratislava)-[{LETTER} ]{{3,24}})?"
)
_PLACES = {"%NAME%": NAME, "%LETTER%": LETTER, "%CODE%": CODE, "%TOWN%": TOWN}
# Allowed after a house number in any language: a number with an ordinal mark, and words next to it.
_ANY_INSIDE = (r"[0-9]{1,2}(?:\.|\.?[oaºª](?![A-Za-z]))",)
_BESIDE_INSIDE = r" ?(?:planta|esq\.?|Esq\.?|dto\.?|Dto\.?|dcha\.?|izda?\.?|[0-9A-Za-zºª]{0,5})"
_MOST_INSIDE = 5


class LeadingCode(NamedTuple):
    """An address found by its postal code, which comes last; ``head`` begins at most `reach` characters before it.

    ``quick``: matches the end of every such code. ``whole``: matches the complete address, which ends with the code.
    """

    quick: re.Pattern[str]
    code: re.Pattern[str]
    head: re.Pattern[str]
    whole: re.Pattern[str]
    reach: int


class Block(NamedTuple):
    """An address without a street: quarter, block, entrance. ``letters``: its possible first letters."""

    initials: frozenset[str]
    letters: str
    pattern: re.Pattern[str]


@dataclass(frozen=True, slots=True)
class Grammar:
    """The rules of all languages. ``in_front`` and ``behind`` list kinds of street, mapped to their languages."""

    in_front: Mapping[str, frozenset[str]]
    behind: tuple[str, ...]
    languages_behind: Mapping[str, frozenset[str]]
    loose_behind: re.Pattern[str]
    bare: frozenset[str]
    articled: frozenset[str]
    behind_town: tuple[str, ...]
    before_number: tuple[str, ...]
    small_heads: tuple[str, ...]
    months: tuple[str, ...]
    units_before: tuple[str, ...]
    houses: tuple[str, ...]
    boxes: tuple[str, ...]
    fields: tuple[str, ...]
    not_streets: frozenset[str]
    leading_codes: tuple[LeadingCode, ...]
    blocks: tuple[Block, ...]
    inside: Mapping[str, tuple[str, ...]]

    def inside_of(self, languages: Iterable[str]) -> re.Pattern[str]:
        """Return a pattern for floor, door and staircase after a house number, as written in `languages`.

        Without languages, the pattern covers all of them.
        """
        return _inside(frozenset(languages))


@cache
def grammar() -> Grammar:
    """Return the rules of every file; cached. Raises ValueError with the name of an invalid file."""
    rules = _rules()

    def words(key: str) -> tuple[str, ...]:
        return tuple(dict.fromkeys(word for rule in rules.values() for word in rule.get(key, ())))

    behind = words("street_endings")
    loose = "|".join(map(re.escape, words("loose_endings")))
    leading = [rule["leading_code"] for rule in rules.values() if "leading_code" in rule]
    blocks = [rule["block"] for rule in rules.values() if "block" in rule]
    return Grammar(
        in_front=_languages(rules, "street_words", "articled_words"),
        behind=behind,
        languages_behind=_languages(rules, "street_endings"),
        loose_behind=re.compile(rf"[{LETTER}](?:{loose})[ ,]{{0,2}}\Z", re.IGNORECASE),
        bare=frozenset(words("bare_words")),
        articled=frozenset(words("articled_words")),
        behind_town=words("endings_behind_town"),
        before_number=words("kinds_behind_number"),
        small_heads=words("small_heads"),
        months=words("months"),
        units_before=words("units_before"),
        houses=words("houses"),
        boxes=words("box_words"),
        fields=words("field_names"),
        not_streets=frozenset(words("not_streets")),
        leading_codes=tuple(
            LeadingCode(
                _compiled(each["quick"]),
                _compiled(each["code"]),
                _compiled(each["head"]),
                _compiled(each["whole"]),
                int(each["reach"]),
            )
            for each in leading
        ),
        blocks=tuple(
            Block(frozenset(each["initials"]), each["letters"], _compiled(each["pattern"])) for each in blocks
        ),
        inside={language: tuple(rule.get("inside", ())) for language, rule in rules.items()},
    )


def initials_of(words: Iterable[str]) -> frozenset[str]:
    """Return what `Reading.initials` contains for a text of `words`."""
    return frozenset(initial for word in words for initial in Reading(word).initials)


@cache
def _rules() -> dict[str, dict[str, Any]]:
    rules = {}
    for file in sorted(
        files("policy.redact.addresses").joinpath("address_rules").iterdir(), key=lambda each: each.name
    ):
        if file.name.endswith(".toml"):
            try:
                rules[file.name.removesuffix(".toml")] = tomllib.loads(file.read_text(encoding="utf-8"))
            except tomllib.TOMLDecodeError as error:
                raise ValueError(f"address_rules/{file.name}: {error}; correct the file") from None
    return rules


def _languages(rules: Mapping[str, dict[str, Any]], *keys: str) -> dict[str, frozenset[str]]:
    """Return the languages that list each word."""
    known: dict[str, set[str]] = {}
    for language, rule in rules.items():
        for key in keys:
            for word in rule.get(key, ()):
                known.setdefault(word, set()).add(language)
    return {word: frozenset(languages) for word, languages in known.items()}


def _compiled(pattern: str) -> re.Pattern[str]:
    for place, expression in _PLACES.items():
        pattern = pattern.replace(place, expression)
    return re.compile(pattern)


@cache
def _inside(languages: frozenset[str]) -> re.Pattern[str]:
    """Return the pattern of `Grammar.inside_of`.

    The longer elements of `languages` come before the words of all others, so `3º B` is matched as one element.
    """
    inside = grammar().inside
    own = [element for language in sorted(languages) for element in inside.get(language, ())]
    others = [each for language, elements in inside.items() if language not in languages for each in elements]
    # From other languages only words are used: `6 A` is a floor and a door only in Spain.
    known = own + [each for each in others if not each.startswith(("[0-9]", "(?:[0-9]", "/"))]
    elements = "|".join(dict.fromkeys((*known, *_ANY_INSIDE)))
    point = r"\.?" if "hu" in languages else ""  # follows every number in Hungarian: `20. II. em. 5.`
    return re.compile(rf"{point}(?:(?:[, ]{{1,2}}| ?- ?)(?:{elements}){_BESIDE_INSIDE}){{0,{_MOST_INSIDE}}}\.?")
