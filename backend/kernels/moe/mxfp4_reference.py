"""What products by experts in MXFP4 are (OCP Microscaling Formats 1.0, 5.1), in torch: the twin of `mxfp4`.

Two neighbouring columns are a byte, the first in its lower half, each as e2m1; a byte of e8m0 scales 32 columns by
2 ** (byte - 127). As gpt-oss is released.
"""

import torch
from torch import Tensor

from backend.kernels.launching.launch import require
from backend.kernels.moe.reference import Blocks

GROUP = 32
VALUES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)  # of e2m1; the highest of four bits is the sign


def dense(packed: Tensor, scales: Tensor) -> Tensor:
    """float32 [..., width] of bytes [..., width / 2] and scales [..., width / 32]."""
    values = torch.tensor([*VALUES, *(-value for value in VALUES)], device=packed.device)
    numbers = torch.stack((packed & 0xF, packed >> 4), -1).flatten(-2)
    factors = torch.exp2(scales.float() - 127).repeat_interleave(GROUP, -1)
    return values[numbers.int()] * factors


def grouped_mxfp4(x: Tensor, packed: Tensor, scales: Tensor, blocks: Blocks, *, pairs: int, per_token: int) -> Tensor:
    """See `mxfp4.grouped_mxfp4`."""
    outputs, _ = require_packed(x, packed, scales, pairs, per_token)
    y = x.new_zeros(pairs, outputs, dtype=torch.float32)
    for number, expert in enumerate(blocks.experts.tolist()):
        own = blocks.slots[number * blocks.size : (number + 1) * blocks.size]
        own = own[own >= 0].long()
        if expert >= 0 and len(own):
            weight = dense(packed[expert], scales[expert]).to(x.dtype).float()
            y[own] = x[own // per_token].float() @ weight.t()
    return y


def require_packed(x: Tensor, packed: Tensor, scales: Tensor, pairs: int, per_token: int) -> tuple[int, int]:
    """(outputs, width). Raises KernelArgumentError for what does not fit."""
    fits = x.dim() == 2 and packed.dim() == 3 and scales.dim() == 3 and x.is_contiguous()
    require(fits and packed.is_contiguous() and scales.is_contiguous(), "x, bytes and scales must be contiguous")
    experts, outputs, half = packed.shape
    width = 2 * half
    require(packed.dtype == scales.dtype == torch.uint8, f"bytes, not {packed.dtype} and {scales.dtype}")
    require(x.shape[1] == width and width % GROUP == 0, f"x is {x.shape[1]} wide, the weights {width}")
    require(scales.shape == (experts, outputs, width // GROUP), f"scales {list(scales.shape)} for {list(packed.shape)}")
    require(per_token > 0 and len(x) * per_token == pairs, f"{len(x)} rows of {per_token} pairs are not {pairs}")
    return outputs, width
