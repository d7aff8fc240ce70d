"""Bounds that are sets of words: a lower level may leave words out and add none."""

from collections.abc import Iterable
from typing import Literal

from policy.errors import LooseningError

Required = Literal["required"]
Demanded = frozenset[str] | Required


def subset(rule: str, above: frozenset[str] | None, wanted: Iterable[str], whose: str) -> frozenset[str]:
    """Raises LooseningError for a word that `above` does not have."""
    own = frozenset(wanted)
    if above is not None and (beyond := sorted(own - above)):
        raise LooseningError(rule, f"{whose} policy does not accept {', '.join(beyond)}")
    return own


def demand(rule: str, above: Demanded | None, wanted: tuple[str, ...] | Required, whose: str) -> Demanded:
    """As `subset`; the word ``required`` asks for any value, and so lifts no list above it."""
    if not isinstance(wanted, tuple):
        return above if above is not None else wanted
    return subset(rule, above if isinstance(above, frozenset) else None, wanted, whose)


def in_words(bound: Demanded) -> str:
    return bound if isinstance(bound, str) else ", ".join(sorted(bound)) or "none"


def first_of(bound: Demanded | None, otherwise: str) -> str:
    """A word that the bound accepts."""
    return min(bound) if isinstance(bound, frozenset) and bound else otherwise
