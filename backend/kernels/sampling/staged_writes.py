# mypy: disable-error-code="no-untyped-def, untyped-decorator"
"""Many small writes to the device's tables, sent as one copy and done by one kernel.

What changes from step to step (a prompt that arrived, a block table that grew) is a few runs of words here and there in
one stretch of memory. Each run is a segment (where to, how many, where its words lie); segments and words travel in
one buffer (the staged writes of vLLM's model runner v2).
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from backend.kernels.launching.launch import require
from backend.kernels.sampling.row_state import SEGMENT_WORDS

BLOCK = 1024


@triton.jit
def _write_segments(memory_ptr, packed_ptr, BLOCK: tl.constexpr):
    segment = packed_ptr + tl.program_id(0) * 3
    target = tl.load(segment)
    length = tl.load(segment + 1)
    source = tl.load(segment + 2)
    lane = tl.arange(0, BLOCK)
    for first in range(0, length, BLOCK):
        i = first + lane
        word = tl.load(packed_ptr + source + i, i < length)
        tl.store(memory_ptr + target + i, word, i < length)


def write_segments(memory: Tensor, packed: Tensor, segments: int) -> None:
    """Do the first ``segments`` writes described in ``packed``; their targets must not overlap.

    Args:
        memory: [words] int32, fewer than 2**31.
        packed: int32; segment i is its three words from 3 * i on: offset in ``memory``, length, offset in ``packed``.
    Raises:
        KernelArgumentError: not flat int32.
    """
    require(memory.dtype == packed.dtype == torch.int32, "memory and packed are int32")
    require(memory.dim() == packed.dim() == 1 and len(memory) < 2**31, "memory and packed are flat")
    require(len(packed) >= SEGMENT_WORDS * segments, f"packed does not hold {segments} segments")
    if segments:
        _write_segments[(segments,)](memory, packed, BLOCK=BLOCK, num_warps=4)
