"""Products by experts' weights in MXFP4 (OCP Microscaling Formats 1.0, 5.1), in torch: the twin of `mxfp4`.

Layout of the weights of all experts, [experts, outputs, width]. The width is a multiple of 32 and is padded with zeros
to a multiple of 128:

- words: int32 [experts, outputs, width / 8], e2m1 numbers in the layout of `linear.int4_reference`. In a chunk of 128
  columns, word i holds column ``32 * j + 2 * i`` in bits 4 j to 4 j + 3, and the next column sixteen bits higher.
- groups: int32 [experts, width / 128, outputs]. Byte j is the e8m0 scale of the 32 columns from 32 j on; its value is
  2 ** (byte - 127).
"""

import torch
from torch import Tensor

from backend.kernels.launching.launch import require
from backend.kernels.moe.reference import Blocks, clamped_gate

GROUP, CHUNK = 32, 128  # columns per scale, and per word of scales
MOST_SCALE = 192
"""Largest scale byte, 2 ** 65: the kernel adds 62 to the exponents."""
VALUES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)  # e2m1; the highest of the four bits is the sign

Gate = tuple[float, float]
"""(limit at which gate and up are clamped, slope of the gate's sigmoid)."""


def padded(width: int) -> int:
    """Return the padded number of columns of a weight of that width."""
    return -(-width // CHUNK) * CHUNK


def pack(stored: Tensor, scales: Tensor) -> tuple[Tensor, Tensor]:
    """Return (words [outputs, padded / 8], groups [outputs, padded / 128]), both int32, output by output.

    Args:
        stored: uint8 [outputs, width / 2], two neighbouring columns per byte, the first in the lower half.
        scales: uint8 [outputs, width / 32], e8m0.
    """
    outputs, half = stored.shape
    missing = padded(2 * half) - 2 * half
    pairs = torch.nn.functional.pad(stored, (0, missing // 2)).view(outputs, -1, 4, GROUP // 2)
    words = torch.zeros(outputs, pairs.shape[1], GROUP // 2, dtype=torch.int32, device=stored.device)
    groups = torch.zeros(outputs, pairs.shape[1], dtype=torch.int32, device=stored.device)
    by_group = torch.nn.functional.pad(scales, (0, missing // GROUP), value=127).view(outputs, -1, 4)
    for j in range(4):
        pair = pairs[:, :, j].to(torch.int32)
        words |= ((pair & 0xF) << (4 * j)) | ((pair >> 4) << (4 * j + 16))
        groups |= by_group[:, :, j].to(torch.int32) << (8 * j)
    return words.flatten(1), groups


def dense(words: Tensor, groups: Tensor) -> Tensor:
    """Return the weight of an expert, float32 [outputs, padded width].

    words: [outputs, padded / 8]. groups: [padded / 128, outputs].
    """
    values = torch.tensor([*VALUES, *(-value for value in VALUES)], device=words.device)
    chunks = words.view(len(words), -1, GROUP // 2)
    numbers = torch.stack(
        [torch.stack(((chunks >> 4 * j) & 0xF, (chunks >> 4 * j + 16) & 0xF), -1) for j in range(4)], 2
    )
    scales = torch.stack([(groups.t() >> 8 * j) & 0xFF for j in range(4)], -1)
    factors = torch.exp2(scales.float() - 127)[..., None]
    return (values[numbers.flatten(3)] * factors).flatten(1)


def grouped_mxfp4(
    x: Tensor,
    words: Tensor,
    groups: Tensor,
    bias: Tensor,
    blocks: Blocks,
    *,
    per_token: int,
    gate: Gate | None = None,
    factors: Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> Tensor:
    """See `mxfp4.grouped_mxfp4`."""
    pairs, outputs = require_packed(x, words, groups, bias, per_token, gate, factors)
    width, own = x.shape[1], factors is not None
    y = x.new_zeros(pairs, words.shape[1], dtype=torch.float32)
    for number, expert in enumerate(blocks.experts.tolist()):
        slots = blocks.slots[number * blocks.size : (number + 1) * blocks.size]
        slots = slots[slots >= 0].long()
        if expert >= 0 and len(slots):
            weight = dense(words[expert], groups[expert])[:, :width].to(x.dtype).float()
            rows = x[slots if own else slots // per_token].float()
            y[slots] = rows @ weight.t() + bias[expert].float()
    if gate is not None:
        y = clamped_gate(y, *gate)
    if factors is not None:
        y = (y * factors.view(-1, 1)).view(-1, per_token, outputs).transpose(0, 1).contiguous()
    return y.to(out_dtype or x.dtype)


def require_packed(
    x: Tensor, words: Tensor, groups: Tensor, bias: Tensor, per_token: int, gate: Gate | None, factors: Tensor | None
) -> tuple[int, int]:
    """Return (pairs, outputs). Raises KernelArgumentError for shapes or dtypes that do not fit."""
    fits = x.dim() == 2 and words.dim() == 3 and groups.dim() == 3 and x.is_contiguous()
    require(fits and words.is_contiguous() and groups.is_contiguous(), "x, words and groups must be contiguous")
    require(words.dtype == groups.dtype == torch.int32, f"int32, not {words.dtype} and {groups.dtype}")
    experts, rows, laid_out = words.shape
    width = x.shape[1]
    require(width % GROUP == 0 and padded(width) == laid_out * 8, f"x is {width} wide, the weights {laid_out * 8}")
    wanted = (experts, padded(width) // CHUNK, rows)
    require(groups.shape == wanted, f"groups {list(groups.shape)} for words {list(words.shape)}")
    require(bias.shape == (experts, rows) and bias.is_contiguous(), f"a bias is [{experts}, {rows}]")
    require(per_token > 0, f"{per_token} experts of a token")
    require(gate is None or factors is None, "what is gated has no factors")
    require(gate is None or rows % 2 == 0, f"gate and up by turns are not {rows} rows")
    if factors is None:
        return len(x) * per_token, rows if gate is None else rows // 2
    fits = factors.shape == (len(x) // per_token, per_token) and factors.dtype == torch.float32
    require(
        fits and factors.is_contiguous() and factors.numel() == len(x), "factors are float32, one for each row of x"
    )
    return len(x), rows
