"""Logits to tokens, one row a sequence.

A draw is a function of (logits, parameters, seed, position) and nothing else: the random number comes from Philox
(Salmon et al. 2011) keyed by seed and position. So a request draws the same tokens alone, batched, or computed again
after preemption, as far as its logits are the same. A marked draw takes its random numbers from a key and the tokens
before it in place of the seed (`backend.marks`).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from backend.engine.core.sampling import SamplingParams
from backend.marks.scheme import MarkKey, random_words

NUCLEUS_GUESS = 256  # top-p sets are nearly always smaller; sorting all 50k-150k logits costs ten times as much
UINT64 = 1 << 64


@dataclass(frozen=True, slots=True)
class Draw:
    """What one row of shaped logits is drawn with. position: index of the token to be drawn, in its sequence. context:
    the tokens that its mark is drawn with; None: it is not marked."""

    params: SamplingParams
    position: int
    context: Sequence[int] | None = None


def sample(logits: Tensor, draws: list[Draw]) -> list[int | None]:
    """One token a row; None where the row holds NaN or no finite logit.

    logits: [rows, vocab_size], any float dtype.
    """
    logits = logits.float()
    tokens: list[int | None] = list(logits.argmax(-1).tolist())
    marked = [row for row, draw in enumerate(draws) if draw.context is not None and not draw.params.greedy]
    for row in marked:
        tokens[row] = _draw_marked(logits[row], draws[row])
    drawn = [row for row, draw in enumerate(draws) if draw.context is None and not draw.params.greedy]
    if drawn:
        chosen = _draw(logits[drawn], [draws[row] for row in drawn])
        for row, token in zip(drawn, chosen, strict=True):
            tokens[row] = token
    for row, finite in enumerate(logits.amax(-1).isfinite().tolist()):  # NaN wins amax
        if not finite:
            tokens[row] = None
    return tokens


def uniform(seed: int, position: int) -> float:
    """In [0, 1)."""
    key = np.array([seed % UINT64, position], dtype=np.uint64)
    return float(np.random.Generator(np.random.Philox(key=key)).random())


def _draw(logits: Tensor, draws: list[Draw]) -> list[int]:
    temperature = torch.tensor([d.params.temperature for d in draws]).unsqueeze(-1)
    scaled = logits / temperature
    tokens = [0] * len(draws)
    whole = [row for row, d in enumerate(draws) if not _truncates(d.params)]
    if whole:
        kept = scaled[whole]
        for row, at in enumerate(whole):
            if draws[at].params.min_p > 0:
                kept[row].masked_fill_(kept[row] < kept[row].max() + math.log(draws[at].params.min_p), float("-inf"))
        probabilities = kept.softmax(-1)
        for row, token in zip(whole, _invert(probabilities, [draws[r] for r in whole]), strict=True):
            tokens[row] = token
    for row, draw in enumerate(draws):
        if _truncates(draw.params):
            params = draw.params
            probabilities, ids = truncate(scaled[row], params.top_k, params.top_p, params.min_p)
            tokens[row] = int(ids[_invert(probabilities.unsqueeze(0), [draw])[0]])
    return tokens


def _draw_marked(logits: Tensor, draw: Draw) -> int:
    """Gumbel-max, as an exponential race: the smallest of Exp(1) / probability. logits: [vocab_size]."""
    params, key, context = draw.params, draw.params.mark, draw.context
    assert key is not None and context is not None  # noqa: S101  (see `sample`)
    scaled = logits / params.temperature
    if _truncates(params):
        probabilities, ids = truncate(scaled, params.top_k, params.top_p, params.min_p)
        return int(ids[(probabilities / _exponential(key, context, len(logits))[ids]).argmax()])
    if params.min_p > 0:
        scaled = scaled.masked_fill(scaled < scaled.max() + math.log(params.min_p), float("-inf"))
    return int((scaled.softmax(-1) / _exponential(key, context, len(logits))).argmax())


def _exponential(key: MarkKey, context: Sequence[int], vocab: int) -> Tensor:
    """[vocab] float32, ≥ 2^-33."""
    words = torch.from_numpy(random_words(key, context, vocab).astype(np.float32))
    return words.add_(0.5).mul_(-(2.0**-32)).clamp_min_(-0.99999994).log1p_().neg_()


def _truncates(params: SamplingParams) -> bool:
    return params.top_k > 0 or params.top_p < 1


def truncate(logits: Tensor, top_k: int, top_p: float, min_p: float = 0.0) -> tuple[Tensor, Tensor]:
    """The kept tokens, likeliest first: (unnormalised probabilities, ids).

    top-k first (Fan et al. 2018; 0 keeps all), then the smallest set whose probability, among what top-k kept, reaches
    top-p (Holtzman et al. 2019), and of these what is at least ``min_p`` times as likely as the likeliest (Nguyen et
    al. 2024); at least one token. logits: [vocab_size].
    """
    probabilities, ids = _nucleus(logits, top_k, top_p)
    keep = max(1, int((probabilities >= min_p * probabilities[0]).sum()))
    return probabilities[:keep], ids[:keep]


def _nucleus(logits: Tensor, top_k: int, top_p: float) -> tuple[Tensor, Tensor]:
    size = logits.shape[0]
    k = min(top_k, size) if top_k > 0 else size
    if top_p >= 1:
        values, ids = logits.topk(k)
        return values.softmax(-1), ids
    values, ids = logits.topk(k if k < size else min(size, NUCLEUS_GUESS))
    total = (values if k < size else logits).logsumexp(-1)
    probabilities = (values - total).exp()
    cumulative = probabilities.cumsum(-1)
    if len(values) < k and cumulative[-1] < top_p:
        values, ids = logits.sort(descending=True)
        probabilities = (values - total).exp()
        cumulative = probabilities.cumsum(-1)
    keep = max(1, int((cumulative - probabilities < top_p).sum()))
    return probabilities[:keep], ids[:keep]


def _invert(probabilities: Tensor, draws: list[Draw]) -> list[int]:
    """Inverse transform: the first index whose cumulative weight passes u. probabilities: [rows, n], any sum."""
    cumulative = probabilities.double().cumsum(-1)
    u = torch.tensor([uniform(d.params.seed, d.position) for d in draws], dtype=torch.float64)
    targets = u.unsqueeze(-1) * cumulative[:, -1:]
    index = torch.searchsorted(cumulative, targets, right=True).squeeze(-1)
    return [int(i) for i in index.clamp_(max=probabilities.shape[-1] - 1)]
