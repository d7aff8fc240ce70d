# mypy: disable-error-code="no-untyped-def, untyped-decorator"
"""RMSNorm (Zhang & Sennrich 2019) with the residual add before it and FP8 quantisation behind it, in one pass.

Each row is read once and written once, whichever of the four forms runs. An FP8 product that was left unscaled, for
the library multiplies faster without scales by row and column, gets them here on its way into the residual; so are the
parts of a product summed whose columns were split.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from backend.kernels.launching.chaining import after_predecessors, chained
from backend.kernels.launching.launch import FP8, FP8_MAX, require, require_rows, require_scales
from backend.kernels.linear.quant import row_scale


@triton.jit
def _rms_norm(
    x_ptr, residual_ptr, weight_ptr, y_ptr, h_ptr, scale_ptr, row_scale_ptr, column_scale_ptr, width, eps,
    PARTS: tl.constexpr, ADD: tl.constexpr, SCALED: tl.constexpr, QUANTISE: tl.constexpr, GROUPED: tl.constexpr,
    FP8_MAX: tl.constexpr, BLOCK: tl.constexpr, CHAINED: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)  # rows * width passes 2**31 at 262k rows of 8192
    col = tl.arange(0, BLOCK)
    inside = col < width
    at = row * width + col
    weight = tl.load(weight_ptr + col, inside, 0.0).to(tl.float32)  # nobody writes weights, nor their scales
    if SCALED:
        by_column = tl.load(column_scale_ptr + col, inside, 0.0)
    after_predecessors(CHAINED)
    h = tl.load(x_ptr + at, inside, 0.0).to(tl.float32)
    for part in tl.static_range(1, PARTS):
        h += tl.load(x_ptr + part * tl.num_programs(0) * width + at, inside, 0.0)
    if SCALED:
        h *= tl.load(row_scale_ptr + row) * by_column
    if ADD:
        h += tl.load(residual_ptr + at, inside, 0.0).to(tl.float32)
        tl.store(h_ptr + at, h, inside)
    y = h * tl.rsqrt(tl.sum(h * h, 0) / width + eps) * weight
    if GROUPED:
        grouped = tl.reshape(y, [BLOCK // 128, 128])
        scale = row_scale(tl.max(tl.abs(grouped), 1), FP8_MAX)
        group = tl.arange(0, BLOCK // 128)
        tl.store(scale_ptr + group * tl.num_programs(0) + row, scale, group * 128 < width)
        y = tl.reshape(tl.clamp(grouped / scale[:, None], -FP8_MAX, FP8_MAX), [BLOCK])
    elif QUANTISE:
        scale = row_scale(tl.max(tl.abs(y), 0), FP8_MAX)
        tl.store(scale_ptr + row, scale)
        y = tl.clamp(y / scale, -FP8_MAX, FP8_MAX)
    tl.store(y_ptr + at, y, inside)


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """``x / rms(x) * weight``, row by row.

    Args:
        x: [tokens, width], contiguous, float16/bfloat16/float32.
        weight: [width].
    Returns:
        [tokens, width] in x's dtype.
    Raises:
        KernelArgumentError: shapes that do not fit.
    """
    y = torch.empty_like(x)
    launch(x, None, weight, eps, y, None, None)
    return y


def add_rms_norm(
    x: Tensor, residual: Tensor, weight: Tensor, eps: float, *, scales: tuple[Tensor, Tensor] | None = None
) -> tuple[Tensor, Tensor]:
    """Normalise ``x + residual``: (normalised, new residual), both [tokens, width] in x's dtype.

    The sum is normalised in float32, before it is rounded into the new residual. x may come in parts, float32 [parts,
    tokens, width], to be summed; results then have the residual's dtype. scales: of x by row and by column, float32
    [tokens, 1] and [width, 1], if x is yet to be multiplied by them.
    """
    y, h = torch.empty_like(residual), torch.empty_like(residual)
    launch(x, residual, weight, eps, y, h, None, scales)
    return y, h


def rms_norm_fp8(x: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """`rms_norm`, quantised: (float8_e4m3fn [tokens, width], scale float32 [tokens, 1]), value = fp8 * scale."""
    y, scale = _quantised_like(x)
    launch(x, None, weight, eps, y, None, scale)
    return y, scale


def add_rms_norm_fp8(
    x: Tensor, residual: Tensor, weight: Tensor, eps: float, *, scales: tuple[Tensor, Tensor] | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """`add_rms_norm`, quantised: (float8_e4m3fn, scale float32 [tokens, 1], new residual in x's dtype)."""
    h = torch.empty_like(residual)
    y, scale = _quantised_like(residual)
    launch(x, residual, weight, eps, y, h, scale, scales)
    return y, scale, h


def _quantised_like(x: Tensor) -> tuple[Tensor, Tensor]:
    scale = torch.empty(x.shape[0], 1, dtype=torch.float32, device=x.device)
    return torch.empty_like(x, dtype=FP8), scale


def launch(
    x: Tensor,
    residual: Tensor | None,
    weight: Tensor,
    eps: float,
    y: Tensor,
    h: Tensor | None,
    scale: Tensor | None,
    scales: tuple[Tensor, Tensor] | None = None,
) -> None:
    """scale: of y if that is FP8, [tokens, 1], or [width / 128, tokens] by groups of 128 columns."""
    parts = len(x) if x.dim() == 3 else 1
    if x.dim() == 3:
        require(x.dtype == torch.float32 and x.is_contiguous() and parts > 0, "parts are contiguous, in float32")
        require(residual is not None, "parts go with a residual")
    tokens, width = require_rows("x", x[0] if x.dim() == 3 else x)
    require(weight.shape == (width,) and weight.is_contiguous(), f"weight must be [{width}], got {tuple(weight.shape)}")
    if residual is not None:
        fits = residual.shape == (tokens, width) and residual.is_contiguous()
        require(fits, "residual must be contiguous, of x's shape")
    by_row, by_column = require_scales(y, scales)
    if tokens == 0:
        return
    grouped = scale is not None and scale.shape != (tokens, 1)  # one group of one row is the same either way
    block = triton.next_power_of_2(width)
    a_warp = 512 if parts == 1 else 128  # columns; parts come of few rows, so that there are few programs to read them
    _rms_norm[(tokens,)](
        x, residual, weight, y, h, scale, by_row, by_column, width, eps,
        PARTS=parts, ADD=residual is not None, SCALED=scales is not None, QUANTISE=scale is not None,
        GROUPED=grouped, FP8_MAX=FP8_MAX, BLOCK=block, num_warps=min(16, max(1, block // a_warp)), **chained(),
    )  # fmt: skip
