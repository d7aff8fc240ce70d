# mypy: disable-error-code="no-untyped-def, untyped-decorator"
"""Per-head matrix product between a head's width and the width of the shared latent."""

import triton
import triton.language as tl
from torch import Tensor

from backend.kernels.latent.reference import require_heads
from backend.kernels.launching.chaining import after_predecessors, chained

INVARIANT_ROWS = 64


@triton.jit
def _per_head_linear(
    x_ptr, weight_ptr, out_ptr, tokens, width, outputs, x_token_stride, x_head_stride, w_head_stride, w_width_stride,
    w_output_stride, out_token_stride, out_head_stride,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, CHAINED: tl.constexpr,
):  # fmt: skip
    after_predecessors(CHAINED)
    head = tl.program_id(2).to(tl.int64)
    token = (tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)).to(tl.int64)
    output = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    own, wanted = token < tokens, output < outputs
    x_row = x_ptr + token * x_token_stride + head * x_head_stride
    w_column = weight_ptr + head * w_head_stride + output * w_output_stride
    acc = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for first in tl.range(0, width, BLOCK_K):
        column = first + tl.arange(0, BLOCK_K)
        inside = column < width
        x = tl.load(x_row[:, None] + column[None, :], own[:, None] & inside[None, :], 0.0)
        weight = tl.load(w_column[None, :] + column[:, None] * w_width_stride, inside[:, None] & wanted[None, :], 0.0)
        acc = tl.dot(x, weight, acc, input_precision="ieee")
    at = out_ptr + token[:, None] * out_token_stride + head * out_head_stride + output[None, :]
    tl.store(at, acc, own[:, None] & wanted[None, :])


def per_head_linear(x: Tensor, weight: Tensor, out: Tensor, *, batch_invariant: bool = False) -> Tensor:
    """``out[t, h] = x[t, h] @ weight[h]``, summed in float32.

    Args:
        x: [tokens, heads, width], the last dimension contiguous; float16/bfloat16/float32.
        weight: [heads, width, outputs] of x's dtype, in any layout.
        out: [tokens, heads, outputs] of x's dtype, the last dimension contiguous; written to.
        batch_invariant: use fixed tiles, so that the bits of a row depend on that row only.
    Returns:
        out.
    Raises:
        KernelArgumentError: shapes or dtypes do not fit.
    """
    tokens, heads, width, outputs = require_heads(x, weight, out)
    if tokens == 0:
        return out
    rows = INVARIANT_ROWS if batch_invariant else max(16, min(INVARIANT_ROWS, triton.next_power_of_2(tokens)))
    columns, depth = max(16, min(64, triton.next_power_of_2(outputs))), max(16, min(64, triton.next_power_of_2(width)))
    _per_head_linear[(triton.cdiv(tokens, rows), triton.cdiv(outputs, columns), heads)](
        x, weight, out, tokens, width, outputs, *x.stride()[:2], *weight.stride(), *out.stride()[:2],
        BLOCK_M=rows, BLOCK_N=columns, BLOCK_K=depth, num_warps=4, num_stages=2, **chained(),
    )  # fmt: skip
    return out
