# mypy: disable-error-code="no-untyped-def, untyped-decorator"
"""Attention over keys in several parts, by the library's dense kernel, and the sum of two parts.

Softmax over all keys is the mean of the parts' results, weighted by the parts' sums of exponentials (Rabe and Staats
2021; FlashAttention-2, Dao 2023), whose logarithms the dense kernel returns.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from backend.kernels.attention.online_softmax import LOG2E
from backend.kernels.launching.chaining import after_predecessors, chained
from backend.kernels.launching.launch import require

BLOCK_ROWS = 16


@triton.jit(do_not_specialize=["rows"])
def _join_parts(
    a_ptr, a_sum_ptr, b_ptr, b_sum_ptr, out_ptr, rows, a_row_stride, a_head_stride, b_row_stride, b_head_stride,
    out_row_stride, out_head_stride, a_sum_stride, b_sum_stride,
    HEAD_DIM: tl.constexpr, D: tl.constexpr, BLOCK_M: tl.constexpr, LOG2E: tl.constexpr, CHAINED: tl.constexpr,
):  # fmt: skip
    after_predecessors(CHAINED)
    head = tl.program_id(1)
    row = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    owned = row < rows
    dim = tl.arange(0, D)
    inside = owned[:, None] & (dim < HEAD_DIM)[None, :]
    far = row.to(tl.int64)[:, None]
    a_sum = tl.load(a_sum_ptr + head * a_sum_stride + row, owned, 0.0)
    b_sum = tl.load(b_sum_ptr + head * b_sum_stride + row, owned, 0.0)
    top = tl.maximum(a_sum, b_sum)
    a_part = tl.exp2((a_sum - top) * LOG2E)
    b_part = tl.exp2((b_sum - top) * LOG2E)
    total = a_part + b_part
    a = tl.load(a_ptr + far * a_row_stride + head * a_head_stride + dim[None, :], inside, 0.0).to(tl.float32)
    b = tl.load(b_ptr + far * b_row_stride + head * b_head_stride + dim[None, :], inside, 0.0).to(tl.float32)
    mixed = a * (a_part / total)[:, None] + b * (b_part / total)[:, None]
    tl.store(out_ptr + far * out_row_stride + head * out_head_stride + dim[None, :], mixed, inside)
    tl.store(a_sum_ptr + head * a_sum_stride + row, top + tl.log2(total) / LOG2E, owned)


def dense_attention(q: Tensor, k: Tensor, v: Tensor, *, scale: float, causal: bool) -> tuple[Tensor, Tensor]:
    """Attention by the library (cuDNN).

    Args:
        q: [1, heads, rows, head_dim], float16 or bfloat16, of any strides as long as the last dimension is contiguous.
        k, v: [1, kv_heads, keys, head_dim], likewise.
        scale: factor of the scores.
        causal: whether row i attends to keys up to i only; otherwise to all.
    Returns:
        [1, heads, rows, head_dim] in q's dtype, laid out as q; float32 [heads, rows], the natural logarithm of each
        row's sum of exponentials.
    """
    found = torch.ops.aten._scaled_dot_product_cudnn_attention(q, k, v, None, True, 0.0, causal, scale=scale)
    return found[0], found[1].reshape(q.shape[1], q.shape[2])


def join_parts(first: Tensor, first_sum: Tensor, second: Tensor, second_sum: Tensor, out: Tensor) -> None:
    """Join what two parts of the keys give, in `out`, which may be `first` itself.

    Args:
        first, second: [rows, heads, head_dim], the last dimension contiguous.
        first_sum, second_sum: float32 [heads, rows or more], the last dimension contiguous: the natural logarithm of
            each part's sum of exponentials. `first_sum` receives that of both.
        out: [rows, heads, head_dim], the last dimension contiguous; receives the result.
    Raises:
        KernelArgumentError: shapes or dtypes do not fit.
    """
    require_parts(first, first_sum, second, second_sum, out)
    rows, heads, dim = first.shape
    if rows:
        _join_parts[(triton.cdiv(rows, BLOCK_ROWS), heads)](
            first, first_sum, second, second_sum, out, rows, *first.stride()[:2], *second.stride()[:2],
            *out.stride()[:2], first_sum.stride(0), second_sum.stride(0), HEAD_DIM=dim, D=triton.next_power_of_2(dim),
            BLOCK_M=BLOCK_ROWS, LOG2E=LOG2E, num_warps=4, **chained(),
        )  # fmt: skip


def require_parts(first: Tensor, first_sum: Tensor, second: Tensor, second_sum: Tensor, out: Tensor) -> None:
    """Raise KernelArgumentError unless the arguments of `join_parts` fit one another."""
    require(first.dim() == 3 and first.shape == second.shape == out.shape, "the parts and the result differ in shape")
    require(all(x.stride(2) == 1 for x in (first, second, out)), "the values of a head are not contiguous")
    for sums in (first_sum, second_sum):
        require(sums.dtype == torch.float32, f"sums of exponentials are {sums.dtype}, float32 is needed")
        require(
            sums.dim() == 2 and sums.shape[0] == first.shape[1] and sums.shape[1] >= first.shape[0],
            f"sums of exponentials are {list(sums.shape)}, [{first.shape[1]}, {first.shape[0]}] are needed",
        )
        require(sums.stride(1) == 1, "the sums of a head are not contiguous")
