"""FP8 times FP8 on the tensor cores, through torch's libraries: x and a weight, one float32 scale a row of each.

The library has two forms. With scales by row it applies them itself; without, it is faster where outputs are few (an
H100, 128 rows of 14336 into 4096: 25 µs against 36), and whoever reads the result next multiplies. The unscaled product
is kept in bfloat16, whose range it cannot leave.
"""

import torch
from torch import Tensor


def fp8_linear(x: Tensor, x_scale: Tensor, weight: Tensor, weight_scale: Tensor) -> Tensor:
    """``(x * x_scale) @ (weight * weight_scale)ᵀ`` in bfloat16.

    Args:
        x: [tokens, in] float8_e4m3fn, contiguous; x_scale: [tokens, 1] float32. in and out are multiples of 16.
        weight: [out, in] float8_e4m3fn, contiguous; weight_scale: [out, 1] float32.
    """
    return torch._scaled_mm(
        x, weight.t(), scale_a=x_scale, scale_b=weight_scale.t(), out_dtype=torch.bfloat16, use_fast_accum=True
    )


def fp8_product(x: Tensor, weight: Tensor, one: Tensor) -> Tensor:
    """``x @ weightᵀ`` in bfloat16, yet to be multiplied by the scales of both. one: 1.0 in float32, on the device."""
    return torch._scaled_mm(x, weight.t(), scale_a=one, scale_b=one, out_dtype=torch.bfloat16, use_fast_accum=True)
