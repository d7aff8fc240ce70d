"""The runner of a GPU: it works a step ahead of the host, and decodes by replaying CUDA graphs.

A step reads its rows from tables on the device and writes the tokens it drew back into them (`device_tables`), so the
next step can be launched before the host has seen them; ids come back by a copy that is not awaited until the step
behind it is in flight. A decode step, from the embedding to the drawn token, is one graph for each of a few batch
sizes; smaller batches are padded with rows that belong to no sequence, write nothing and have no length. So are steps
of few sequences and few tokens, prompts among them. Steps of many sequences or tokens replay the layers piece by piece,
with attention in between (`piecewise`); the largest run kernel by kernel, for their launches hide behind their work.

Without CUDA the same code runs step by step on the kernels' twins, which is how it is tested.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from backend.engine.cache.attention import KVCache
from backend.engine.cache.pages import Pages
from backend.engine.core.runner import REBALANCED_PAIRS, Masks
from backend.engine.core.scheduler import Scheduled
from backend.engine.core.speculation import Drafted, HiddenStates, first_rows
from backend.engine.gpu.captures import PIECE_STEP, Replay, capturing, piece_size
from backend.engine.gpu.committing import CommittingReplays, PlainReplays, Variant, allocate_largest, any_commits
from backend.engine.gpu.d2h import PendingTokens, PinnedBuffers, longest_first, places_of
from backend.engine.gpu.device_tables import DeviceTables, Words, row_of
from backend.engine.gpu.latent_layers import layers_of, workspace_of
from backend.engine.gpu.paged_layers import (
    DENSE_STEP,
    HISTORY_PART,
    HISTORY_STEP,
    StepShape,
    dense_lengths,
    dense_prompts,
    is_resumed,
    resumed_prompts,
)
from backend.engine.gpu.piecewise import PiecewiseBody
from backend.engine.gpu.shaping import DeviceShaping, PendingLogprobs, prompt_places
from backend.engine.gpu.verifier import SIZES, Verifier
from backend.kernels.adapters.reference import slots_of_tokens
from backend.kernels.attention.workspace import PREFIX_STEP, SharedPrefix
from backend.kernels.launching.launch import FP8
from backend.kernels.sampling.row_state import Draws, StepInputs, by_table
from backend.models.checkpoints.direct import OnProgress
from backend.models.decoders.paged_decoder import PagedCache, PagedDecoder, StepTokens
from backend.planner.memory import IN_PIECES

AHEAD = 1
INFLIGHT_COPIES = AHEAD + 2
PROMPT_TOKENS = (32, 64, 128, 256, 512, 1024, 2048)  # sizes of captured steps with prompts
SHARED_TOKENS, SHARED_SEQUENCES = 512, 16  # a common prefix and a batch from which reading it once is worth a launch
PROMPT_SEQUENCES = 16  # that such a step has room for, decodes included


class GraphRunner:
    """A `runner.Runner`.

    Args:
        max_num_seqs, max_num_batched_tokens, max_model_len: as the scheduler keeps to.
        speculates: it will be asked to `verify`. batch_invariant: see `PagedLayers`; the model has to be so, too.
    """

    ahead = AHEAD
    plain_only = False

    def __init__(
        self,
        model: PagedDecoder,
        cache: KVCache,
        *,
        max_num_seqs: int,
        max_num_batched_tokens: int,
        max_model_len: int,
        speculates: bool = False,
        batch_invariant: bool = False,
    ) -> None:
        self.device = device = cache.keys.device
        self.block_size = block_size = cache.block_size
        self.kernels = model.kernels
        self.model = model
        self.max_num_seqs, self.max_num_batched_tokens = max_num_seqs, max_num_batched_tokens
        config = model.config
        k_scale, v_scale = _scales(model, cache)
        self.cache = PagedCache(cache.keys, cache.values, k_scale, v_scale, cache.groups)
        self.pages = Pages(cache.keys, cache.values, cache.groups)
        self.windows = windows = cache.groups.windows
        self._shaping = DeviceShaping(max_num_seqs, config.vocab_size, self.kernels, device)
        self.tables = DeviceTables(max_num_seqs, max_model_len, block_size, self.kernels, device, len(windows))
        max_blocks = -(-max_model_len // block_size)
        most_tokens = piece_size(max_num_batched_tokens + DENSE_STEP)
        self._inputs = StepInputs.allocate(most_tokens, max_num_seqs, max_blocks, device, len(windows))
        self._adapters = (
            None if model.adapters is None else torch.full((most_tokens,), -1, dtype=torch.int32, device=device)
        )
        self._draws = Draws.allocate(max_num_seqs, device)
        self._largest = allocate_largest(max_num_seqs, config.hidden_size, device)
        self._workspace = workspace_of(config, device, max_num_seqs)
        self._one_each = torch.arange(max_num_seqs + 1, dtype=torch.int32, device=device)
        self._landing = PinnedBuffers(max_num_seqs, INFLIGHT_COPIES, device)
        self.batch_invariant = batch_invariant
        self._verifier = (
            Verifier.allocate(model, self.cache, self.tables, block_size, batch_invariant=batch_invariant)
            if speculates
            else None
        )
        self._check_replays: list[Replay] = []
        self._check_logit_replays: dict[int, Replay] = {}  # of those that draw outside of them
        self._replays: list[Replay] = []
        self._prompt_replays: list[Replay] = []
        self._logit_replays: dict[int, Replay] = {}  # of steps that draw outside of them
        self._shared_replays: dict[int, Replay] = {}
        self._committing = CommittingReplays(partial(self._step_of, commits=True), self._captured, self._miss)
        self._plain = PlainReplays(self._step_of, self._captured, self._miss)
        self._pieces: dict[int, PiecewiseBody] = {}
        self._later: list[Callable[[], object]] = []  # captures for when nothing runs, the next one last
        self._missed: dict[tuple[Any, Any], None] = {}  # captures, with their sizes, that steps did without, in order
        self._pool: Any = None  # memory of all graphs, once there are any
        self._layer_bytes = model.layer_bytes
        shape = max_num_seqs, config.num_heads, config.head_dim
        self._shared = SharedPrefix.allocate(self.tables.shared_length, *shape)
        self._first: dict[int, int] = {}

    def exposed(self) -> HiddenStates | None:
        """Hidden states of the last step launched; None where the model exposes none. Does not wait."""
        exposure = self.model.exposure
        return None if exposure is None else HiddenStates(exposure.states, self._first)

    def _place(self, ordered: list[Scheduled]) -> None:
        """The next step has these, in the order of its rows."""
        self._first = first_rows((s.sequence.id, s.num_tokens) for s in ordered)

    @torch.inference_mode()
    def launch(self, batch: list[Scheduled], masks: Masks | None = None) -> PendingTokens:
        tables = self.tables
        decodes = [s for s in batch if s.num_tokens == 1]
        for scheduled in batch:
            if scheduled.admitted:
                tables.admit(scheduled.sequence)
                self._shaping.admit(scheduled.sequence)
            else:
                tables.extend(scheduled.sequence)
        commits = any_commits(batch)
        if not all(s.sequence.params.plain for s in batch):
            return self._launch_shaped(batch, masks, commits)
        tokens = sum(s.num_tokens for s in batch)
        prompts = next((r for r in self._prompt_replays if r.size >= tokens), None)
        if len(decodes) == len(batch):
            ordered = longest_first(batch)
            drawn = self._decode(ordered, commits=commits)
        elif prompts and len(batch) <= PROMPT_SEQUENCES:
            ordered, drawn = batch, self._prompts(batch, prompts, commits)
        else:
            ordered, drawn = self._mixed(decodes, [s for s in batch if s.num_tokens > 1], commits=commits)
        largest = self._left(len(ordered), commits)
        return self._landing.bring(drawn[: len(ordered)], places_of(ordered, batch), largest=largest)

    def _left(self, rows: int, commits: bool) -> Tensor | None:
        """What the step leaves of these rows, if it commits."""
        return self._largest[:rows] if commits else None

    def _launch_shaped(self, batch: list[Scheduled], masks: Masks | None, commits: bool) -> PendingTokens:
        """A step whose draws are shaped or reported: the model runs as ever, up to the logits; the draw is not
        captured, for what it does depends on who runs. What is asked is read before `masks`, which ends sequences."""
        decodes = [s for s in batch if s.num_tokens == 1]
        if len(decodes) == len(batch) and not any(s.prompt_rows for s in batch):
            ordered = longest_first(batch)
            logits, starts = self._decode(ordered, draws=False, commits=commits), self._one_each
        else:
            prompts = [s for s in batch if s.num_tokens > 1]
            ordered, logits = self._mixed(decodes, prompts, draws=False, commits=commits)
            starts = self.tables.query_start
        of_prompts, logits = PendingLogprobs.of_prompts(self.kernels, ordered, logits)
        plan, places = self._shaping.plan(ordered), places_of(ordered, batch)
        reported = {
            i: top for i, s in enumerate(ordered) if s.samples and (top := s.sequence.params.logprobs) is not None
        }
        x = self._shaping.shaped(logits[: len(ordered)], plan, masks() if masks else None)
        drawn = self._drawn(x, self._draws.first(len(x)), self.tables.step_rows[: len(x)], starts[: len(x) + 1])
        self._shaping.count(plan, drawn)
        return self._landing.bring(
            drawn,
            places,
            reported,
            PendingLogprobs.of(self.kernels, logits, drawn, reported),
            of_prompts,
            self._left(len(ordered), commits),
        )

    @torch.inference_mode()
    def verify(self, batch: list[Drafted]) -> list[list[int | None]]:
        """The draws behind each sequence's last token and each of its guesses. Waits for them."""
        assert self._verifier is not None  # noqa: S101  (without one no tokens are drafted)
        rows = self._verifier.stage(batch)
        size = self._verifier.size(rows)
        commits = any(item.sequence.params.commits for item in batch)
        self._first = first_rows((item.sequence.id, item.num_tokens) for item in batch)
        adapted = self._adapted(batch)
        if any(item.allowed is not None for item in batch):
            drawn = self._verifier.drawn(self._verifier.held(self._check_logits(size, commits, adapted), batch))
            return self._verifier.settle(batch, drawn[:rows].tolist())
        replay = next((r for r in self._check_replays if r.size == size), None)
        if commits:
            drawn = self._committing(Variant("check", size, adapted=adapted), self._pool is not None)
        elif replay is None:
            drawn = self._verifier.step(size, adapted=adapted)()
        else:
            drawn = self._replayed(replay, Variant("check", size, adapted=adapted))
        return self._verifier.settle(batch, drawn[:rows].tolist())

    def checked_activations(self) -> list[list[bytes]]:
        assert self._verifier is not None  # noqa: S101  (as above)
        return self._verifier.rows

    def _check_logits(self, size: int, commits: bool, adapted: bool) -> Tensor:
        """Of a step that checks guesses: a graph once it is captured, kernel by kernel until then."""
        assert self._verifier is not None  # noqa: S101  (as above)
        if commits:
            return self._committing(Variant("check", size, draws=False, adapted=adapted), self._pool is not None)
        replay = self._check_logit_replays.get(size)
        if replay is not None:
            return self._replayed(replay, Variant("check", size, draws=False, adapted=adapted))
        if self._pool is not None:
            self._miss(self._check_logit_replay, size)
        return self._verifier.step(size, draws=False, adapted=adapted)()

    def _check_logit_replay(self, size: int) -> Replay:
        verifier, replays = self._verifier, self._check_logit_replays
        if verifier is not None and size not in replays:
            replays[size] = self._captured([size], lambda n: verifier.step(n, draws=False))[0]
        return replays[size]

    def copy(self, pairs: list[tuple[int, int]]) -> None:
        self.pages.copy(pairs)

    def scrub(self, blocks: list[int]) -> None:
        self.pages.zero(blocks)

    def residue(self, blocks: list[int]) -> int:
        return self.pages.residue(blocks)

    @torch.inference_mode()
    def forget(self) -> None:
        """Clear all tokens from the buffers. No step may be running or in flight."""
        self.tables.forget()
        self.pages.forget_buffers()
        self._shaping.forget()
        self._inputs.token_ids.zero_()
        self._largest.zero_()
        self._landing.forget()
        if self._verifier:
            self._verifier.forget()
        if self.model.exposure is not None:
            self.model.exposure.clear()

    @torch.inference_mode()
    def capture(self, sizes: list[int], on_progress: OnProgress = lambda done, total: None) -> None:
        """Capture a decode graph for each batch size, and those of prompts, while nothing runs."""
        self._clear_step()
        self._pool = torch.cuda.graph_pool_handle()
        self._stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        most = next((n for n in range(self.max_num_batched_tokens, 0, -PIECE_STEP) if self._in_pieces(n)), 0)
        config = self.model.config
        self._attended = torch.zeros(
            piece_size(most),
            config.num_heads,
            config.attended_dim,
            dtype=self.model.embedding.dtype,
            device=self.device,
        )
        if most:
            self._pieces_for(piece_size(most))
        prompts = [tokens for tokens in PROMPT_TOKENS if tokens <= self.max_num_batched_tokens]
        checks = list(SIZES) if self._verifier else []
        total = len(prompts) + len(sizes) + len(checks)
        self._prompt_replays = self._captured(prompts, self._prompt_step)
        on_progress(len(prompts), total)
        self._replays = self._captured(sizes, self._decode_step)
        on_progress(len(prompts) + len(sizes), total)
        if self._verifier:
            self._check_replays = self._captured(checks, self._verifier.step)
            on_progress(total, total)
        self._later = [partial(self._pieces_for, tokens) for tokens in range(PIECE_STEP, most + 1, PIECE_STEP)]
        for size in sorted(sizes, reverse=True):
            self._later.append(partial(self._logit_replay, size))
            if size >= SHARED_SEQUENCES and self._shares_prefixes:
                self._later.append(partial(self._shared_replay, size))
        if self._adapters is not None:
            self._later += [partial(self._plain.prepare, Variant("prompts", size)) for size in reversed(prompts)]
            self._later += [
                partial(self._plain.prepare, Variant("decode", size)) for size in sorted(sizes, reverse=True)
            ]

    @property
    def missed(self) -> int:
        return len(self._missed)

    @torch.inference_mode()
    def prepare(self) -> bool:
        """Capture one of the graphs that not every answer needs. All of them before the engine is ready would take
        longer than loading the weights; a step whose graph is missing runs kernel by kernel, for a capture takes many
        times as long. With all of them there: copy experts that are often taken, if ranks hold them as wholes."""
        if self._missed:
            capture, size = next(iter(self._missed))
            del self._missed[capture, size]
            capture(size)
        elif self._later:
            self._later.pop()()
        else:
            return self.model.rebalance(REBALANCED_PAIRS)
        return True

    def _miss(self, capture: Callable[[Any], object], size: Any) -> None:
        """`prepare` will capture it, before others."""
        self._missed[capture, size] = None

    def _logit_replay(self, size: int) -> Replay:
        if size not in self._logit_replays:
            self._logit_replays[size] = self._captured([size], lambda n: self._decode_step(n, draws=False))[0]
        return self._logit_replays[size]

    def _shared_replay(self, size: int) -> Replay:
        if size not in self._shared_replays:
            self._shared_replays[size] = self._captured([size], lambda n: self._decode_step(n, shared=True))[0]
        return self._shared_replays[size]

    def _captured(self, sizes: list[int], step_of: Callable[[int], Callable[[], Tensor]]) -> list[Replay]:
        replays = []
        self._clear_step()  # a step runs before it is captured, with rows of no sequence
        for size in sorted(sizes, reverse=True):  # the largest first: the others live in its memory
            step = step_of(size)
            step()  # compiles, and lets the libraries allocate, outside the capture
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            with capturing(graph, self._pool):
                drawn = step()
            replays.append(Replay(size, graph, drawn))
        return replays[::-1]

    @torch.inference_mode()
    def profile_run(self) -> None:
        """Dummy forward pass of the largest step: its memory is the most that any step takes."""
        self._dummy_step(self.max_num_batched_tokens)
        rows = self.max_num_batched_tokens // DENSE_STEP * DENSE_STEP
        room = self._inputs.block_tables.shape[-1] * self.block_size // HISTORY_STEP * HISTORY_STEP
        history = min(HISTORY_PART, room)
        if self._has_dense and not HISTORY_STEP % self.block_size and is_resumed(rows, history):
            self._dummy_step(rows, history)

    def _dummy_step(self, tokens: int, history: int = 0) -> None:
        """history: tokens behind which all are computed by the dense kernel; 0: by the kernel that reads the cache."""
        self._clear_step()
        starts = self.tables.query_start
        if history:
            shape = StepShape(0, resumed=resumed_prompts(0, [(tokens, history)]))
        else:
            shape = StepShape(0, chunks=1, chunk_rows=tokens)
        self._step(starts, shape, tokens, starts[:2])()

    def _in_pieces(self, tokens: int) -> bool:
        return tokens * self._layer_bytes < IN_PIECES

    def _captured_pieces(self, tokens: int) -> PiecewiseBody | None:
        """The layers of a step of so many tokens; None if it runs kernel by kernel, for that is better or for now."""
        size = piece_size(tokens)
        if self._pool is None or size > len(self._attended):
            return None
        if size not in self._pieces:
            self._miss(self._pieces_for, size)
        return self._pieces.get(size)

    def _pieces_for(self, size: int) -> None:
        """Capture the layers of a step of so many tokens, unless they are."""
        if size in self._pieces:
            return
        self._dummy_step(size)  # a step runs before it is captured
        inputs = self._inputs
        self._pieces[size] = PiecewiseBody(
            self.model,
            StepTokens(
                inputs.token_ids[:size],
                inputs.positions[:size],
                inputs.slots[..., :size],
                None,
                self._adapters_of(size),
            ),
            self.cache,
            self._attended,
            self._stream,
            self._pool,
        )

    def _found(self, replays: dict[int, Replay], capture: Callable[[int], Replay], size: int) -> Replay | None:
        if size not in replays:
            self._miss(capture, size)
        return replays.get(size)

    def _adapters_of(self, tokens: int, adapted: bool = True) -> Tensor | None:
        """Where the adapter of each token of a step stands, as data; None: the model takes none, or no row has one."""
        return None if self._adapters is None or not adapted else self._adapters[:tokens]

    def _adapted(self, batch: Sequence[Scheduled | Drafted]) -> bool:
        """Whether a row of the step has an adapter."""
        return self._adapters is not None and any(item.sequence.adapter >= 0 for item in batch)

    def _replayed(self, replay: Replay, variant: Variant) -> Tensor:
        """What the step leaves. replay: of a step whose rows may have adapters, where the model takes any."""
        if self._adapters is not None and not variant.adapted:
            replay = self._plain.instead_of(replay, variant)
        replay.graph.replay()
        return replay.drawn

    def _clear_step(self) -> None:
        self.tables.describe("step_rows", np.full(self.max_num_seqs, -1, dtype=np.int32))
        self.tables.describe("query_start", np.zeros(self.max_num_seqs + 1, dtype=np.int32))
        self.tables.flush()

    def _decode(self, batch: list[Scheduled], *, draws: bool = True, commits: bool = False) -> Tensor:
        """The tokens drawn, or, unless it ``draws``, the logits. commits: see `_step`."""
        count, adapted = len(batch), self._adapted(batch)
        self._place(batch)
        replay = next((r for r in self._replays if r.size >= count), None)
        size = replay.size if replay else count
        common = self._common_prefix(batch) if draws else 0
        if replay and not commits:
            if not draws:
                replay = self._found(self._logit_replays, self._logit_replay, size)
            elif common:
                replay = self._found(self._shared_replays, self._shared_replay, size)
        if common:
            self.tables.describe("shared_length", np.array([common], dtype=np.int32))
        rows = np.full(size, -1, dtype=np.int32)
        rows[:count] = [row_of(s.sequence) for s in batch]
        self.tables.describe("step_rows", rows)
        self.tables.flush()
        variant = Variant("decode", size, draws, common > 0, adapted)
        if commits:
            return self._committing(variant, replay is not None)
        return self._step_of(variant)() if replay is None else self._replayed(replay, variant)

    def _decode_step(
        self, size: int, shared: bool = False, draws: bool = True, commits: bool = False, adapted: bool = True
    ) -> Callable[[], Tensor]:
        starts, each = self._one_each[: size + 1], self._one_each[:1]
        shape = StepShape(size, shared)
        return self._step(starts, shape, size, each, draws=draws, commits=commits, adapted=adapted)

    def _step_of(self, variant: Variant, commits: bool = False) -> Callable[[], Tensor]:
        kind, size, draws, shared, adapted = variant
        if kind == "decode":
            return self._decode_step(size, shared, draws, commits, adapted)
        if kind == "prompts":
            return self._prompt_step(size, commits, adapted)
        assert self._verifier is not None  # noqa: S101  (without one no tokens are drafted)
        return self._verifier.step(size, draws=draws, commits=commits, adapted=adapted)

    def _common_prefix(self, batch: list[Scheduled]) -> int:
        """Length of the prefix that all share, in whole tiles; 0 if that is not worth a separate kernel."""
        tables = [s.sequence.block_table for s in batch]
        if not self._shares_prefixes:
            return 0
        if len(tables) < SHARED_SEQUENCES or any(table[0] != tables[0][0] for table in tables):
            return 0
        first, last = min(tables), max(tables)  # what these two share, all share
        pairs = zip(first, last, strict=False)
        same = next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(first), len(last)))
        tokens = same * self.block_size // PREFIX_STEP * PREFIX_STEP
        return tokens if tokens >= SHARED_TOKENS else 0

    @property
    def _shares_prefixes(self) -> bool:
        return not self.batch_invariant and self.model.config.plain_attention

    def _prompt_step(self, tokens: int, commits: bool = False, adapted: bool = True) -> Callable[[], Tensor]:
        count = min(PROMPT_SEQUENCES, self.max_num_seqs)
        starts = self.tables.query_start[: count + 1]
        shape = StepShape(0, chunks=count, chunk_rows=tokens)
        return self._step(starts, shape, tokens, starts, commits=commits, adapted=adapted)

    def _prompts(self, batch: list[Scheduled], replay: Replay, commits: bool) -> Tensor:
        self._place(batch)
        count = min(PROMPT_SEQUENCES, self.max_num_seqs)
        rows = np.full(count, -1, dtype=np.int32)
        rows[: len(batch)] = [row_of(s.sequence) for s in batch]
        starts = _starts(batch)
        self.tables.describe("step_rows", rows)
        self.tables.describe("query_start", np.pad(starts, (0, count + 1 - len(starts)), mode="edge"))
        self.tables.flush()
        variant = Variant("prompts", replay.size, adapted=self._adapted(batch))
        return self._committing(variant, captured=True) if commits else self._replayed(replay, variant)

    def _mixed(
        self, decodes: list[Scheduled], prefills: list[Scheduled], *, draws: bool = True, commits: bool = False
    ) -> tuple[list[Scheduled], Tensor]:
        """The batch in the order that it runs in, and the tokens drawn, or, unless it ``draws``, the logits: of tokens
        of prompts that are asked for, then of each sequence's last."""
        ordered, chunks, shape = self._arranged(longest_first(decodes), prefills)
        self._place(ordered)
        pieces = self._captured_pieces(shape.rows)
        tables = self.tables
        tables.describe("step_rows", np.array([row_of(s.sequence) for s in ordered], dtype=np.int32))
        tables.describe("query_start", _starts(ordered))
        tables.describe("prefill_start", _starts(chunks))
        tables.flush()
        count = len(ordered)
        step = self._step(
            tables.query_start[: count + 1],
            shape,
            pieces.size if pieces else shape.rows,
            tables.prefill_start[: len(chunks) + 1],
            pieces,
            draws=draws,
            also=prompt_places(ordered, self.device),
            commits=commits,
            adapted=self._adapted(ordered),
        )
        return ordered, step()

    def _arranged(
        self, decodes: list[Scheduled], prefills: list[Scheduled]
    ) -> tuple[list[Scheduled], list[Scheduled], StepShape]:
        """The batch in the order that it runs in; those of it that are chunks; its shape."""
        whole = [s for s in prefills if not s.sequence.num_computed and self._has_dense]
        lengths = dense_lengths([s.num_tokens for s in whole])
        dense = sorted((s for s in whole if s.num_tokens in lengths), key=lambda s: s.num_tokens)
        resumed = [s for s in prefills if self._is_resumed(s)]
        chunks = [s for s in prefills if s not in dense and s not in resumed]
        chunk_rows = _tokens(chunks)
        begin = len(decodes) + chunk_rows
        shape = StepShape(
            len(decodes),
            chunks=len(chunks),
            chunk_rows=chunk_rows,
            resumed=resumed_prompts(begin, [(s.num_tokens, s.sequence.num_computed) for s in resumed]),
            dense=dense_prompts(begin + _tokens(resumed), [s.num_tokens for s in dense]),
        )
        return decodes + chunks + resumed + dense, chunks, shape

    @property
    def _has_dense(self) -> bool:
        return (
            not self.batch_invariant
            and self.model.config.plain_attention
            and self.device.type == "cuda"
            and self.model.embedding.dtype in (torch.bfloat16, torch.float16)
        )

    def _is_resumed(self, scheduled: Scheduled) -> bool:
        history = scheduled.sequence.num_computed
        return self._has_dense and not HISTORY_STEP % self.block_size and is_resumed(scheduled.num_tokens, history)

    def _step(
        self,
        query_start: Tensor,
        shape: StepShape,
        tokens: int,
        chunk_start: Tensor,
        pieces: PiecewiseBody | None = None,
        *,
        draws: bool = True,
        also: Tensor | None = None,
        commits: bool = False,
        adapted: bool = True,
    ) -> Callable[[], Tensor]:
        """A step of the rows in the tables, as a function that may be called or (not in pieces) captured; returns the
        drawn tokens, or, unless it ``draws``, the logits of the tokens at ``also`` and of each sequence's last. One
        that ``commits`` leaves the largest activations of the latter in `_largest`; in one that is not ``adapted`` no
        row has an adapter."""
        tables, kernels = self.tables, self.kernels
        count = len(query_start) - 1
        rows = tables.step_rows[:count]
        inputs = self._inputs.first(tokens, count)
        wanted = self._draws.first(count)
        attention = layers_of(self.model.config)(
            self.model.config,
            kernels,
            self.cache,
            self._workspace,
            shape,
            inputs.block_tables,
            inputs.seq_lens,
            query_start if self.batch_invariant else chunk_start,
            self._shared,
            batch_invariant=self.batch_invariant,
            sinks=self.model.sinks,
        )
        last = None if shape.decodes == count else inputs.last
        adapters = self._adapters_of(tokens, adapted or pieces is not None)  # pieces are captured with adapters
        step_tokens = StepTokens(inputs.token_ids, inputs.positions, inputs.slots, last, adapters)

        def step() -> Tensor:
            for state, each in by_table(tables.state, inputs):
                kernels.prepare_step(rows, query_start, state, self.block_size, each)
            if adapters is not None:
                slots_of_tokens(rows, query_start, tables.adapters, adapters)
            kernels.gather_draws(rows, tables.state.known, tables.sampling, wanted)
            kernels.gather_marks(rows, wanted.positions, tables.state.tokens, tables.marks, wanted.marks)
            rows_wanted = last if also is None else torch.cat((also, inputs.last))
            if pieces is None:
                hidden = self.model.body(replace(step_tokens, last=rows_wanted), self.cache, attention)
            else:
                hidden = self.model.finish(pieces(attention, shape.tokens), rows_wanted)
            if not commits:
                logits = self.model.logits(hidden)
                return self._drawn(logits, wanted, rows, query_start) if draws else logits
            with self.model.logits_leaving(hidden, self._largest[:count]) as logits:
                return self._drawn(logits, wanted, rows, query_start) if draws else logits

        return step

    def _drawn(self, logits: Tensor, draws: Draws, rows: Tensor, query_start: Tensor) -> Tensor:
        """The token drawn for each row, taken note of in the tables."""
        kernels = self.kernels
        threshold = kernels.sampling_threshold(logits, draws.temperature, draws.top_k, draws.top_p, draws.min_p)
        drawn = kernels.sample(logits, draws.temperature, draws.seeds, draws.positions, threshold, draws.marks)
        kernels.commit_step(rows, query_start, drawn, self.tables.state)
        return drawn


def _tokens(batch: list[Scheduled]) -> int:
    return sum(s.num_tokens for s in batch)


def _starts(batch: list[Scheduled]) -> Words:
    starts = np.zeros(len(batch) + 1, dtype=np.int32)
    np.cumsum([s.num_tokens for s in batch], out=starts[1:])
    return starts


def _scales(model: PagedDecoder, cache: KVCache) -> tuple[Tensor | None, Tensor | None]:
    """Of keys and of values by layer and head, [layers, kv heads]; None where the cache is not in FP8."""
    if cache.keys.dtype != FP8:
        return None, None
    config = model.config  # e4m3 reaches 448; keys seldom pass 50, so 1 does where a checkpoint brings no scales
    given = model.kv_scales if model.kv_scales is not None else torch.ones(config.num_layers, 2)
    k_scale, v_scale = (
        given[:, part, None].repeat(1, config.num_kv_heads).to(cache.keys.device).contiguous() for part in (0, 1)
    )
    return k_scale, v_scale
