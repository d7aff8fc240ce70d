"""A grammar simple enough for an oracle: odd and even tokens in turn, so many of them, then the end."""

import numpy as np

from backend.engine.grammar import Bits


def allowed_after(grammar: str, output: list[int], eos: int, vocab: int) -> set[int]:
    parity = len(output) % 2
    return {eos} if len(output) >= int(grammar) else {t for t in range(vocab) if t % 2 == parity and t != eos}


class ToyMatcher:
    ready = True

    def __init__(self, grammar: str, eos: int, vocab: int) -> None:
        self._grammar, self._eos, self._vocab = grammar, eos, vocab
        self._output: list[int] = []

    def wait(self, timeout_s: float) -> None: ...

    def allowed(self) -> Bits | None:
        bits = np.zeros(-(-self._vocab // 32), dtype=np.uint32)
        for token in allowed_after(self._grammar, self._output, self._eos, self._vocab):
            bits[token // 32] |= np.uint32(1 << token % 32)
        return bits.view(np.int32)

    def accept(self, token: int) -> bool:
        self._output.append(token)
        return True


class ToyGrammars:
    """Stands in for `engine.grammar.Grammars`; a grammar is the number of its tokens, as text."""

    def __init__(self, eos: int = 3, vocab: int = 320) -> None:
        self._eos, self._vocab = eos, vocab

    def matcher(self, grammar: str, after: int | None = None) -> ToyMatcher:
        return ToyMatcher(grammar, self._eos, self._vocab)
