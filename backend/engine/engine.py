"""The engine: add sequences, call `step` until there is nothing left.

Not thread-safe and without a clock; `backend.engine_process` drives it.
"""

import torch

from backend.engine.attention import KVCache
from backend.engine.block_manager import BlockManager
from backend.engine.config import CacheSize, EngineConfig, size_cache
from backend.engine.model_runner import ModelRunner
from backend.engine.progress import Finish, Progress, Stats
from backend.engine.sampling import SamplingParams
from backend.engine.scheduler import Scheduler
from backend.engine.sequence import Sequence
from backend.errors import ContextLengthExceeded, InvalidRequest, Overloaded
from backend.models.checkpoint import Checkpoint
from backend.models.decoder import Decoder
from backend.models.loader import load_model


class Engine:
    def __init__(
        self, model: Decoder, config: EngineConfig, cache: CacheSize, eos_ids: frozenset[int] = frozenset()
    ) -> None:
        self.config = config
        self.max_model_len = cache.max_model_len
        self.vocab_size = model.config.vocab_size
        self.blocks = BlockManager(
            cache.num_blocks, config.block_size, prefix_cache=config.prefix_cache, salt=config.cache_salt
        )
        self.scheduler = Scheduler(
            self.blocks, max_num_seqs=config.max_num_seqs, max_num_batched_tokens=config.max_num_batched_tokens
        )
        dtype = model.embedding.dtype
        self.runner = ModelRunner(
            model, KVCache(model.config, cache.num_blocks, config.block_size, dtype, config.device)
        )
        self._eos_ids = eos_ids
        self._sequences: dict[int, Sequence] = {}
        self._arrivals = 0
        self._steps = 0

    @classmethod
    def from_checkpoint(cls, checkpoint: Checkpoint, config: EngineConfig) -> "Engine":
        """Load and build. Raises ConfigError before loading if the KV cache cannot be as asked, ModelError while."""
        if config.threads is not None:
            torch.set_num_threads(config.threads)
        element_size = 4 if config.dtype == "float32" else 2
        cache = size_cache(config, checkpoint.config, element_size)
        eos_ids = checkpoint.text.eos_ids
        return cls(load_model(checkpoint, config.dtype, config.device), config, cache, eos_ids)

    @property
    def has_work(self) -> bool:
        return bool(self._sequences)

    @property
    def stats(self) -> Stats:
        s = self.scheduler
        return Stats(
            running=len(s.running),
            waiting=len(s.waiting),
            used_blocks=self.blocks.num_used,
            total_blocks=len(self.blocks.blocks),
            preemptions=s.num_preemptions,
            prefix_queries=s.prefix_queries,
            prefix_hits=s.prefix_hits,
            steps=self._steps,
        )

    def add(
        self,
        id: int,
        prompt: list[int],
        params: SamplingParams,
        *,
        priority: int = 0,
        leader: int | None = None,
        cache_root: bytes = b"",
    ) -> None:
        """Queue a sequence.

        ``leader``: id of a sequence with the same prompt, to share its blocks (n > 1). Raises Overloaded when the queue
        is full, ContextLengthExceeded when no token fits behind the prompt, InvalidRequest for an empty prompt, a token
        outside the vocabulary or an id in use.
        """
        if id in self._sequences:
            raise InvalidRequest(f"sequence {id} is already there")
        if not prompt:
            raise InvalidRequest("the prompt is empty", param="prompt")
        if min(prompt) < 0 or max(prompt) >= self.vocab_size:
            raise InvalidRequest(f"token ids must be from 0 to {self.vocab_size - 1}", param="prompt")
        if len(prompt) >= self.max_model_len:
            raise ContextLengthExceeded(
                f"the prompt has {len(prompt)} tokens; with at least one of answer at most {self.max_model_len} fit",
                param="prompt",
            )
        if len(self.scheduler.waiting) >= self.config.max_waiting + self._free_places:
            raise Overloaded(f"{len(self.scheduler.waiting)} sequences are waiting")
        sequence = Sequence(
            id,
            prompt,
            params,
            arrival=self._arrivals,
            priority=priority,
            leader=self._sequences.get(leader) if leader is not None else None,
            cache_root=cache_root,
        )
        self._arrivals += 1
        self._sequences[id] = sequence
        self.scheduler.add(sequence)

    @property
    def _free_places(self) -> int:
        return self.config.max_num_seqs - len(self.scheduler.running)

    def abort(self, id: int) -> None:
        """Forget a sequence and free its blocks at once. Harmless for an unknown or finished one."""
        sequence = self._sequences.pop(id, None)
        if sequence is not None:
            self.scheduler.finish(sequence)

    def step(self) -> list[Progress]:
        """Run one batch. One entry for each sequence that got a token or failed."""
        batch = self.scheduler.schedule()
        sampled = self.runner.run(batch) if batch else {}
        self._steps += 1
        progress = []
        for scheduled in batch:
            sequence = scheduled.sequence
            sequence.num_computed += scheduled.num_tokens
            if sequence.id not in sampled:
                self.blocks.publish(sequence)
                continue
            token = sampled[sequence.id]
            if token is not None:
                self.blocks.publish(sequence)
                sequence.tokens.append(token)
            finish = self._finish(sequence, token)
            if finish is not None:
                del self._sequences[sequence.id]
                self.scheduler.finish(sequence)
            progress.append(Progress(sequence.id, token, finish, sequence.num_cached or 0))
        return progress

    def _finish(self, sequence: Sequence, token: int | None) -> Finish | None:
        params = sequence.params
        if token is None:
            return Finish.ERROR
        if token in params.stop_token_ids or (token in self._eos_ids and not params.ignore_eos):
            return Finish.STOP
        if sequence.num_output >= params.max_tokens or len(sequence.tokens) >= self.max_model_len:
            return Finish.LENGTH
        return None
