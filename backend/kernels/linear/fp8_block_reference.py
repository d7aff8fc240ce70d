"""FP8 in blocks, as the kernels take it, and the torch twins of `fp8_block`.

- Activations: float8_e4m3fn [rows, width] and float32 [width / 128, rows], a scale for each row and group of 128
  columns, with those of a group beside each other.
- A weight: float8_e4m3fn [outputs, width] and float32 [outputs / span, width / 128], a scale for each `span` outputs,
  at most 128, and group of columns; the last one may stand for fewer outputs.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from backend.kernels.launching.launch import FP8, FP8_MAX, require, require_rows

GROUP = 128
Groups = tuple[Tensor, Tensor]


def quantize_groups(x: Tensor) -> Groups:
    groups = require_rows("x", x)[1] // GROUP
    values = x.float().view(len(x), groups, GROUP)
    scale = (values.abs().amax(-1) / FP8_MAX).clamp_min(1e-12)
    quantised = (values / scale[:, :, None]).clamp(-FP8_MAX, FP8_MAX).to(FP8)
    return quantised.view(x.shape), scale.t().contiguous()


def rms_norm_groups(x: Tensor, weight: Tensor, eps: float) -> Groups:
    return quantize_groups(_normalised(x.float(), weight, eps))


def add_rms_norm_groups(
    x: Tensor, residual: Tensor, weight: Tensor, eps: float, *, scales: Groups | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    total = x.sum(0) if x.dim() == 3 else x.float()
    if scales is not None:
        total = total * (scales[0] * scales[1].t())
    total = total + residual.float()
    return *quantize_groups(_normalised(total, weight, eps)), total.to(residual.dtype)


def _normalised(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * weight.float()


def silu_mul_groups(gate_up: Tensor) -> Groups:
    gate, up = gate_up.float().chunk(2, -1)
    return quantize_groups(F.silu(gate) * up)


def fp8_block_linear(
    x: Tensor,
    x_scale: Tensor,
    weight: Tensor,
    weight_scale: Tensor,
    span: int,
    bias: Tensor | None = None,
    *,
    gated: bool = False,
    batch_invariant: bool = False,
) -> Tensor:
    require_blocks(x, x_scale, weight, weight_scale, span, bias, gated=gated)
    y = _product(x, x_scale, weight, weight_scale, span)
    if bias is not None:
        y = y + bias.float()
    if gated:
        gate, up = y.chunk(2, -1)
        y = F.silu(gate) * up
    return y.bfloat16()


def fp8_block_parts(x: Tensor, x_scale: Tensor, weight: Tensor, weight_scale: Tensor, span: int) -> Tensor:
    require_blocks(x, x_scale, weight, weight_scale, span)
    return _product(x, x_scale, weight, weight_scale, span)[None]


def fp8_block_dense(weight: Tensor, weight_scale: Tensor, span: int) -> Tensor:
    """float32 [outputs, width], exact."""
    by_output = weight_scale.repeat_interleave(span, 0)[: len(weight)]
    return weight.float() * by_output.repeat_interleave(GROUP, 1)


def _product(x: Tensor, x_scale: Tensor, weight: Tensor, weight_scale: Tensor, span: int) -> Tensor:
    values = x.float() * x_scale.t().repeat_interleave(GROUP, 1)
    return F.linear(values, fp8_block_dense(weight, weight_scale, span))


def require_blocks(
    x: Tensor,
    x_scale: Tensor,
    weight: Tensor,
    weight_scale: Tensor,
    span: int,
    bias: Tensor | None = None,
    *,
    gated: bool = False,
) -> tuple[int, int, int]:
    """(rows, groups, outputs). Raises KernelArgumentError for shapes or dtypes that do not fit."""
    rows, width = require_rows("x", x)
    weight_rows, columns = require_rows("weight", weight)
    require(x.dtype == FP8 and weight.dtype == FP8, f"x is {x.dtype} and the weight {weight.dtype}; both are {FP8}")
    require(width == columns and width % GROUP == 0 and width > 0, f"x is {width} wide, the weight {columns}")
    require(1 <= span <= GROUP and GROUP % span == 0, f"a scale for {span} outputs; it stands for a divisor of {GROUP}")
    for name, scale, shape in (
        ("x_scale", x_scale, (width // GROUP, rows)),
        ("weight_scale", weight_scale, (-(-weight_rows // span), width // GROUP)),
    ):
        fits = scale.shape == shape and scale.is_contiguous() and scale.dtype == torch.float32
        require(fits, f"{name} must be contiguous float32 {list(shape)}, got {scale.dtype} {list(scale.shape)}")
    require(not (gated and bias is not None), "a gated product has no bias")
    require(not gated or weight_rows % 2 == 0, f"a gated weight has as many rows of up as of gate, not {weight_rows}")
    outputs = weight_rows // 2 if gated else weight_rows
    require(bias is None or bias.shape == (outputs,), f"bias must be [{outputs}]")
    return rows, width // GROUP, outputs
