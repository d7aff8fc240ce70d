"""Watermark test: computes an exact p-value from token ids and keys, for any text.

Each pair of (context, token) in the text has one random number u. It is uniform for a text that was not sampled with
the key, and small for the tokens of a marked text. The statistic is the sum of -ln u over the distinct pairs. For
unmarked text it is a sum of independent Exp(1) variables: P(sum ≥ s) for n pairs is the probability of fewer than n
events of a Poisson process of mean s (Aaronson 2022; Fernandez et al. 2023 for distinct pairs).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import exp, lgamma, log

import numpy as np

from backend.marks.scheme import CONTEXT, SHARDS, MarkKey, random_word, shard_key, word_table

DETECTABLE = 1e-6
"""Largest p-value under its own key at which an answer counts as marked; over the keys of a year it is below 1e-3."""
FIRST_LOOK = 32  # pairs between two tests of detectability
MOST_LOOKED_AT = 512
MOST_PAIRS = 8192
"""Most pairs of a text that are tested, from its beginning. A few hundred suffice to find a mark."""


@dataclass(frozen=True, slots=True)
class Score:
    """pairs: number of pairs tested. total: sum of -ln u. p_value: of the total, for unmarked text."""

    pairs: int
    total: float

    @property
    def p_value(self) -> float:
        return gamma_tail(self.pairs, self.total)


def pairs_of(tokens: Sequence[int]) -> list[tuple[tuple[int, ...], int]]:
    """Return the distinct (context, token) pairs in text order."""
    found = ((tuple(tokens[at - CONTEXT : at]), tokens[at]) for at in range(CONTEXT, len(tokens)))
    return list(dict.fromkeys(found))


def score(key: MarkKey, pairs: Sequence[tuple[Sequence[int], int]]) -> Score:
    return scores([key], pairs)[0]


def scores(keys: Sequence[MarkKey], pairs: Sequence[tuple[Sequence[int], int]]) -> list[Score]:
    """Return the score of each key."""
    if not pairs:
        return [Score(0, 0.0) for _ in keys]
    totals = -np.log((word_table(keys, pairs) + 0.5) * 2.0**-32).sum(-1)
    return [Score(len(pairs), float(total)) for total in totals]


def p_value(key: bytes, pairs: Sequence[tuple[Sequence[int], int]]) -> float:
    """Return the p-value of a tenant's key for a period, corrected for all shards."""
    found = scores([shard_key(key, shard) for shard in range(SHARDS)], pairs)
    return min(1.0, SHARDS * max(found, key=lambda one: one.total).p_value)


def is_detectable(key: MarkKey, tokens: Sequence[int]) -> bool:
    """Return whether the detector recognises an answer by its own key. Stops at the first sufficient number of
    pairs."""
    pairs = pairs_of(tokens)[:MOST_LOOKED_AT]
    total = 0.0
    for seen, surprise in enumerate(_surprises(key, pairs), start=1):
        total += surprise
        if (seen % FIRST_LOOK == 0 or seen == len(pairs)) and gamma_tail(seen, total) <= DETECTABLE:
            return True
    return False


def _surprises(key: MarkKey, pairs: Sequence[tuple[Sequence[int], int]]) -> Iterator[float]:
    return (-log((random_word(key, context, token) + 0.5) * 2.0**-32) for context, token in pairs)


def gamma_tail(n: int, total: float) -> float:
    """Return P(sum of n independent Exp(1) variables ≥ total)."""
    if n == 0 or total <= 0:
        return 1.0
    logs = [i * log(total) - total - lgamma(i + 1) for i in range(n)]
    highest = max(logs)
    return min(1.0, exp(highest) * sum(exp(each - highest) for each in logs))
