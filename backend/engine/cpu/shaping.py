"""What changes a row of logits before anything is drawn from it, in this order:

1. what looks at no token (`logit_effects`): `logit_bias` is added;
2. tokens that would end the sequence are forbidden until `min_tokens`;
3. repetition, then frequency and presence penalties, as `kernels.penalties` defines them;
4. tokens that a grammar or a restriction forbids are forbidden; under one, step 2 leaves an end where nothing else
   may come.

The order of the first three is vLLM's. All of it depends on the sequence's own tokens and nothing else.
"""

from collections import Counter

import numpy as np
import torch
from torch import Tensor

from backend.engine.core.logit_effects import EFFECTS, wanted
from backend.engine.core.sampling import SamplingParams

FORBIDDEN = float("-inf")


def shape(row: Tensor, params: SamplingParams, prompt: list[int], output: list[int], ends: frozenset[int]) -> None:
    """Steps 1 to 3, in place.

    row: [vocab_size], float32. output: the tokens of the answer before the one to be drawn. ends: tokens that would end
    the sequence.
    """
    for effect in EFFECTS:
        if wanted(effect, params):
            effect.apply(row[None], [0], [params])
    if len(output) < params.min_tokens and ends:
        row[list(ends)] = FORBIDDEN
    if params.penalised:
        _penalise(row, params, prompt, output)


def _penalise(row: Tensor, params: SamplingParams, prompt: list[int], output: list[int]) -> None:
    counts = Counter(output)
    if params.repetition_penalty != 1:
        seen = torch.tensor(list({*prompt, *counts}))
        x = row[seen]
        row[seen] = torch.where(x > 0, x / params.repetition_penalty, x * params.repetition_penalty)
    if counts:
        ids, times = torch.tensor(list(counts)), torch.tensor(list(counts.values()), dtype=row.dtype)
        row[ids] -= params.frequency_penalty * times + params.presence_penalty


def forbid(row: Tensor, allowed: Tensor) -> None:
    """Step 4, in place. allowed: [ceil(vocab_size / 32)] int32, bit ``token % 32`` of word ``token // 32`` set."""
    bits = np.unpackbits(allowed.numpy().view(np.uint8), bitorder="little")[: len(row)]
    row.masked_fill_(torch.from_numpy(bits) == 0, FORBIDDEN)
