# mypy: disable-error-code="no-untyped-def, untyped-decorator"
"""Watermarks on the device (see `backend.marks.scheme`): which rows of a step are marked, and their random numbers.

Nothing of it needs the host: contexts are read from the tokens that the device knows, so a marked draw is part of a
captured step, and a step that checks guesses marks each position as if the guesses before it were the answer.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from backend.kernels.launching.chaining import after_predecessors, chained
from backend.kernels.launching.launch import require
from backend.kernels.sampling.row_state import MARK_WORDS, MarkRows
from backend.marks.scheme import CONTEXT, HISTORY

BLOCK = 1024


@triton.jit(do_not_specialize=["max_len"])
def _gather(
    row_ptr, position_ptr, tokens_ptr, start_ptr, key_ptr, mark_ptr, max_len,
    WORDS: tl.constexpr, HISTORY: tl.constexpr, BLOCK: tl.constexpr, CHAINED: tl.constexpr,
):  # fmt: skip
    after_predecessors(CHAINED)
    sequence = tl.program_id(0).to(tl.int64)
    row = tl.load(row_ptr + sequence).to(tl.int64)
    real = row >= 0
    position = tl.load(position_ptr + sequence)
    start = tl.load(start_ptr + row, real, 0)
    marked = real & (start > 0) & (position - start >= 3)
    own = tokens_ptr + row * max_len
    c0 = tl.load(own + position - 3, marked, 0)
    c1 = tl.load(own + position - 2, marked, 0)
    c2 = tl.load(own + position - 1, marked, 0)
    repeats = tl.zeros([BLOCK], tl.int32)
    for first in range(tl.maximum(start + 3, position - HISTORY), tl.where(marked, position, 0), BLOCK):
        at = first + tl.arange(0, BLOCK)
        earlier = at < position
        same = earlier & (tl.load(own + at - 1, earlier, -1) == c2) & (tl.load(own + at - 2, earlier, -1) == c1)
        same = same & (tl.load(own + at - 3, earlier, -1) == c0)
        repeats |= same.to(tl.int32)
    marked = marked & (tl.max(repeats, 0) == 0)
    mark = mark_ptr + sequence * WORDS
    tl.store(mark, marked.to(tl.int32))
    lane = tl.arange(0, 8)
    tl.store(mark + 1 + lane, tl.load(key_ptr + row * 8 + lane, real, 0))
    tl.store(mark + 9, c0)
    tl.store(mark + 10, c1)
    tl.store(mark + 11, c2)


def gather_marks(rows: Tensor, positions: Tensor, tokens: Tensor, wanted: MarkRows, marks: Tensor) -> None:
    """Fill ``marks`` for a step.

    Args:
        rows: [sequences] int32, each sequence's row; -1 for padding.
        positions: [sequences] int32, of the token to be drawn; what comes before it is in ``tokens``.
        tokens: [table rows, max_len] int32.
        wanted: by row.
        marks: written, [sequences, MARK_WORDS] int32.
    Raises:
        KernelArgumentError: shapes that do not fit.
    """
    sequences = len(rows)
    require(rows.dtype == torch.int32 and positions.dtype == torch.int32, "rows and positions are int32")
    require(positions.shape == (sequences,), f"positions are for {len(positions)} sequences, not {sequences}")
    require(marks.shape == (sequences, MARK_WORDS), f"marks must be [{sequences}, {MARK_WORDS}]")
    require(CONTEXT == 3, "the kernel reads three tokens")
    if sequences:
        _gather[(sequences,)](
            rows, positions, tokens, wanted.start, wanted.keys, marks, tokens.shape[1],
            WORDS=MARK_WORDS, HISTORY=HISTORY, BLOCK=BLOCK, num_warps=4, **chained(),
        )  # fmt: skip


@triton.jit
def _quarter(a, b, c, d):
    """RFC 8439, section 2.1."""
    a += b
    d ^= a
    d = (d << 16) | (d >> 16)
    c += d
    b ^= c
    b = (b << 12) | (b >> 20)
    a += b
    d ^= a
    d = (d << 8) | (d >> 24)
    c += d
    b ^= c
    b = (b << 7) | (b >> 25)
    return a, b, c, d


@triton.jit
def _word(pointer):
    return tl.load(pointer).to(tl.uint32, bitcast=True)


@triton.jit
def chacha20(mark_ptr, counter):
    """RFC 8439, section 2.3: the 16 words of each block of the key stream. mark_ptr: of a row's key and nonce, behind
    its first word. counter: [n] uint32."""
    zero = counter * 0
    k0, k1, k2, k3 = _word(mark_ptr + 1), _word(mark_ptr + 2), _word(mark_ptr + 3), _word(mark_ptr + 4)
    k4, k5, k6, k7 = _word(mark_ptr + 5), _word(mark_ptr + 6), _word(mark_ptr + 7), _word(mark_ptr + 8)
    n0, n1, n2 = _word(mark_ptr + 9), _word(mark_ptr + 10), _word(mark_ptr + 11)
    a0, a1, a2, a3 = zero + 0x61707865, zero + 0x3320646E, zero + 0x79622D32, zero + 0x6B206574
    b0, b1, b2, b3 = zero + k0, zero + k1, zero + k2, zero + k3
    c0, c1, c2, c3 = zero + k4, zero + k5, zero + k6, zero + k7
    d0, d1, d2, d3 = counter, zero + n0, zero + n1, zero + n2
    for _ in range(10):
        a0, b0, c0, d0 = _quarter(a0, b0, c0, d0)
        a1, b1, c1, d1 = _quarter(a1, b1, c1, d1)
        a2, b2, c2, d2 = _quarter(a2, b2, c2, d2)
        a3, b3, c3, d3 = _quarter(a3, b3, c3, d3)
        a0, b1, c2, d3 = _quarter(a0, b1, c2, d3)
        a1, b2, c3, d0 = _quarter(a1, b2, c3, d0)
        a2, b3, c0, d1 = _quarter(a2, b3, c0, d1)
        a3, b0, c1, d2 = _quarter(a3, b0, c1, d2)
    return (
        a0 + 0x61707865, a1 + 0x3320646E, a2 + 0x79622D32, a3 + 0x6B206574, b0 + k0, b1 + k1, b2 + k2, b3 + k3,
        c0 + k4, c1 + k5, c2 + k6, c3 + k7, d0 + counter, d1 + n0, d2 + n1, d3 + n2,
    )  # fmt: skip
