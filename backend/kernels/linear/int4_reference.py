"""Weights of four bits as the kernels take them, and the torch twins of `int4`.

Layout of a weight [outputs, width] with groups of 128 columns, width a multiple of 128:

- words: int32 [outputs, width / 8]. The sixteen words of a group hold its columns in pairs: word i has column
  ``32 * j + 2 * i`` in bits 4 j to 4 j + 3, and the next column sixteen bits further up, for j from 0 to 3. So one
  shift and one mask bring two neighbours into the two halves of a word, where tensor cores expect them.
- groups: int32 [width / 128, outputs]. The scale's float16 bits in the low half, the zero (0 to 16) in the high half.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from backend.kernels.launching.launch import require

GROUP = 128
MOST_ROWS = 256  # beyond, `int4_dense` and the library
PLACES = 8  # numbers in a word


def pack(numbers: Tensor, scales: Tensor, zeros: Tensor) -> tuple[Tensor, Tensor]:
    """(words, groups).

    Args:
        numbers: [outputs, width], any integer dtype, 0 to 15.
        scales: [outputs, width / 128] float16. zeros: the same shape, any integer dtype, 0 to 16.
    """
    outputs, width = numbers.shape
    columns = numbers.view(outputs, width // GROUP, 4, 16, 2).to(torch.int32)  # group, j, i, half
    words = torch.zeros(outputs, width // GROUP, 16, dtype=torch.int32, device=numbers.device)
    for j in range(4):
        for half in range(2):
            words |= columns[:, :, j, :, half] << (4 * j + 16 * half)
    bits = scales.to(torch.float16).contiguous().view(torch.int16).to(torch.int32) & 0xFFFF
    groups = bits | (zeros.to(torch.int32) << 16)
    return words.view(outputs, width // PLACES), groups.t().contiguous()


def int4_dense(words: Tensor, groups: Tensor, dtype: torch.dtype) -> Tensor:
    outputs, chunks = groups.shape[1], len(groups)
    grouped = words.view(outputs, chunks, 16)
    numbers = torch.empty(outputs, chunks, 4, 16, 2, dtype=torch.int32, device=words.device)
    for j in range(4):
        for half in range(2):
            numbers[:, :, j, :, half] = (grouped >> (4 * j + 16 * half)) & 0xF
    columns = groups.t()
    scale = (columns & 0xFFFF).to(torch.int16).view(torch.float16).float()
    centred = numbers.view(outputs, chunks, GROUP) - (columns >> 16)[:, :, None]
    return (centred.float() * scale[:, :, None]).view(outputs, chunks * GROUP).to(dtype)


def int4_linear(x: Tensor, words: Tensor, groups: Tensor, *, bias: Tensor | None = None, gated: bool = False) -> Tensor:
    return _product(x.float(), words, groups, bias, gated).to(x.dtype)


def int4_parts(x: Tensor, words: Tensor, groups: Tensor) -> Tensor:
    return _product(x.float(), words, groups, None, False)[None]


def _product(x: Tensor, words: Tensor, groups: Tensor, bias: Tensor | None, gated: bool) -> Tensor:
    y = F.linear(x, int4_dense(words, groups, torch.float32), None if bias is None else bias.float())
    if not gated:
        return y
    gate, up = y.chunk(2, -1)
    return F.silu(gate) * up


def require_packed(
    x: Tensor, words: Tensor, groups: Tensor, *, gated: bool = False, bias: Tensor | None = None
) -> tuple[int, int, int]:
    """(rows, width, outputs). Raises KernelArgumentError for shapes or dtypes that do not fit."""
    require(x.dim() == 2 and x.is_contiguous(), f"x must be a contiguous matrix, got shape {tuple(x.shape)}")
    require(x.dtype in (torch.float16, torch.bfloat16), f"x is {x.dtype}; int4 weights go with float16 and bfloat16")
    rows, width = x.shape
    require(width % GROUP == 0 and width > 0, f"a width of {width} is no multiple of {GROUP}")
    for name, part in (("words", words), ("groups", groups)):
        require(part.dim() == 2 and part.is_contiguous() and part.dtype == torch.int32, f"{name} are contiguous int32")
    weight_rows = len(words)
    require(words.shape[1] == width // PLACES, f"x is {width} wide, the weight {words.shape[1] * PLACES}")
    require(groups.shape == (width // GROUP, weight_rows), f"groups must be [{width // GROUP}, {weight_rows}]")
    require(not (gated and bias is not None), "a gated product has no bias")
    require(not gated or weight_rows % 2 == 0, f"a gated weight has as many rows of up as of gate, not {weight_rows}")
    return rows, width, weight_rows // 2 if gated else weight_rows
