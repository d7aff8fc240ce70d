"""The measurement behind the choice of a scheme: Gumbel-max and SynthID's tournament, by width of the context.

    python -m bench.marks.schemes --count 100 --json FILE

Both take their random numbers from the same PRF. The tournament has 30 layers of two (Dathathri et al. 2024, the
distortion-free form) and its weighted mean as detector, whose distribution for unmarked text is taken as normal.
"""

import random
from math import sqrt
from statistics import NormalDist, fmean
from typing import Any

import torch

from backend.engine.cpu.sampler import Draw, uniform
from backend.marks import detector, scheme
from bench.marks.answers import TOPICS, Answer, answers, checkpoint, edited
from bench.measurement import Measurement, options_of

LAYERS = 30
WEIGHTS = [10 - 9 * layer / (LAYERS - 1) for layer in range(LAYERS)]
WORDS = sorted({word for topic in TOPICS for word in topic.split()})


def tournament(logits: torch.Tensor, draw: Draw) -> int:
    """A draw from the distribution that 30 rounds of two leave."""
    assert draw.params.mark is not None and draw.context is not None
    words = scheme.random_words(draw.params.mark, draw.context, len(logits)).astype("int64")
    bits = torch.from_numpy(words)
    p = (logits / draw.params.temperature).softmax(-1).double()
    for layer in range(LAYERS):
        g = (bits >> layer & 1).double()
        p = p * (1 + g - (g * p).sum())
    cumulative = p.cumsum(-1)
    u = uniform(draw.params.seed, draw.position) * float(cumulative[-1])
    return min(int(torch.searchsorted(cumulative, u, right=True)), len(logits) - 1)


def tournament_p(key: scheme.MarkKey, tokens: list[int]) -> float:
    pairs = detector.pairs_of(tokens)
    if not pairs:
        return 1.0
    total = 0.0
    for context, token in pairs:
        word = scheme.random_word(key, context, token)
        total += sum(weight * ((word >> layer & 1) - 0.5) for layer, weight in enumerate(WEIGHTS))
    spread = sqrt(len(pairs) * sum(weight**2 for weight in WEIGHTS) / 4)
    return 1 - NormalDist().cdf(total / spread)


def gumbel_p(key: scheme.MarkKey, tokens: list[int]) -> float:
    return detector.score(key, detector.pairs_of(tokens)).p_value


def found(model: str, made: list[Answer], p_value: Any, length: int, edits: float, alpha: float) -> float:
    """Share of answers whose first `length` tokens, as text again, are found at that level among all shards."""
    text, rng, hits = checkpoint(model).text, random.Random(1), 0
    for answer in made:
        said = edited(text.decode(answer.tokens[:length]), edits, WORDS, rng)
        assert answer.key is not None
        hits += p_value(answer.key, text.encode_words(said)) * scheme.SHARDS <= alpha
    return hits / len(made)


def main() -> None:
    options = options_of(__doc__, count=100, of="answers of each kind").parse_args()
    run = Measurement(options)
    rows = []
    for temperature in (0.7, 1.0):
        for name, width, draw, p_value in (
            ("gumbel", 3, None, gumbel_p),
            ("gumbel", 2, None, gumbel_p),
            ("gumbel", 1, None, gumbel_p),
            ("tournament", 3, tournament, tournament_p),
        ):
            scheme.CONTEXT = width
            detector.CONTEXT = width  # type: ignore[attr-defined]  # its own name of it
            made = answers(
                options.model,
                count=options.count,
                tokens=200,
                temperature=temperature,
                key=bytes(32),
                draw=draw,
                batch=min(64, options.count),
            )
            row = {
                "scheme": name,
                "context": width,
                "temperature": temperature,
                "marked": fmean(marked_share(answer.tokens) for answer in made),
                **{
                    f"found_{length}_{edits:g}": found(options.model, made, p_value, length, edits, 1e-3)
                    for length in (50, 100, 200)
                    for edits in (0.0, 0.2)
                },
            }
            rows.append(row)
            run.part("schemes", lambda: rows)


def marked_share(tokens: list[int]) -> float:
    """Of the tokens of an answer, those that were drawn with a mark."""
    marked = sum(scheme.marked_context(tokens, 0, at) is not None for at in range(len(tokens)))
    return marked / len(tokens)


if __name__ == "__main__":
    main()
