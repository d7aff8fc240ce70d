# mypy: disable-error-code="no-untyped-def, untyped-decorator"
"""What a step feeds the model, made on the GPU from state that stays there.

Each running request owns a fixed row of `row_state.RowState`. A step names its rows and how many tokens each runs; one
kernel derives token ids, positions, cache slots, lengths and block tables, another takes the sampled tokens back into
the rows. So step N+1 can be launched before step N's tokens reach the CPU, and a captured graph needs no host writes
(the design of vLLM's model runner v2).
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from backend.kernels.launching.chaining import after_predecessors, chained
from backend.kernels.launching.launch import require
from backend.kernels.sampling.row_state import RowState, StepInputs

BLOCK = 256


@triton.jit(do_not_specialize=["sequences", "batch_tokens"])
def _prepare(
    row_ptr, query_start_ptr, tokens_ptr, computed_ptr, table_ptr,
    token_id_ptr, position_ptr, slot_ptr, seq_len_ptr, out_table_ptr, last_ptr,
    sequences, batch_tokens, max_len, max_blocks, out_max_blocks, block_size, BLOCK: tl.constexpr,
    CHAINED: tl.constexpr,
):  # fmt: skip
    after_predecessors(CHAINED)
    sequence = tl.program_id(0).to(tl.int64)
    lane = tl.arange(0, BLOCK)
    start = tl.load(query_start_ptr + sequence)
    if sequence == sequences:  # one program past the last sequence clears the padding tokens
        for first in range(start, batch_tokens, BLOCK):
            at = first + lane
            tl.store(token_id_ptr + at, 0, at < batch_tokens)
            tl.store(position_ptr + at, 0, at < batch_tokens)
            tl.store(slot_ptr + at, -1, at < batch_tokens)
    else:
        queries = tl.load(query_start_ptr + sequence + 1) - start
        row = tl.load(row_ptr + sequence).to(tl.int64)
        computed = tl.load(computed_ptr + row, row >= 0, 0)
        length = tl.where(row >= 0, computed + queries, 0)
        tl.store(seq_len_ptr + sequence, length)
        tl.store(last_ptr + sequence, tl.maximum(start + queries - 1, 0).to(tl.int64))
        for first in range(0, queries, BLOCK):
            i = first + lane
            mine = i < queries
            real = mine & (row >= 0)
            position = tl.where(row >= 0, computed + i, 0)
            block = tl.load(table_ptr + row * max_blocks + position // block_size, real, 0).to(tl.int64)
            slot = block * block_size + position % block_size
            tl.store(token_id_ptr + start + i, tl.load(tokens_ptr + row * max_len + position, real, 0), mine)
            tl.store(position_ptr + start + i, position, mine)
            tl.store(slot_ptr + start + i, tl.where(row >= 0, slot, -1), mine)
        blocks = tl.cdiv(length, block_size)
        for first in range(0, blocks, BLOCK):
            i = first + lane
            block = tl.load(table_ptr + row * max_blocks + i, i < blocks, 0)
            tl.store(out_table_ptr + sequence * out_max_blocks + i, block, i < blocks)


@triton.jit(do_not_specialize=["sequences"])
def _commit(
    row_ptr,
    query_start_ptr,
    sampled_ptr,
    tokens_ptr,
    known_ptr,
    computed_ptr,
    sequences,
    max_len,
    BLOCK: tl.constexpr,
    CHAINED: tl.constexpr,
):
    after_predecessors(CHAINED)
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    row = tl.load(row_ptr + i, i < sequences, -1).to(tl.int64)
    real = row >= 0
    queries = tl.load(query_start_ptr + i + 1, real, 0) - tl.load(query_start_ptr + i, real, 0)
    known = tl.load(known_ptr + row, real, 0)
    computed = tl.load(computed_ptr + row, real, 0) + queries
    grows = (
        real & (queries > 0) & (computed == known) & (known < max_len)
    )  # else a chunk of a prompt: nothing was sampled
    token = tl.maximum(tl.load(sampled_ptr + i, grows, 0), 0).to(tl.int32)
    tl.store(tokens_ptr + row * max_len + known, token, grows)
    tl.store(known_ptr + row, known + 1, grows)
    tl.store(computed_ptr + row, computed, real)


def prepare_step(rows: Tensor, query_start: Tensor, state: RowState, block_size: int, inputs: StepInputs) -> None:
    """Fill ``inputs`` for a step: sequence s runs ``query_start[s + 1] - query_start[s]`` tokens of its row, those from
    ``state.computed`` on.

    Args:
        rows: [sequences] int32, each request's row; -1 for padding. A row appears once.
        query_start: [sequences + 1] int32, ascending from 0; tokens of ``inputs`` past its last entry are padding.
        state: read only.
        block_size: tokens of a cache block.
        inputs: written; as many sequences as ``rows``, any number of tokens ≥ query_start[-1].
    Raises:
        KernelArgumentError: shapes that do not fit.
    """
    sequences = len(rows)
    _check_rows(rows, query_start)
    require(inputs.seq_lens.shape == (sequences,), f"inputs are for {len(inputs.seq_lens)} sequences, not {sequences}")
    _prepare[(sequences + 1,)](
        rows, query_start, state.tokens, state.computed, state.block_tables,
        inputs.token_ids, inputs.positions, inputs.slots, inputs.seq_lens, inputs.block_tables, inputs.last,
        sequences, len(inputs.token_ids), state.tokens.shape[1], state.block_tables.shape[1],
        inputs.block_tables.shape[1], block_size, BLOCK=BLOCK, num_warps=4, **chained(),
    )  # fmt: skip


def commit_step(rows: Tensor, query_start: Tensor, sampled: Tensor, state: RowState) -> None:
    """Advance the rows of a step, and append the sampled token of each that has run all its known tokens.

    rows, query_start: as in `prepare_step`. sampled: [sequences] int64; -1, which says that nothing
    could be drawn, goes in as token 0. state: written. A full row does not grow.
    """
    _check_rows(rows, query_start)
    require(sampled.shape == rows.shape, "one sampled token a sequence")
    if len(rows):
        _commit[(triton.cdiv(len(rows), 128),)](
            rows, query_start, sampled, state.tokens, state.known, state.computed, len(rows), state.tokens.shape[1],
            BLOCK=128, **chained(),
        )  # fmt: skip


def _check_rows(rows: Tensor, query_start: Tensor) -> None:
    require(rows.dtype == torch.int32 and query_start.dtype == torch.int32, "rows and query_start are int32")
    require(query_start.shape == (len(rows) + 1,), "query_start has one entry more than there are rows")
