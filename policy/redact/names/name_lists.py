"""Word lists that distinguish names from other capitalised words.

The lists are in `name_rules/*.txt`: one word per line, ``#`` starts a comment. Given names and surnames come from the
locales of Faker (MIT), function words from Stopwords ISO (MIT), words of user interfaces and names of languages from
the translations of Django (BSD), places from Unicode CLDR (Unicode licence). They list the words of a language; none
was extracted from texts about persons. Offices, kinds of places and words of forms are our own.
"""

from functools import cache
from importlib.resources import files

_CASES = ("a", "u", "om", "em", "ou", "ovi", "ja", "ju", "ego", "iem")
_GENITIVES = ("s", "’s", "'s")


@cache
def given_names() -> frozenset[str]:
    """Return the given names."""
    return _read("given_names.txt")


@cache
def surnames() -> frozenset[str]:
    """Return the surnames."""
    return _read("surnames.txt")


@cache
def small_words() -> frozenset[str]:
    """Return words in lower case that are no names and may begin a sentence with a capital."""
    return _read("small_words.txt") | _read("common_words.txt") | _read("form_words.txt")


@cache
def places() -> frozenset[str]:
    """Return the words of the names of countries and their larger cities."""
    return _read("places.txt")


@cache
def offices() -> frozenset[str]:
    """Return offices and roles in lower case, which follow a form of address and are no names."""
    return _read("offices.txt")


@cache
def place_kinds() -> frozenset[str]:
    """Return words in lower case that begin the name of a place, a building or a storm."""
    return _read("place_kinds.txt")


def is_place(word: str) -> bool:
    """Return whether a word is the name of a place, with or without a genitive ending."""
    known = places()
    return word in known or any(word.endswith(ending) and word.removesuffix(ending) in known for ending in _GENITIVES)


def is_inflected(word: str) -> bool:
    """Return whether a word is an inflected given name or surname, as in Slavic languages: `Brada Pitta`."""
    return any(
        word.endswith(ending) and (stem := word.removesuffix(ending)) and (stem in given_names() or stem in surnames())
        for ending in _CASES
    )


def _read(name: str) -> frozenset[str]:
    lines = files("policy.redact.names").joinpath("name_rules", name).read_text(encoding="utf-8").splitlines()
    return frozenset(line for line in lines if line and not line.startswith("#"))
