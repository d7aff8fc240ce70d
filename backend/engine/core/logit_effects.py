"""Sampling parameters that change logits by nothing but their own value: one object each, for the CPU and for a GPU.

They come first of all that shapes logits (`cpu.shaping`). One that joins adds its object to `EFFECTS`.
"""

from typing import Protocol

import torch
from torch import Tensor

from backend.engine.core.h2d import sent
from backend.engine.core.sampling import SamplingParams


class LogitEffect(Protocol):
    """parameter: the field of `SamplingParams` that asks for it by being true."""

    parameter: str

    def apply(self, logits: Tensor, rows: list[int], params: list[SamplingParams]) -> None:
        """Change those rows in place. logits: [rows, vocab_size] float32, on any device. params: of each of `rows`."""
        ...


class LogitBias:
    """Adds a value to the logit of a token (OpenAI API)."""

    parameter = "logit_bias"

    def apply(self, logits: Tensor, rows: list[int], params: list[SamplingParams]) -> None:
        biases = [(row, token, value) for row, p in zip(rows, params, strict=True) for token, value in p.logit_bias]
        places, tokens, values = zip(*biases, strict=True)
        where = tuple(sent(list(index), torch.int64, logits.device) for index in (places, tokens))
        logits.index_put_(where, sent(list(values), torch.float32, logits.device), accumulate=True)


EFFECTS: tuple[LogitEffect, ...] = (LogitBias(),)


def wanted(effect: LogitEffect, params: SamplingParams) -> bool:
    return bool(getattr(params, effect.parameter))
