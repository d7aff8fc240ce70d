"""What each token of an answer could have been: the distribution that it was drawn from, by one pass over the text."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from backend.engine.core.sampling import SamplingParams
from backend.engine.core.sequence import Sequence as EngineSequence
from backend.engine.cpu.model_runner import Run
from backend.engine.cpu.prefill import Prefill
from backend.models.decoders.decoder import Decoder


@torch.inference_mode()
def steps_of(model: Decoder, prompt: Sequence[int], answer: Sequence[int], temperature: float) -> NDArray[Any]:
    """Of each token, [n, 3] nats: entropy of the draw at that temperature; the surprise at temperature 1 that such a
    draw has on average; the surprise of what was drawn. Over many draws without bias the last two are equal."""
    tokens = [*prompt, *answer[:-1]]
    prefill = Prefill(model, len(tokens))
    sequence = EngineSequence(0, tokens, SamplingParams(max_tokens=1), arrival=0)
    sequence.block_table = list(range(prefill.cache.keys.shape[1]))
    ids, positions, attention = prefill._inputs([Run(sequence, tokens, len(tokens), 0)])
    logits = model.forward(ids, positions, attention, torch.arange(len(prompt) - 1, len(tokens))).float()
    plain = logits.log_softmax(-1)
    drawn = (logits / temperature).log_softmax(-1)
    p = drawn.exp()
    surprise = -plain.gather(1, torch.tensor(list(answer))[:, None])[:, 0]
    entropy = -(p * drawn.clamp_min(-1e4)).sum(-1)
    return np.stack([each.double().numpy() for each in (entropy, -(p * plain.clamp_min(-1e4)).sum(-1), surprise)], 1)
