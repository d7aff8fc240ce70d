"""How long a step takes on a card (roofline; Williams et al. 2009), and a workload, step by step.

A step reads the weights once and multiplies them with its rows; the two overlap less than a max of both and more than
their sum, which is what OVERLAP says. Its decodes read their keys and values; its prompts multiply queries with keys.
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, replace

from backend.engine_config import EngineConfig, weight_format
from backend.errors import ConfigError
from backend.models.config import ModelConfig
from backend.planner.cards import Card
from backend.planner.memory import BYTES, kv_bytes_per_token, memory_of, parameters
from backend.quantization.none import NONE

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
        """model: or one rank's share of it (`sharding.of_rank`), which takes as long as all of them. Raises ConfigError
        for weights that the card cannot multiply."""
        self.model, self.config, self.card = model, config, card
        self._format = weight_format(config, model)
        if not card.multiplies(self._format):
            raise ConfigError(f"{card.name} cannot multiply {self._format.name} weights; choose --quantization none")
        self._weights = parameters(model)
        self._kv_bytes = kv_bytes_per_token(model, config)

    def seconds(self, step: Step) -> float:
        card, layers = self.card, self.model.num_layers
        rows = step.decodes + step.prompt_tokens
        drawn = step.decodes + step.prompts
        products = self._products(rows) + self._head(drawn)
        pair = 2 * self.model.numbers_a_pair * layers / card.attention_flops
        # All heads of latent attention multiply the same few bytes, which then is what takes the time.
        cache = step.context * max(self._kv_bytes / card.cache_bandwidth, pair)
        attention = step.pairs * pair
        rest = layers * (card.layer_one_row if rows == 1 else card.layer_many_rows)
        device = products + cache + attention + rest + self._sums(rows, drawn)
        captured = not step.prompts or (
            rows <= CAPTURED_TOKENS and step.prompts + step.decodes <= CAPTURED_SEQUENCES and self.config.graphs
        )
        host = 0.0 if captured else layers * card.layer_launches
        return max(device, host) + card.step + card.row * drawn

    def _products(self, rows: int) -> float:
        speed, weights = self.card.speed(self._format), self._weights
        moved = weights.products * self._format.bytes_read(BYTES[self.config.dtype], rows) + self._experts_read(rows)
        reading = moved / (speed.one_row if rows == 1 else speed.many_rows)
        return _both(reading, 2 * (weights.products + weights.taken) * rows / speed.flops)

    def _sums(self, rows: int, drawn: int) -> float:
        """Over the cards that the model is divided among: two a layer, one of the embedding, and logits gathered."""
        shard, size = self.model.shard, BYTES[self.config.dtype]
        if shard.alone:
            return 0.0
        card, sums = self.card, 2 * self.model.num_layers + 1
        moved = sums * rows * self.model.hidden_size + drawn * self.model.vocab_size
        return (sums + 1) * card.link_latency + moved * size * 2 * (1 - 1 / shard.size) / card.link_bandwidth

    def _experts_read(self, rows: int) -> float:
        """Bytes of the experts that so many rows meet, each taking its experts at random."""
        experts = self.model.experts
        if experts is None:
            return 0.0
        shape = self.model.hidden_size, experts.intermediate_size
        each = self._format.expert_bytes(*shape, BYTES[self.config.dtype]) / (shape[0] * shape[1])
        return self._weights.experts * each * (1 - (1 - experts.per_token / experts.count) ** rows)

    def _head(self, rows: int) -> float:
        speed, size = self.card.speed(NONE), BYTES[self.config.dtype]
        reading = self._weights.head * size / speed.one_row
        return _both(reading, 2 * self._weights.head * rows / speed.flops)

    def first_token(self, prompt: int) -> float:
        """Seconds for a prompt that comes alone."""
        return self.workload([(prompt, 1)])

    def workload(self, requests: Iterable[tuple[int, int]], shared_prefix: int = 0) -> float:
        """Seconds for (prompt, answer) lengths handed over at once, as the scheduler would run them.

        shared_prefix: tokens that all prompts begin with, computed once.
        """
        simulation = _Simulation(self, requests, shared_prefix)
        while simulation.has_work:
            simulation.step()
        return simulation.seconds


@dataclass(slots=True)
class _Prompt:
    """done: tokens of `length` that are computed. answer: tokens of the answer."""

    done: int
    length: int
    answer: int


@dataclass(slots=True)
class _Answer:
    """context: tokens of the prompt and of the answer so far. left: tokens to come."""

    context: int
    left: int


class _Simulation:
    """Requests that arrive at once, as the scheduler runs them: answers first, then chunks of prompts in order.

    Attributes:
        seconds: that have passed.
    """

    def __init__(self, roofline: Roofline, requests: Iterable[tuple[int, int]], shared_prefix: int) -> None:
        self.seconds: float = roofline.card.request
        self._roofline = roofline
        self._shared_prefix = shared_prefix
        self._capacity = memory_tokens(roofline.model, roofline.config, roofline.card)
        self._waiting = deque(requests)
        self._prompt: _Prompt | None = None  # computed in part
        self._answers: list[_Answer] = []
        self._held = 0  # tokens in the cache
        self._prefix_cached = False

    @property
    def has_work(self) -> bool:
        return bool(self._waiting or self._prompt or self._answers)

    def step(self) -> None:
        """One step of the engine: a token for each answer, and as many prompt tokens as fit beside them."""
        step, begun = self._filled(Step(decodes=len(self._answers)))
        step = replace(step, context=self._context_read(alone=not step.prompts))
        self.seconds += step.prompt_tokens * self._roofline.card.prompt_token
        self.seconds += self._roofline.seconds(step)
        for answer in self._answers:
            answer.context += 1
            answer.left -= 1
        self._held += len(self._answers)
        self._answers += begun
        self._held -= sum(answer.context for answer in self._answers if answer.left <= 0)
        self._answers = [answer for answer in self._answers if answer.left > 0]

    def _filled(self, step: Step) -> tuple[Step, list[_Answer]]:
        """The step with what is left of its token budget filled with prompts, and the answers that begin with it."""
        budget = self._roofline.config.max_num_batched_tokens - step.decodes
        prompts = tokens = pairs = 0
        begun: list[_Answer] = []
        while budget > 0 and (prompt := self._prompt or self._admitted(beside=len(begun))):
            count = min(budget, prompt.length - prompt.done)
            pairs += count * prompt.done + count * (count + 1) // 2
            prompts, tokens, budget = prompts + 1, tokens + count, budget - count
            prompt.done += count
            if prompt.done == prompt.length:
                begun.append(_Answer(prompt.length, prompt.answer - 1))
                self._prompt = None
        return replace(step, prompts=prompts, prompt_tokens=tokens, pairs=pairs), begun

    def _admitted(self, *, beside: int) -> _Prompt | None:
        """The next request's prompt, now the one being computed; None if there is none or no room for it.

        beside: sequences that run, besides the answers.
        """
        if not self._waiting:
            return None
        length, answer = self._waiting[0]
        known = self._shared_prefix if self._prefix_cached else 0
        if len(self._answers) + beside >= self._roofline.config.max_num_seqs:
            return None
        if self._held and self._held + length - known > self._capacity:
            return None
        self._waiting.popleft()
        self.seconds += known * self._roofline.card.prompt_token
        self._held += length - known
        self._prefix_cached = True
        self._prompt = _Prompt(min(known, length - 1), length, answer)
        return self._prompt

    def _context_read(self, *, alone: bool) -> int:
        """Tokens whose keys and values the answers of a step read; alone: it has no prompts."""
        count = len(self._answers)
        context = sum(answer.context for answer in self._answers) + count
        if count >= SHARED_SEQUENCES and alone:
            context -= self._shared_prefix * (count - -(-count // SHARED_SEQUENCES))
        return context


def memory_tokens(model: ModelConfig, config: EngineConfig, card: Card) -> int:
    """Tokens that the cache holds."""
    return memory_of(model, config, card).blocks * config.block_size


def _both(reading: float, multiplying: float) -> float:
    return float((reading**OVERLAP + multiplying**OVERLAP) ** (1 / OVERLAP))
