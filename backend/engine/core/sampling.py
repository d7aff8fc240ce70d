"""How one sequence wants its tokens chosen."""

import msgspec

from backend.marks.scheme import MarkKey

GREEDY_BELOW = 1e-5


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True):
    """Crosses the process border.

    Attributes:
        temperature: 0 is greedy.
        top_k: keep this many; 0 keeps all. top_p: keep the smallest set of at least this probability. min_p: keep what
            is at least this share as likely as the likeliest. A token has to pass all three.
        presence_penalty, frequency_penalty: taken off the logit of a token in the answer, once, and once an occurrence
            (OpenAI API). repetition_penalty: divides the logit of a token in prompt or answer, or multiplies it where
            it is negative (Keskar et al. 2019).
        logit_bias: (token, what is added to its logit).
        seed: with it, the same request draws the same tokens, alone or in any batch.
        max_tokens: at most this many new tokens; at least 1. min_tokens: no end token before so many.
        stop_token_ids: end the sequence, beside the model's own end tokens.
        allowed_token_ids: only these may be drawn; () for any. bad_words: what may not be written, each as its tokens:
            the last of them is not drawn behind the others.
        ignore_eos: the model's own end tokens do not end it (benchmarks).
        logprobs: report each token's log probability, and those of so many of the likeliest. prompt_logprobs: the same
            for the prompt's tokens. Both are of the model's own distribution, before anything above changes it.
        grammar: what the answer has to match, as `engine.grammar` reads it; "" for anything. grammar_after: the grammar
            holds from behind the first of this token on (the end of a model's thinking); None: from the start.
            thought_token: with `grammar_after`, only an answer that begins with this token (the begin of a model's
            thinking) waits for it, and for any other the grammar holds from the start; None: every answer waits, since
            the prompt has begun the thinking. grammar_size: bytes that the compiled grammar keeps.
        mark: by which key the answer is watermarked (`backend.marks`), where it is drawn and not greedy; None: by none.
        commits: report the largest activations that each token was drawn from (`backend.activations`).
    """

    max_tokens: int
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    seed: int = 0
    min_tokens: int = 0
    stop_token_ids: tuple[int, ...] = ()
    allowed_token_ids: tuple[int, ...] = ()
    bad_words: tuple[tuple[int, ...], ...] = ()
    ignore_eos: bool = False
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    grammar: str = ""
    grammar_after: int | None = None
    thought_token: int | None = None
    grammar_size: int = 0
    mark: MarkKey | None = None
    commits: bool = False

    @property
    def greedy(self) -> bool:
        return self.temperature < GREEDY_BELOW

    @property
    def penalised(self) -> bool:
        return bool(self.presence_penalty or self.frequency_penalty or self.repetition_penalty != 1)

    @property
    def shaped(self) -> bool:
        """The logits are changed before the draw, by more than temperature and truncation."""
        return self.penalised or self.restricted or bool(self.logit_bias or self.min_tokens or self.grammar)

    @property
    def guessable(self) -> bool:
        """What may be drawn at a place is known from the tokens before it, whatever they are: `plain`, or held to a
        grammar and nothing else."""
        others = self.penalised or self.restricted or self.logit_bias or self.min_tokens
        return not others and self.logprobs is None and self.prompt_logprobs is None

    @property
    def restricted(self) -> bool:
        """Some tokens may not be drawn, regardless of the grammar."""
        return bool(self.allowed_token_ids or self.bad_words)

    @property
    def plain(self) -> bool:
        """A token and nothing else is wanted, from logits as they are."""
        return not self.shaped and self.logprobs is None and self.prompt_logprobs is None


NOTHING_DRAWN = SamplingParams(max_tokens=1)
"""Of a text whose vector is wanted: the one place behind it is never computed."""
