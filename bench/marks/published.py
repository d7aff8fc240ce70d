"""The watermarks of vLLM and SynthID, as published, on the same prompts, model and temperature as ours.

- vLLM (0.32, docs.vllm.ai/en/v0.32.0/features/watermarking, `vllm.v1.watermarking`): Gumbel-max over four tokens of
  context, whose random numbers come from Philox4x32-10 (Salmon et al. 2011) under a key of 64 bits; the detector sums
  -ln(1 - u) over contexts that occur once. Written here from the description.
- SynthID (Dathathri et al. 2024): the logits processor of transformers, with the 30 keys and the table of DeepMind's
  example; the detector is the weighted mean of the published code, whose distribution for unmarked text is taken as
  normal, and each g as a fair coin. The trained Bayesian detector needs texts of the very model and is left out.

Both draw by the engine's own seed where a context occurs again, as ours does.
"""

from collections.abc import Sequence
from functools import cached_property
from math import log1p, sqrt
from statistics import NormalDist
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from backend.engine.cpu.sampler import Draw, uniform
from backend.marks.detector import gamma_tail

CONTEXT = 4
NEVER = 26.0
"""Nats below the likeliest token from which none is drawn by noise of 24 bits: that lies within -ln 17 and ln 2^24."""
Words = NDArray[np.uint64]
MASK = np.uint64(0xFFFFFFFF)
HALF = np.uint64(32)


class Vllm:
    """Key: 64 bits."""

    name = "vllm"

    def __init__(self, key: int = 42) -> None:
        self._key = key & 0xFFFFFFFF, key >> 32

    def draw(self, logits: torch.Tensor, draw: Draw) -> int:
        assert draw.context is not None
        scaled = (logits / draw.params.temperature).double().numpy()
        tokens = np.flatnonzero(scaled >= scaled.max() - NEVER)
        noise = -np.log(-np.log(self.uniform(np.array([draw.context]), tokens[None])[0]))
        return int(tokens[(scaled[tokens] + noise).argmax()])

    def p_value(self, tokens: Sequence[int]) -> float:
        pairs = once(tokens)
        if not pairs:
            return 1.0
        contexts, targets = np.array([c for c, _ in pairs]), np.array([[t] for _, t in pairs])
        return gamma_tail(len(pairs), sum(-log1p(-float(u)) for u in self.uniform(contexts, targets)[:, 0]))

    def uniform(self, contexts: NDArray[Any], tokens: NDArray[Any]) -> NDArray[np.float64]:
        """In (0, 1), [n, m]. contexts: [n, CONTEXT]. tokens: [n, m]."""
        head = np.array([0x574D4358, CONTEXT, 0, 0], dtype=np.uint64)  # the words of vLLM for this use
        state = philox([head[i] ^ contexts[:, i].astype(np.uint64) for i in range(4)], self._key)
        at = tokens.astype(np.uint64)
        words = [np.broadcast_to(word[:, None], at.shape) for word in state]
        key = words[3] ^ np.uint64(self._key[0]), np.uint64(self._key[1] ^ 0x574D544B)
        found = np.stack(philox([at >> np.uint64(2), *words[:3]], key))
        chosen = np.take_along_axis(found, (at & np.uint64(3)).astype(np.int64)[None], 0)[0]
        uniforms: NDArray[np.float64] = ((chosen >> np.uint64(8)).astype(np.float64) + 1) / (2**24 + 1)
        return uniforms


def philox(counter: Sequence[Any], key: tuple[Any, Any]) -> list[Any]:
    """Philox4x32-10: four words of 32 bits, held in 64."""
    c = [np.asarray(word, dtype=np.uint64) for word in counter]
    k = [np.asarray(word, dtype=np.uint64) for word in key]
    for _ in range(10):
        one, other = c[0] * np.uint64(0xD2511F53), c[2] * np.uint64(0xCD9E8D57)
        c = [(other >> HALF) ^ c[1] ^ k[0], other & MASK, (one >> HALF) ^ c[3] ^ k[1], one & MASK]
        k = [(k[0] + np.uint64(0x9E3779B9)) & MASK, (k[1] + np.uint64(0xBB67AE85)) & MASK]
    return c


class SynthId:
    """Thirty rounds of two."""

    name = "synthid"
    keys = (
        654, 400, 836, 123, 340, 443, 597, 160, 57, 29, 590, 639, 13, 715, 468, 990, 966, 226, 324, 585, 118, 504, 421,
        521, 129, 669, 732, 225, 90, 960,
    )  # fmt: skip

    @cached_property
    def _processor(self) -> Any:
        from transformers.generation.logits_process import SynthIDTextWatermarkLogitsProcessor

        return SynthIDTextWatermarkLogitsProcessor(
            ngram_len=CONTEXT + 1,
            keys=list(self.keys),
            sampling_table_size=2**16,
            sampling_table_seed=0,
            context_history_size=1024,
            device=torch.device("cpu"),
        )

    def draw(self, logits: torch.Tensor, draw: Draw) -> int:
        assert draw.context is not None
        scaled = logits / draw.params.temperature
        tokens = (scaled >= scaled.max() - NEVER).nonzero()[:, 0]
        keys, _ = self._processor._compute_keys(torch.tensor([list(draw.context)]), tokens[None])
        changed = self._processor.update_scores(scaled[tokens][None], self._processor.sample_g_values(keys))[0]
        cumulative = changed.double().softmax(-1).cumsum(-1)
        u = uniform(draw.params.seed, draw.position) * float(cumulative[-1])
        return int(tokens[min(int(torch.searchsorted(cumulative, u, right=True)), len(tokens) - 1)])

    def p_value(self, tokens: Sequence[int]) -> float:
        if len(tokens) <= CONTEXT:
            return 1.0
        ids, depth = torch.tensor([list(tokens)]), len(self.keys)
        g = self._processor.compute_g_values(ids)[0].double()
        once = self._processor.compute_context_repetition_mask(ids)[0]
        weights = torch.linspace(10, 1, depth, dtype=torch.float64)
        weights *= depth / weights.sum()
        mean = float((g[once] * weights).sum() / (depth * int(once.sum())))
        spread = sqrt(float((weights**2).sum()) / (4 * depth**2 * int(once.sum())))
        return 1 - NormalDist().cdf((mean - 0.5) / spread)


def once(tokens: Sequence[int]) -> list[tuple[tuple[int, ...], int]]:
    """Tokens behind contexts that did not occur before, as vLLM's detector takes them; -1 stands before the first."""
    before, seen, found = [-1] * CONTEXT, set[tuple[int, ...]](), []
    for token in tokens:
        context = tuple(before[-CONTEXT:])
        if context not in seen:
            seen.add(context)
            found.append((tuple(c & 0xFFFFFFFF for c in context), token))
        before.append(token)
    return found
