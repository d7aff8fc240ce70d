"""The tensors of running requests that live on the device, and those of one step (see `step_inputs`, `draws`)."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

SEGMENT_WORDS = 3  # that describe one staged write (see `staged_writes`)
MARK_WORDS = 12  # of a row that may be marked: whether it is, eight of its key, three of its nonce (see `marks`)


@dataclass(frozen=True)
class RowState:
    """Per request, kept between steps.

    tokens: [rows, max_len] int32, prompt then output. known: [rows] int32, how many of them are there. computed: [rows]
    int32, how many have their KV in the cache. block_tables: [rows, max_blocks] int32, or [tables, rows, max_blocks]
    where layers do not share one; see `by_table`.
    """

    tokens: Tensor
    known: Tensor
    computed: Tensor
    block_tables: Tensor

    @classmethod
    def allocate(cls, rows: int, max_len: int, block_size: int, device: torch.device) -> "RowState":
        def zeros(*shape: int) -> Tensor:
            return torch.zeros(shape, dtype=torch.int32, device=device)

        return cls(zeros(rows, max_len), zeros(rows), zeros(rows), zeros(rows, -(-max_len // block_size)))


@dataclass(frozen=True)
class StepInputs:
    """One step's flat token batch; buffers are reused, so that a captured graph reads where it did before.

    token_ids, positions, slots: [tokens] int64; padding has id 0, position 0, slot -1. seq_lens: [sequences] int32,
    padding 0. block_tables: [sequences, max_blocks] int32, entries past a sequence's length are stale.
    last: [sequences] int64, the index of each sequence's last token in the batch. slots and block_tables have [tables]
    in front where layers do not share one.
    """

    token_ids: Tensor
    positions: Tensor
    slots: Tensor
    seq_lens: Tensor
    block_tables: Tensor
    last: Tensor

    def first(self, tokens: int, sequences: int) -> "StepInputs":
        """Of so many tokens and sequences, in the same memory."""
        return StepInputs(
            token_ids=self.token_ids[:tokens],
            positions=self.positions[:tokens],
            slots=self.slots[..., :tokens],
            seq_lens=self.seq_lens[:sequences],
            block_tables=self.block_tables[..., :sequences, :],
            last=self.last[:sequences],
        )

    @classmethod
    def allocate(
        cls, tokens: int, sequences: int, max_blocks: int, device: torch.device, tables: int = 1
    ) -> "StepInputs":
        several = () if tables == 1 else (tables,)

        def zeros(dtype: torch.dtype, *shape: int) -> Tensor:
            return torch.zeros(shape, dtype=dtype, device=device)

        return cls(
            token_ids=zeros(torch.int64, tokens),
            positions=zeros(torch.int64, tokens),
            slots=zeros(torch.int64, *several, tokens),
            seq_lens=zeros(torch.int32, sequences),
            block_tables=zeros(torch.int32, *several, sequences, max_blocks),
            last=zeros(torch.int64, sequences),
        )


def by_table(state: RowState, inputs: StepInputs) -> list[tuple[RowState, StepInputs]]:
    """The same for each block table, as kernels take them."""
    if state.block_tables.dim() == 2:
        return [(state, inputs)]
    return [
        (replace(state, block_tables=table), replace(inputs, slots=slots, block_tables=own))
        for table, slots, own in zip(state.block_tables, inputs.slots, inputs.block_tables, strict=True)
    ]


@dataclass(frozen=True)
class SamplingRows:
    """How each request wants its tokens drawn, [rows] each: temperature, top_p and min_p float32, top_k int32, seeds
    int64 (see `sampling` and `truncation` for their meaning)."""

    temperature: Tensor
    seeds: Tensor
    top_k: Tensor
    top_p: Tensor
    min_p: Tensor


@dataclass(frozen=True)
class MarkRows:
    """By which key each request's answer is marked. start: [rows] int32, where the answer begins, 0 for one that is not
    marked. keys: [rows, 8] int32."""

    start: Tensor
    keys: Tensor


@dataclass(frozen=True)
class Draws:
    """The same for the sequences of one step, [sequences] each, and int32 the position each drawn token will have.

    marks: [sequences, MARK_WORDS] int32, see `marks`."""

    temperature: Tensor
    seeds: Tensor
    top_k: Tensor
    top_p: Tensor
    min_p: Tensor
    positions: Tensor
    marks: Tensor

    def first(self, sequences: int) -> "Draws":
        """Of the first so many, in the same memory."""
        return Draws(**{name: getattr(self, name)[:sequences] for name in self.__dataclass_fields__})

    @classmethod
    def allocate(cls, sequences: int, device: torch.device) -> "Draws":
        def zeros(dtype: torch.dtype) -> Tensor:
            return torch.zeros(sequences, dtype=dtype, device=device)

        return cls(
            temperature=zeros(torch.float32),
            seeds=zeros(torch.int64),
            top_k=zeros(torch.int32),
            top_p=zeros(torch.float32),
            min_p=zeros(torch.float32),
            positions=zeros(torch.int32),
            marks=torch.zeros(sequences, MARK_WORDS, dtype=torch.int32, device=device),
        )
