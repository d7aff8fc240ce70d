# mypy: disable-error-code="no-untyped-def, untyped-decorator"
"""How each row of a step's logits is drawn, gathered on the device from what its request asked for."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from backend.kernels.launching.chaining import after_predecessors, chained
from backend.kernels.launching.launch import require
from backend.kernels.sampling.row_state import Draws, SamplingRows

BLOCK = 128


@triton.jit(do_not_specialize=["sequences"])
def _gather(
    row_ptr, known_ptr, temperature_ptr, seed_ptr, top_k_ptr, top_p_ptr, min_p_ptr,
    out_temperature_ptr, out_seed_ptr, out_top_k_ptr, out_top_p_ptr, out_min_p_ptr, out_position_ptr,
    sequences, BLOCK: tl.constexpr, CHAINED: tl.constexpr,
):  # fmt: skip
    after_predecessors(CHAINED)
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = i < sequences
    row = tl.load(row_ptr + i, inside, -1).to(tl.int64)
    real = row >= 0
    tl.store(out_temperature_ptr + i, tl.load(temperature_ptr + row, real, 0.0), inside)
    tl.store(out_seed_ptr + i, tl.load(seed_ptr + row, real, 0), inside)
    tl.store(out_top_k_ptr + i, tl.load(top_k_ptr + row, real, 0), inside)
    tl.store(out_top_p_ptr + i, tl.load(top_p_ptr + row, real, 1.0), inside)
    tl.store(out_min_p_ptr + i, tl.load(min_p_ptr + row, real, 0.0), inside)
    tl.store(out_position_ptr + i, tl.load(known_ptr + row, real, 0), inside)


def gather_draws(rows: Tensor, known: Tensor, wanted: SamplingRows, draws: Draws) -> None:
    """Fill ``draws`` for a step. A padding row is greedy and not truncated, which costs nothing.

    Args:
        rows: [sequences] int32, each sequence's row; -1 for padding.
        known: [table rows] int32, tokens of each request: the position of the one to be drawn.
        wanted: by row. draws: written, [sequences].
    Raises:
        KernelArgumentError: shapes that do not fit.
    """
    sequences = len(rows)
    require(rows.dtype == torch.int32 and known.dtype == torch.int32, "rows and known are int32")
    require(draws.positions.shape == (sequences,), f"draws are for {len(draws.positions)} sequences, not {sequences}")
    if sequences:
        _gather[(triton.cdiv(sequences, BLOCK),)](
            rows, known, wanted.temperature, wanted.seeds, wanted.top_k, wanted.top_p, wanted.min_p,
            draws.temperature, draws.seeds, draws.top_k, draws.top_p, draws.min_p, draws.positions,
            sequences, BLOCK=BLOCK, **chained(),
        )  # fmt: skip
