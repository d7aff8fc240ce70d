"""Tokens that a request forbids: all but some, or the ends of words that it does not want."""

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from backend.engine.core.sampling import SamplingParams

Words = NDArray[np.uint32]  # [ceil(vocab_size / 32)], bits as `token_masks.Allowed` has them


class Restriction:
    """Of one request: what `SamplingParams` says by ``allowed_token_ids`` and ``bad_words``."""

    def __init__(self, params: SamplingParams, vocab_size: int) -> None:
        bits = np.zeros(-(-vocab_size // 32) * 32, dtype=bool)
        bits[list(params.allowed_token_ids) or slice(vocab_size)] = True
        bits[[word[0] for word in params.bad_words if len(word) == 1]] = False
        self._bits: Words = np.packbits(bits, bitorder="little").view(np.uint32)
        self._longer = [(list(word[:-1]), word[-1]) for word in params.bad_words if len(word) > 1]

    def allowed(self, output: list[int]) -> Words:
        """What may follow the answer so far."""
        ends = [last for before, last in self._longer if output[-len(before) :] == before]
        if not ends:
            return self._bits
        return without(self._bits, ends)


def without(words: Words, tokens: Iterable[int]) -> Words:
    """A copy in which these are forbidden."""
    fewer = words.copy()
    for token in tokens:
        fewer[token // 32] &= ~np.uint32(1 << token % 32)
    return fewer
