"""Words that distinguish a name from other capitalised words, from `name_rules/*.txt`: one a line, ``#`` before a
comment.

Given names and surnames come from the locales of Faker (MIT), small words from Stopwords ISO (MIT), places from Unicode
CLDR (Unicode licence). They are lists of a language's words; none of them is of a text about persons.
"""

from functools import cache
from importlib.resources import files

_CASES = ("a", "u", "om", "em", "ou", "ovi", "ja", "ju", "ego", "iem")
_GENITIVES = ("s", "’s", "'s")


@cache
def given_names() -> frozenset[str]:
    return _read("given_names.txt")


@cache
def surnames() -> frozenset[str]:
    return _read("surnames.txt")


@cache
def small_words() -> frozenset[str]:
    """In small letters: words of many sentences, which may begin one."""
    return _read("small_words.txt")


@cache
def places() -> frozenset[str]:
    """Words of the names of countries and their larger cities."""
    return _read("places.txt")


def is_place(word: str) -> bool:
    """Whether a word is a place's name, with a genitive's ending or without."""
    known = places()
    return word in known or any(word.endswith(ending) and word.removesuffix(ending) in known for ending in _GENITIVES)


def is_inflected(word: str) -> bool:
    """Whether a word is a case of a given name or surname, as Slavic languages form them: `Brada Pitta`."""
    return any(
        word.endswith(ending) and (stem := word.removesuffix(ending)) and (stem in given_names() or stem in surnames())
        for ending in _CASES
    )


def _read(name: str) -> frozenset[str]:
    lines = files("policy.redact.names").joinpath("name_rules", name).read_text(encoding="utf-8").splitlines()
    return frozenset(line for line in lines if line and not line.startswith("#"))
