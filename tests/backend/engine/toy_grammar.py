"""A grammar simple enough for an oracle: odd and even tokens in turn, so many of them, then the end."""

import torch

from backend.engine.core.token_masks import Allowed, MaskedGrammars


def allowed_after(grammar: str, output: list[int], eos: int, vocab: int) -> set[int]:
    parity = len(output) % 2
    return {eos} if len(output) >= int(grammar) else {t for t in range(vocab) if t % 2 == parity and t != eos}


class ToyMatcher:
    ready = True

    def __init__(self, grammar: str, eos: int, vocab: int) -> None:
        self._grammar, self._eos, self._vocab = grammar, eos, vocab
        self._output: list[int] = []

    def wait(self, timeout_s: float) -> None: ...

    @property
    def bits(self) -> list[bool]:
        allowed = allowed_after(self._grammar, self._output, self._eos, self._vocab)
        return [token in allowed for token in range(32 * -(-self._vocab // 32))]

    def accept(self, token: int) -> bool:
        self._output.append(token)
        return True

    def ahead(self) -> "ToyMatcher":
        found = ToyMatcher(self._grammar, self._eos, self._vocab)
        found._output = list(self._output)
        return found


class ToyGrammars:
    """Stands in for `engine.grammar.Grammars`; a grammar is the number of its tokens, as text."""

    def __init__(self, eos: int = 3, vocab: int = 320) -> None:
        self._eos, self._vocab = eos, vocab
        self._words = -(-vocab // 32)

    along = MaskedGrammars.along

    def matcher(self, grammar: str, *_: int | None) -> ToyMatcher:
        return ToyMatcher(grammar, self._eos, self._vocab)

    def allowed(self, matchers: list[tuple[int, ToyMatcher]]) -> tuple[Allowed, list[int]]:
        bits = torch.tensor([m.bits for _, m in matchers], dtype=torch.int64).reshape(
            len(matchers), -(-self._vocab // 32), 32
        )
        words = (bits << torch.arange(32)).sum(-1).to(torch.int32)
        return Allowed([id for id, _ in matchers], words), []
