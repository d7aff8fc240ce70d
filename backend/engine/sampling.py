"""How one sequence wants its tokens chosen."""

import msgspec

GREEDY_BELOW = 1e-5


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True):
    """Crosses the process border.

    Attributes:
        temperature: 0 is greedy.
        top_k: keep this many; 0 keeps all. top_p: keep the smallest set of at least this probability.
        seed: with it, the same request draws the same tokens, alone or in any batch.
        max_tokens: at most this many new tokens; at least 1.
        stop_token_ids: end the sequence, beside the model's own end tokens.
        ignore_eos: the model's own end tokens do not end it (benchmarks).
    """

    max_tokens: int
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False

    @property
    def greedy(self) -> bool:
        return self.temperature < GREEDY_BELOW
