"""INT8 as the kernels take it, and the torch twins of `int8`.

int8 [rows, width] and float32 [rows, 1], a scale a row, of activations and weights alike; value = number * scale.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from backend.kernels.launching.launch import require, require_rows

LARGEST = 127.0
MULTIPLE = 32  # of widths: what a tensor core multiplies at once


def quantize_int8(x: Tensor) -> tuple[Tensor, Tensor]:
    values = x.float()
    scale = (values.abs().amax(-1, keepdim=True) / LARGEST).clamp_min(1e-12)
    return (values / scale).round().clamp(-LARGEST, LARGEST).to(torch.int8), scale


def int8_linear(
    x: Tensor,
    x_scale: Tensor,
    weight: Tensor,
    weight_scale: Tensor,
    bias: Tensor | None = None,
    *,
    gated: bool = False,
) -> Tensor:
    require_int8(x, x_scale, weight, weight_scale, bias, gated=gated)
    y = _product(x, x_scale, weight, weight_scale)
    if bias is not None:
        y = y + bias.float()
    if gated:
        gate, up = y.chunk(2, -1)
        y = F.silu(gate) * up
    return y.bfloat16()


def int8_parts(x: Tensor, x_scale: Tensor, weight: Tensor, weight_scale: Tensor) -> Tensor:
    require_int8(x, x_scale, weight, weight_scale)
    return _product(x, x_scale, weight, weight_scale)[None]


def _product(x: Tensor, x_scale: Tensor, weight: Tensor, weight_scale: Tensor) -> Tensor:
    """Sums are exact in float64."""
    return (x.double() @ weight.double().t()).float() * (x_scale * weight_scale.t())


def require_int8(
    x: Tensor,
    x_scale: Tensor,
    weight: Tensor,
    weight_scale: Tensor,
    bias: Tensor | None = None,
    *,
    gated: bool = False,
) -> tuple[int, int, int]:
    """(rows, width, outputs). Raises KernelArgumentError for shapes or dtypes that do not fit."""
    rows, width = require_rows("x", x)
    weight_rows, columns = require_rows("weight", weight)
    require(x.dtype == torch.int8 and weight.dtype == torch.int8, f"x is {x.dtype} and the weight {weight.dtype}")
    require(width == columns and width % MULTIPLE == 0 and width > 0, f"x is {width} wide, the weight {columns}")
    for name, scale, count in (("x_scale", x_scale, rows), ("weight_scale", weight_scale, weight_rows)):
        fits = scale.shape == (count, 1) and scale.is_contiguous() and scale.dtype == torch.float32
        require(fits, f"{name} must be contiguous float32 [{count}, 1], got {scale.dtype} {list(scale.shape)}")
    require(not (gated and bias is not None), "a gated product has no bias")
    require(not gated or weight_rows % 2 == 0, f"a gated weight has as many rows of up as of gate, not {weight_rows}")
    outputs = weight_rows // 2 if gated else weight_rows
    require(bias is None or bias.shape == (outputs,), f"bias must be [{outputs}]")
    return rows, width, outputs
