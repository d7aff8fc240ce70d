"""How long a step takes on a card (roofline; Williams et al. 2009), and a workload, step by step.

A step reads the weights once and multiplies them with its rows; the two overlap less than a max of both and more than
their sum, which is what OVERLAP says. Its decodes read their keys and values; its prompts multiply queries with keys.
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from backend.engine_config import EngineConfig
from backend.models.config import ModelConfig
from backend.planner.cards import Card
from backend.planner.memory import BYTES, kv_bytes_per_token, memory_of, parameters

OVERLAP = 2.0  # (reading^p + multiplying^p)^(1/p): 1 is none, infinity all
SHARED_SEQUENCES = 16  # that read a common prefix once (`kernels.shared_prefix`)
CAPTURED_TOKENS, CAPTURED_SEQUENCES = 2048, 16  # larger steps with prompts run in pieces, or kernel by kernel


@dataclass(frozen=True, slots=True)
class Step:
    """decodes: sequences that add a token, over `context` tokens in all. prompt_tokens: of `prompts` prompts, each
    token of which attends to the ones before it: `pairs` (query, key) in all."""

    decodes: int = 0
    context: int = 0
    prompts: int = 0
    prompt_tokens: int = 0
    pairs: int = 0


class Roofline:
    def __init__(self, model: ModelConfig, config: EngineConfig, card: Card) -> None:
        """Raises ValueError for FP8 weights on a card that has no FP8."""
        self.model, self.config, self.card = model, config, card
        if config.quantization and card.fp8 is None:
            raise ValueError(f"{card.name} multiplies no FP8")
        self._weights = parameters(model)
        self._kv_bytes = kv_bytes_per_token(model, config)

    def seconds(self, step: Step) -> float:
        card, layers = self.card, self.model.num_layers
        rows = step.decodes + step.prompt_tokens
        drawn = step.decodes + step.prompts
        products = self._products(rows) + self._head(drawn)
        cache = step.context * self._kv_bytes / card.cache_bandwidth
        attention = 4 * step.pairs * self.model.num_heads * self.model.head_dim * layers / card.attention_flops
        rest = layers * (card.layer_one_row if rows == 1 else card.layer_many_rows)
        device = products + cache + attention + rest
        captured = not step.prompts or (
            rows <= CAPTURED_TOKENS and step.prompts + step.decodes <= CAPTURED_SEQUENCES and self.config.graphs
        )
        host = 0.0 if captured else layers * card.layer_launches
        return max(device, host) + card.step + card.row * drawn

    def _products(self, rows: int) -> float:
        card = self.card
        fp8 = self.config.quantization is not None and card.fp8 is not None
        speed = card.fp8 if fp8 and card.fp8 else card.bf16
        size = 1 if fp8 else BYTES[self.config.dtype]
        reading = self._weights.products * size / (speed.one_row if rows == 1 else speed.many_rows)
        return _both(reading, 2 * self._weights.products * rows / speed.flops)

    def _head(self, rows: int) -> float:
        speed, size = self.card.bf16, BYTES[self.config.dtype]
        reading = self._weights.head * size / speed.one_row
        return _both(reading, 2 * self._weights.head * rows / speed.flops)

    def first_token(self, prompt: int) -> float:
        """Seconds for a prompt that comes alone."""
        return self.workload([(prompt, 1)])

    def workload(self, requests: Iterable[tuple[int, int]], shared_prefix: int = 0) -> float:
        """Seconds for (prompt, answer) lengths handed over at once, as the scheduler would run them.

        shared_prefix: tokens that all prompts begin with, computed once.
        """
        capacity = memory_tokens(self.model, self.config, self.card)
        waiting = deque((i, prompt, answer) for i, (prompt, answer) in enumerate(requests))
        prefilling: list[list[int]] = []  # [tokens done, prompt, answer]
        decoding: list[list[int]] = []  # [context, tokens left]
        held, total, warm = 0, self.card.request, False
        while waiting or prefilling or decoding:
            budget = self.config.max_num_batched_tokens - len(decoding)
            prompts = tokens = pairs = 0
            done: list[list[int]] = []
            while budget > 0 and (prefilling or waiting):
                if not prefilling:
                    _, prompt, answer = waiting[0]
                    known = shared_prefix if warm else 0
                    if len(decoding) + len(done) >= self.config.max_num_seqs or (
                        held and held + prompt - known > capacity
                    ):
                        break
                    waiting.popleft()
                    total += known * self.card.prompt_token
                    held += prompt - known
                    warm = True
                    prefilling.append([min(known, prompt - 1), prompt, answer])
                current = prefilling[-1]
                count = min(budget, current[1] - current[0])
                pairs += count * current[0] + count * (count + 1) // 2
                prompts, tokens, budget = prompts + 1, tokens + count, budget - count
                current[0] += count
                if current[0] == current[1]:
                    done.append([current[1], current[2] - 1])
                    prefilling.pop()
            context = sum(c for c, _ in decoding) + len(decoding)
            if len(decoding) >= SHARED_SEQUENCES and not prompts:
                context -= shared_prefix * (len(decoding) - -(-len(decoding) // SHARED_SEQUENCES))
            total += tokens * self.card.prompt_token
            total += self.seconds(Step(len(decoding), context, prompts, tokens, pairs))
            for sequence in decoding:
                sequence[0] += 1
                sequence[1] -= 1
            held += len(decoding)
            decoding += done
            held -= sum(c for c, left in decoding if left <= 0)
            decoding = [s for s in decoding if s[1] > 0]
        return total


def memory_tokens(model: ModelConfig, config: EngineConfig, card: Card) -> int:
    """Tokens that the cache holds."""
    return memory_of(model, config, card).blocks * config.block_size


def _both(reading: float, multiplying: float) -> float:
    return float((reading**OVERLAP + multiplying**OVERLAP) ** (1 / OVERLAP))
