"""The tokens that a step's guided sequences may draw, as bits: the format of llguidance and xgrammar.

Computed by several threads at once while the model runs, into memory that a GPU copies from without the host's waiting.
"""

import os
from collections.abc import Iterable
from collections.abc import Sequence as Items
from dataclasses import dataclass

import numpy as np
import torch
from llguidance import LLExecutor, LLMatcher
from torch import Tensor

from backend.engine.core.grammar import GrammarMatcher, Grammars
from backend.engine.core.restriction import Words, without
from backend.errors import InvalidRequest
from backend.models.checkpoints.tokenizer import TextModel

MOST_THREADS = 8


@dataclass(frozen=True, slots=True)
class Allowed:
    """Tokens that some sequences may draw: [len(ids), ceil(vocab_size / 32)] int32, a row for each id; bit
    ``token % 32`` of word ``token // 32`` set: allowed."""

    ids: list[int]
    bits: Tensor

    @classmethod
    def nothing(cls, vocab_size: int) -> "Allowed":
        """Of no sequence."""
        return cls([], torch.empty(0, -(-vocab_size // 32), dtype=torch.int32))

    def rows(self) -> dict[int, Tensor]:
        """By id."""
        return dict(zip(self.ids, self.bits, strict=True))

    def without_rows(self, left_out: list[int]) -> "Allowed":
        """The rows at the other places."""
        kept = [i for i in range(len(self.ids)) if i not in left_out]
        return Allowed([self.ids[i] for i in kept], self.bits[kept])

    def withhold(self, tokens: dict[int, Iterable[int]]) -> None:
        """By id, forbid these as well, unless nothing else is allowed."""
        for id, bits in self.rows().items() if tokens else ():
            if id in tokens:
                words = bits.numpy().view(np.uint32)
                fewer = without(words, tokens[id])
                if fewer.any():
                    words[:] = fewer

    def restricted(self, others: dict[int, Words]) -> tuple["Allowed", list[int]]:
        """By id, only these of them; and the ids of those that are left with nothing."""
        if not others:
            return self, []
        mine = {id: bits.numpy().view(np.uint32) for id, bits in self.rows().items()}
        mine |= {id: words & mine[id] if id in mine else words for id, words in others.items()}
        failed = [id for id in others if not mine[id].any()]
        ids = [id for id in mine if id not in failed]
        bits = np.stack([mine[id] for id in ids]) if ids else np.empty((0, self.bits.shape[1]), np.uint32)
        return Allowed(ids, torch.from_numpy(bits.view(np.int32))), failed


def allows(row: Tensor, token: int) -> bool:
    """row: int32 [words], as `Allowed.bits`."""
    return bool(int(row[token // 32]) >> token % 32 & 1)


class MaskedGrammars(Grammars):
    """Grammars, and what may come next in sequences that follow them.

    pinned: masks lie where a GPU can read them. threads: that compute them; by default half the machine's.
    """

    def __init__(
        self, text_model: TextModel, vocab_size: int, *, pinned: bool = False, threads: int | None = None
    ) -> None:
        super().__init__(text_model, vocab_size)
        self._words, self._row_words = -(-vocab_size // 32), -(-self.known // 32)
        self._pinned = pinned
        self._bits = torch.empty(0, self._row_words, dtype=torch.int32)
        threads = threads or min(MOST_THREADS, len(os.sched_getaffinity(0)) // 2)
        self._executor = LLExecutor(threads) if threads > 1 else None

    def allowed(self, matchers: Iterable[tuple[int, GrammarMatcher]]) -> tuple[Allowed, list[int]]:
        """What may come next in the sequences, (id, matcher), whose grammar holds; and the ids of those for which there
        is no saying: compiling failed, or computing did. The bits last until the next call."""
        asked: list[tuple[int, LLMatcher]] = []
        also: dict[int, int] = {}
        failed: list[int] = []
        for id, matcher in matchers:
            if not matcher.holds:
                continue
            try:
                asked.append((id, matcher.own()))
                if matcher.also is not None:
                    also[id] = matcher.also
            except InvalidRequest:
                failed.append(id)
        bits = self._computed([own for _, own in asked])
        wrong = [i for i, (_, own) in enumerate(asked) if own.is_error()]
        failed += [asked[i][0] for i in wrong]
        allowed = Allowed([id for id, _ in asked], bits)
        if wrong:  # seldom
            allowed = allowed.without_rows(wrong)
        for id, row in allowed.rows().items() if also else ():
            if id in also:
                row.numpy().view(np.uint32)[also[id] // 32] |= np.uint32(1 << also[id] % 32)
        return allowed, failed

    def along(
        self, id: int, matcher: GrammarMatcher, guesses: list[int], ends: frozenset[int]
    ) -> tuple[list[int], Tensor] | None:
        """The guesses that the grammar allows, from the first on, and what may be drawn in front of each and behind the
        last: [1 + guesses, words] int32, as `Allowed.bits`. None where there is no saying (see `allowed`). ends: tokens
        that are not guessed, for nothing follows them."""
        try:
            probe = matcher.ahead()
        except InvalidRequest:
            return None
        kept: list[int] = []
        rows: list[Tensor] = []
        for guess in [*guesses, -1]:
            allowed, failed = self.allowed([(id, probe)])
            if failed and not rows:
                return None
            if failed:  # the draw behind the guess before decides, as without guesses
                kept.pop()
                break
            row = allowed.bits[0].clone() if allowed.ids else torch.full((self._words,), -1, dtype=torch.int32)
            rows.append(row)
            if guess < 0 or guess in ends or not allows(row, guess) or not probe.accept(guess):
                break
            kept.append(guess)
        return kept, torch.stack(rows[: 1 + len(kept)])

    def _computed(self, matchers: Items[LLMatcher]) -> Tensor:
        count = len(matchers)
        if count > len(self._bits):
            self._bits = torch.empty(count, self._row_words, dtype=torch.int32, pin_memory=self._pinned)
        size = 4 * self._row_words
        if self._executor is not None and count > 1:
            pairs = [(matcher, i) for i, matcher in enumerate(matchers)]
            self._executor.unsafe_compute_mask_ptr(pairs, self._bits.data_ptr(), size, count)
        else:
            for i, matcher in enumerate(matchers):
                matcher.unsafe_compute_mask_ptr(self._bits.data_ptr() + i * size, size)
        return self._bits[:count, : self._words].contiguous()
