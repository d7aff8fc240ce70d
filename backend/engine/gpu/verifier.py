"""A step that checks guesses, on the device (see `speculation`).

Each position to be judged is a row of a decode step: the rows of one sequence have the same blocks, and lengths that
grow by one. Every layer writes the keys and values of all rows before any attention reads, so a row finds those of the
guesses before it. Draws come back at once, because what runs next depends on them; the device's tables are then given
what was kept. Keys and values of refused guesses stay where the next tokens will be written.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor

from backend.engine.core.h2d import pinned, sent
from backend.engine.core.speculation import MAX_ROWS, Drafted, agreed
from backend.engine.gpu.committing import allocate_largest
from backend.engine.gpu.device_tables import DeviceTables, row_of
from backend.engine.gpu.latent_layers import layers_of, workspace_of
from backend.engine.gpu.paged_layers import StepShape
from backend.kernels.attention.workspace import DecodeWorkspace
from backend.kernels.interface import Kernels
from backend.kernels.sampling.row_state import Draws, StepInputs, by_table
from backend.models.decoders.paged_decoder import PagedCache, PagedDecoder, StepTokens

SIZES = (2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)


@dataclass(frozen=True)
class Verifier:
    """Checks guesses for one `GraphRunner`, whose model, cache and tables it shares.

    batch_invariant: as in `PagedLayers`.
    """

    model: PagedDecoder
    cache: PagedCache
    tables: DeviceTables
    inputs: StepInputs
    draws: Draws
    workspace: DecodeWorkspace
    starts: Tensor  # [MAX_ROWS + 1] int32, 0, 1, 2 …: captured steps read it, so it has to stay
    block_size: int
    batch_invariant: bool
    largest: Tensor  # as in `committing`
    rows: list[list[bytes]] = field(default_factory=list)  # of the last step (`Runner.checked_activations`)

    @classmethod
    def allocate(
        cls, model: PagedDecoder, cache: PagedCache, tables: DeviceTables, block_size: int, *, batch_invariant: bool
    ) -> "Verifier":
        device, config = cache.keys.device, model.config
        blocks = tables.state.block_tables
        several = 1 if blocks.dim() == 2 else len(blocks)
        workspace = workspace_of(config, device, MAX_ROWS)
        inputs = StepInputs.allocate(MAX_ROWS, MAX_ROWS, blocks.shape[-1], device, several)
        starts = torch.arange(MAX_ROWS + 1, dtype=torch.int32, device=device)
        draws = Draws.allocate(MAX_ROWS, device)
        largest = allocate_largest(MAX_ROWS, config.hidden_size, device)
        return cls(model, cache, tables, inputs, draws, workspace, starts, block_size, batch_invariant, largest)

    def forget(self) -> None:
        """Clear all tokens and activations from the buffers."""
        self.inputs.token_ids.zero_()
        self.largest.zero_()
        self.rows.clear()

    @property
    def kernels(self) -> Kernels:
        return self.model.kernels

    def stage(self, batch: list[Drafted]) -> int:
        """Write the rows of a step into the tables; returns how many they are."""
        tables = self.tables
        rows: list[int] = []
        offsets: list[int] = []
        for item in batch:
            tables.extend(item.sequence)
            tables.write_tokens(item.sequence, len(item.sequence.tokens), item.guesses)
            rows += [row_of(item.sequence)] * item.num_tokens
            offsets += range(item.num_tokens)
        padding = self.size(len(rows)) - len(rows)
        tables.describe("check_rows", np.array(rows + [-1] * padding, dtype=np.int32))
        tables.describe("check_offsets", np.array(offsets + [0] * padding, dtype=np.int32))
        tables.flush()
        return len(rows)

    def size(self, rows: int) -> int:
        """Rows of the step that `rows` are padded to."""
        return next(size for size in SIZES if size >= rows)

    def settle(self, batch: list[Drafted], drawn: list[int]) -> list[list[int | None]]:
        """Deal the draws out, and tell the tables which of them each sequence keeps."""
        dealt: list[list[int | None]] = []
        at = 0
        commits = any(item.sequence.params.commits for item in batch)
        largest = self.largest[: len(drawn)].cpu().numpy() if commits else None
        self.rows.clear()
        for item in batch:
            own: list[int | None] = [token if token >= 0 else None for token in drawn[at : at + item.num_tokens]]
            rows = range(at, at + item.num_tokens) if item.sequence.params.commits else ()
            self.rows.append([] if largest is None else [largest[row].tobytes() for row in rows])
            at += item.num_tokens
            kept = agreed(item.guesses, own)
            self.tables.advance(item.sequence, [max(0, token or 0) for token in own[: kept + 1]])
            dealt.append(own)
        return dealt

    def step(
        self, size: int, *, draws: bool = True, commits: bool = False, adapted: bool = True
    ) -> Callable[[], Tensor]:
        """A step of `size` rows, to be called or captured; returns the draws, [size] int64, or, unless it ``draws``,
        the logits that `drawn` takes. One that ``commits`` leaves activations in `largest`; in one that is not
        ``adapted`` no row has an adapter."""
        tables, state = self.tables, self.tables.state
        rows, offsets = tables.check_rows[:size], tables.check_offsets[:size]
        inputs = self.inputs.first(size, size)
        own = self._own_draws(size)
        attention = layers_of(self.model.config)(
            self.model.config,
            self.kernels,
            self.cache,
            self.workspace,
            StepShape(size),
            inputs.block_tables,
            inputs.seq_lens,
            self.starts[: size + 1],
            batch_invariant=self.batch_invariant,
            sinks=self.model.sinks,
        )
        step_tokens = StepTokens(inputs.token_ids, inputs.positions, inputs.slots, None)

        def step() -> Tensor:
            self._prepare(rows, offsets, inputs)
            self.kernels.gather_draws(rows, state.known, tables.sampling, own)
            own.positions.add_(offsets)
            self.kernels.gather_marks(rows, own.positions, state.tokens, tables.marks, own.marks)
            adapters = self._adapters_of(rows) if adapted else None
            hidden = self.model.body(replace(step_tokens, adapters=adapters), self.cache, attention)
            if not commits:
                logits = self.model.logits(hidden)
                return self.drawn(logits) if draws else logits
            with self.model.logits_leaving(hidden, self.largest[:size]) as logits:
                return self.drawn(logits) if draws else logits

        return step

    def drawn(self, logits: Tensor) -> Tensor:
        """The draws of a step: [rows] int64."""
        own = self._own_draws(len(logits))
        threshold = self.kernels.sampling_threshold(logits, own.temperature, own.top_k, own.top_p, own.min_p)
        return self.kernels.sample(logits, own.temperature, own.seeds, own.positions, threshold, own.marks)

    def held(self, logits: Tensor, batch: list[Drafted]) -> Tensor:
        """A copy of a step's logits in which tokens are forbidden that grammars do not allow. [rows, vocab] float32."""
        x, device, at = logits.to(torch.float32, copy=True), logits.device, 0
        places: list[int] = []
        for item in batch:
            places += range(at, at + item.num_tokens) if item.allowed is not None else ()
            at += item.num_tokens
        bits = torch.cat([item.allowed for item in batch if item.allowed is not None])
        self.kernels.apply_bitmask(x, pinned(bits, device), sent(places, torch.int32, device))
        return x

    def _own_draws(self, size: int) -> Draws:
        return Draws(**{name: getattr(self.draws, name)[:size] for name in self.draws.__dataclass_fields__})

    def _adapters_of(self, rows: Tensor) -> Tensor | None:
        if self.model.adapters is None:
            return None
        return torch.where(rows >= 0, self.tables.adapters[rows.clamp(min=0).long()], -1)

    def _prepare(self, rows: Tensor, offsets: Tensor, inputs: StepInputs) -> None:
        """What each row feeds the model; a padding row writes no cache and has no length."""
        state, size = self.tables.state, self.block_size
        real = rows >= 0
        row = rows.clamp(min=0).long()
        position = torch.where(real, state.computed[row] + offsets, 0).long()
        inputs.token_ids.copy_(torch.where(real, state.tokens[row, position], 0))
        inputs.positions.copy_(position)
        inputs.seq_lens.copy_(torch.where(real, position + 1, 0))
        for own, written in by_table(state, inputs):
            table = own.block_tables[row]
            block = table.gather(1, (position // size).unsqueeze(1)).squeeze(1).long()
            written.slots.copy_(torch.where(real, block * size + position % size, -1))
            written.block_tables.copy_(table)
