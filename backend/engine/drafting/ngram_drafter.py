"""Guesses from the text itself (prompt look-up, Saxena 2023): what followed when these tokens stood here before.

No model and no training; it shines where answers quote their prompt (code edits, extraction, summaries with names) or
repeat themselves. The search copies as LZ77 does (Ziv & Lempel 1977): the copied stretch may run into itself, so a loop
is continued.
"""

from collections.abc import Sequence as Items

from backend.engine.core.sequence import Sequence

GRAM_SIZES = (4, 2)  # tokens that must recur; longer ones are looked for first
WINDOW = 1 << 14  # tokens looked back at when a sequence is first seen: an index costs some 400 bytes a token


class NgramDrafter:
    """A `speculation.Drafter`."""

    def __init__(self, sizes: Items[int] = GRAM_SIZES) -> None:
        self._sizes = tuple(sorted(sizes, reverse=True))
        self._indexes: dict[int, _Index] = {}

    def propose(self, wanted: list[tuple[Sequence, int]]) -> list[list[int]]:
        return [self._guess(sequence, most) for sequence, most in wanted]

    def forget(self, id: int) -> None:
        self._indexes.pop(id, None)

    def _guess(self, sequence: Sequence, most: int) -> list[int]:
        tokens = sequence.tokens
        index = self._indexes.get(sequence.id)
        if index is None:
            index = self._indexes[sequence.id] = _Index(self._sizes, max(0, len(tokens) - WINDOW))
        index.extend(tokens)
        source = index.find(tokens)
        if source is None:
            return []
        period = len(tokens) - source
        guesses: list[int] = []
        for i in range(most):
            guesses.append(tokens[source + i] if i < period else guesses[i - period])
        return guesses


class _Index:
    """Where each gram was last followed by another token."""

    __slots__ = ("_begin", "_followers", "_seen")

    def __init__(self, sizes: tuple[int, ...], begin: int) -> None:
        self._begin = begin
        self._seen = begin
        self._followers: dict[int, dict[tuple[int, ...], int]] = {size: {} for size in sizes}

    def extend(self, tokens: list[int]) -> None:
        for size, followers in self._followers.items():
            for at in range(max(self._seen, self._begin + size), len(tokens)):
                followers[tuple(tokens[at - size : at])] = at
        self._seen = len(tokens)

    def find(self, tokens: list[int]) -> int | None:
        """Place of the token that followed the last time the text ended as it does now."""
        for size, followers in self._followers.items():
            at = followers.get(tuple(tokens[-size:]))
            if at is not None:
                return at
        return None
