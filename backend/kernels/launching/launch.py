"""What every launcher needs: argument checks that name the offender, and the size of the card.

Triton compiles a kernel again for an integer that is 1 and for one that is a multiple of 16. Kernels exempt the sizes
that change from step to step (``do_not_specialize``), so that no request waits for a compiler.
"""

from functools import cache

import torch
from torch import Tensor

FP8 = torch.float8_e4m3fn
FP8_MAX = 448.0  # largest finite e4m3fn value (Micikevicius et al. 2022)
HOPPER_MULTIPROCESSORS = 132  # also assumed where there is no card: interpreter, cross-compilation


class KernelArgumentError(ValueError):
    """Arguments that a kernel would misread: wrong shape, stride, dtype or range."""


def require(condition: bool, problem: str) -> None:
    if not condition:
        raise KernelArgumentError(problem)


def require_rows(name: str, x: Tensor) -> tuple[int, int]:
    """Shape of a contiguous matrix. Raises KernelArgumentError if it is anything else."""
    require(x.dim() == 2 and x.is_contiguous(), f"{name} must be a contiguous matrix, got shape {tuple(x.shape)}")
    return x.shape[0], x.shape[1]


def require_scales(x: Tensor, scales: tuple[Tensor, Tensor] | None) -> tuple[Tensor, Tensor] | tuple[None, None]:
    """By row, [rows, 1], and by column, [columns, 1], of a matrix that is yet to be multiplied by them."""
    if scales is None:
        return None, None
    for scale, size in zip(scales, x.shape, strict=True):
        fits = scale.shape == (size, 1) and scale.is_contiguous() and scale.dtype == torch.float32
        require(fits, f"scales must be contiguous float32 [{size}, 1], got {scale.dtype} {tuple(scale.shape)}")
    return scales


def multiprocessors(device: torch.device) -> int:
    return _multiprocessors(device.index or 0) if device.type == "cuda" else HOPPER_MULTIPROCESSORS


@cache
def _multiprocessors(index: int) -> int:
    return int(torch.cuda.get_device_properties(index).multi_processor_count)
