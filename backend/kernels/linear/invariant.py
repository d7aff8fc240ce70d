# mypy: disable-error-code="no-untyped-def, untyped-decorator"
"""Batch-invariant x @ weightᵀ: a row does not depend on the other rows.

A library picks its algorithm, and with it the order of sums, by the number of rows; then a sequence's tokens depend on
what runs beside it (He 2025, "Defeating nondeterminism in LLM inference"). Here tiles are the same for any number of
rows and the sum over the inner dimension is never split: a row's bits depend on that row and the weight alone.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from backend.kernels.launching.launch import require, require_rows

BLOCK_M, BLOCK_N, BLOCK_K = 64, 32, 128


@triton.jit(do_not_specialize=["rows"])
def _linear(
    x_ptr, weight_ptr, bias_ptr, out_ptr, rows, outputs, width, stride,
    BIAS: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(1).to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)
    column = tl.program_id(0).to(tl.int64) * BLOCK_N + tl.arange(0, BLOCK_N)
    inner = tl.arange(0, BLOCK_K)
    part = tl.program_id(2).to(tl.int64)  # of the columns, `width` each, of rows that are `stride` apart
    x_ptr += part * width
    weight_ptr += part * width
    out_ptr += part * rows * outputs
    total = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for start in range(0, width, BLOCK_K):
        k = start + inner
        x = tl.load(x_ptr + row[:, None] * stride + k[None, :], (row < rows)[:, None] & (k < width)[None, :], 0.0)
        weight = tl.load(
            weight_ptr + column[None, :] * stride + k[:, None], (column < outputs)[None, :] & (k < width)[:, None], 0.0
        )
        total = tl.dot(x, weight, total, input_precision="ieee")
    if BIAS:
        total += tl.load(bias_ptr + column, column < outputs, 0.0).to(tl.float32)[None, :]
    inside = (row < rows)[:, None] & (column < outputs)[None, :]
    tl.store(out_ptr + row[:, None] * outputs + column[None, :], total, inside)


def invariant_linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """``x @ weightᵀ + bias``, each row the same bits among any others.

    Args:
        x: [rows, in], contiguous, float16/bfloat16/float32. weight: [out, in], contiguous; bias: [out]; of x's dtype.
    Returns:
        [rows, out] in x's dtype; summed in float32.
    Raises:
        KernelArgumentError: shapes that do not fit.
    """
    require(bias is None or bias.shape == (len(weight),), f"bias must be [{len(weight)}]")
    out = x.new_empty(1, len(x), len(weight))
    _launch(x, weight, bias, out)
    return out[0]


def invariant_parts(x: Tensor, weight: Tensor, parts: int) -> Tensor:
    """``x @ weightᵀ`` as the products of equally many columns each, whose sum it is: a part's bits depend on its
    columns alone, not on how many parts there are.

    Args:
        x, weight: as `invariant_linear` takes them. parts: that divide their width.
    Returns:
        [parts, rows, out], float32.
    Raises:
        KernelArgumentError: shapes that do not fit.
    """
    require(parts > 0 and x.shape[-1] % parts == 0, f"{x.shape[-1]} columns do not divide into {parts} parts")
    out = x.new_empty(parts, len(x), len(weight), dtype=torch.float32)
    _launch(x, weight, None, out)
    return out


def _launch(x: Tensor, weight: Tensor, bias: Tensor | None, out: Tensor) -> None:
    """out: [parts, rows, outputs]."""
    rows, stride = require_rows("x", x)
    outputs, inner = require_rows("weight", weight)
    require(inner == stride, f"the weight takes {inner} inputs, x has {stride}")
    if not rows:
        return
    wide = x.element_size() == 4  # float32 has no tensor cores to feed, and would spill its registers
    _linear[(triton.cdiv(outputs, BLOCK_N), triton.cdiv(rows, BLOCK_M), len(out))](
        x, weight, bias, out, rows, outputs, stride // len(out), stride, BIAS=bias is not None, BLOCK_M=BLOCK_M,
        BLOCK_N=BLOCK_N, BLOCK_K=32 if wide else BLOCK_K, num_warps=4, num_stages=2 if wide else 4,
    )  # fmt: skip
