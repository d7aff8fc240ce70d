# mypy: disable-error-code="no-untyped-def, untyped-decorator"
"""Choosing the next token on the GPU, without a softmax or a sort in memory.

Gumbel-max (Maddison et al. 2014): ``argmax(logit / temperature + gumbel)`` is a draw from the softmax. The noise comes
from a counter-based generator (Philox 4x32-10, Salmon et al. 2011) keyed by the request's seed and the token's
position, so that a draw depends on neither batch, row nor history: a preempted or replayed request draws the same
tokens. Its torch twin draws the same noise.

A row that is marked gets its noise from ChaCha20, keyed by its tenant and the tokens before (see `marks`).
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from backend.kernels.launching.chaining import after_predecessors, chained
from backend.kernels.launching.launch import require
from backend.kernels.sampling.marks import chacha20
from backend.kernels.sampling.row_state import MARK_WORDS
from backend.marks.scheme import BLOCK_WORDS, TILE_BLOCKS

BLOCK = 1024  # four of them are a tile of the watermark's key stream


@triton.jit
def gumbel(random):
    """Standard Gumbel noise from 32 random bits.

    u = (random + 1/2) / 2^32 is fine-grained near 0, where -log(1 - u) ≈ u gives the rare large values their full
    resolution (up to 22.9); a uniform number of 24 bits could not draw a token of probability below 2^-24.
    """
    u = tl.minimum((random.to(tl.float32) + 0.5) * 2.3283064365386963e-10, 0.99999994)
    exponential = tl.where(u < 1e-3, u * (1.0 + 0.5 * u), -tl.log(1.0 - u))
    return -tl.log(exponential)


@triton.jit
def _best(value, index, best, best_index):
    """Larger value wins, smaller index on a tie: the order in which blocks are looked at does not matter."""
    better = (value > best) | ((value == best) & (index < best_index))
    return tl.where(better, value, best), tl.where(better, index, best_index)


@triton.jit
def _considered(random, token, inside, row_logits, temperature, threshold, best, best_index, broken,
                THRESHOLD: tl.constexpr):  # fmt: skip
    """The better of what was best and these tokens with that noise; `broken` where a logit is NaN or +inf."""
    value = tl.load(row_logits + token, inside, float("-inf")).to(tl.float32)
    broken |= (inside & ((value != value) | (value == float("inf")))).to(tl.int32)
    if THRESHOLD:
        value = tl.where(value >= threshold, value, float("-inf"))
    if temperature > 0:
        value = value / temperature + gumbel(random)
    best, best_index = _best(value, tl.where(inside, token, 0x7FFFFFFF), best, best_index)
    return best, best_index, broken


@triton.jit
def _put(best, best_index, broken, best_ptr, index_ptr):
    top = tl.max(best, 0)
    tl.store(best_ptr, top)
    index = tl.min(tl.where(best == top, best_index, 0x7FFFFFFF), 0)
    tl.store(index_ptr, tl.where(tl.max(broken, 0) > 0, -1, index))


@triton.jit
def _marked_best(
    mark_ptr, row_logits, temperature, threshold, best_ptr, index_ptr, vocab,
    THRESHOLD: tl.constexpr, TILE_BLOCKS: tl.constexpr, BLOCK_WORDS: tl.constexpr,
):  # fmt: skip
    """As `_block_best`, of a tile of the key stream: word w of its blocks belongs to 256 neighbouring tokens."""
    lane = tl.arange(0, TILE_BLOCKS)
    tile = tl.program_id(1)
    first = tile * TILE_BLOCKS * BLOCK_WORDS + lane
    words = chacha20(mark_ptr, (tile * TILE_BLOCKS + lane).to(tl.uint32))
    best = tl.full([TILE_BLOCKS], float("-inf"), tl.float32)
    best_index = tl.full([TILE_BLOCKS], 0x7FFFFFFF, tl.int32)
    broken = tl.zeros([TILE_BLOCKS], tl.int32)
    for w in tl.static_range(BLOCK_WORDS):
        token = first + w * TILE_BLOCKS
        best, best_index, broken = _considered(
            words[w], token, token < vocab, row_logits, temperature, threshold, best, best_index, broken, THRESHOLD
        )
    _put(best, best_index, broken, best_ptr, index_ptr)


@triton.jit
def _seeded_best(
    seed_ptr, position_ptr, row_logits, temperature, threshold, best_ptr, index_ptr, vocab, quarter,
    THRESHOLD: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """One Philox call gives the noise of four tokens, a quarter vocabulary apart."""
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    position = tl.load(position_ptr).to(tl.int32)
    zero = column * 0
    r0, r1, r2, r3 = tl.philox(tl.load(seed_ptr), column, zero + position, zero, zero)
    best = tl.full([BLOCK], float("-inf"), tl.float32)
    best_index = tl.full([BLOCK], 0x7FFFFFFF, tl.int32)
    broken = tl.zeros([BLOCK], tl.int32)
    for lane in tl.static_range(4):
        token = lane * quarter + column
        random = r0 if lane == 0 else (r1 if lane == 1 else (r2 if lane == 2 else r3))
        best, best_index, broken = _considered(
            random, token, (column < quarter) & (token < vocab), row_logits, temperature, threshold,
            best, best_index, broken, THRESHOLD,
        )  # fmt: skip
    _put(best, best_index, broken, best_ptr, index_ptr)


@triton.jit
def _block_best(
    logits_ptr, temperature_ptr, seed_ptr, position_ptr, threshold_ptr, mark_ptr, best_ptr, index_ptr,
    vocab, quarter, row_stride, THRESHOLD: tl.constexpr, MARKS: tl.constexpr, MARK_WORDS: tl.constexpr,
    TILE_BLOCKS: tl.constexpr, BLOCK_WORDS: tl.constexpr, BLOCK: tl.constexpr, CHAINED: tl.constexpr,
):  # fmt: skip
    """Best (score, token) of 4 * BLOCK tokens, with the noise of the row's watermark or of its seed."""
    after_predecessors(CHAINED)
    row = tl.program_id(0).to(tl.int64)
    slot = row * tl.num_programs(1) + tl.program_id(1)
    row_logits = logits_ptr + row * row_stride
    temperature = tl.load(temperature_ptr + row)
    threshold = 0.0
    if THRESHOLD:
        threshold = tl.load(threshold_ptr + row)
    if MARKS:  # without them the pointer is None, which no branch that is compiled may touch
        if tl.load(mark_ptr + row * MARK_WORDS) != 0:
            _marked_best(
                mark_ptr + row * MARK_WORDS, row_logits, temperature, threshold, best_ptr + slot, index_ptr + slot,
                vocab, THRESHOLD, TILE_BLOCKS, BLOCK_WORDS,
            )  # fmt: skip
        else:
            _seeded_best(
                seed_ptr + row, position_ptr + row, row_logits, temperature, threshold, best_ptr + slot,
                index_ptr + slot, vocab, quarter, THRESHOLD, BLOCK,
            )  # fmt: skip
    else:
        _seeded_best(
            seed_ptr + row, position_ptr + row, row_logits, temperature, threshold, best_ptr + slot, index_ptr + slot,
            vocab, quarter, THRESHOLD, BLOCK,
        )  # fmt: skip


@triton.jit
def _row_best(best_ptr, index_ptr, token_ptr, blocks, BLOCKS: tl.constexpr, CHAINED: tl.constexpr):
    after_predecessors(CHAINED)
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCKS)
    best = tl.load(best_ptr + row * blocks + at, at < blocks, float("-inf"))
    index = tl.load(index_ptr + row * blocks + at, at < blocks, 0x7FFFFFFF)
    top = tl.max(best, 0)
    token = tl.min(tl.where((best == top) | (index < 0), index, 0x7FFFFFFF), 0)
    tl.store(token_ptr + row, tl.where(top > float("-inf"), token, -1).to(tl.int64))


def sample(
    logits: Tensor, temperature: Tensor, seeds: Tensor, positions: Tensor, threshold: Tensor | None = None,
    marks: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """Draw one token a row from ``softmax(logits / temperature)``; the largest logit where temperature is 0.

    Args:
        logits: [rows, vocab], rows contiguous; float32/float16/bfloat16.
        temperature: [rows] float32, ≥ 0.
        seeds: [rows] int64, the request's seed.
        positions: [rows] int32 or int64, the position the drawn token will have.
        threshold: [rows] float32 from `sampling_threshold`; tokens with a smaller logit are not drawn.
        marks: [rows, MARK_WORDS] int32 from `gather_marks`; a marked row is drawn by its key and not by its seed.
    Returns:
        [rows] int64. Ties go to the smaller token id; -1 for a row that holds NaN or +inf, or nothing but -inf.
    Raises:
        KernelArgumentError: shapes that do not fit.
    """
    rows, vocab = _logits_shape(logits)
    per_row = (temperature, seeds, positions) + (() if threshold is None else (threshold,))
    require(all(x.shape == (rows,) for x in per_row), f"temperature, seeds, positions and threshold must be [{rows}]")
    require(
        seeds.dtype == torch.int64 and temperature.dtype == torch.float32, "seeds are int64, temperature is float32"
    )
    require(marks is None or marks.shape == (rows, MARK_WORDS), f"marks must be [{rows}, {MARK_WORDS}]")
    tokens = logits.new_empty(rows, dtype=torch.int64)
    if rows == 0:
        return tokens
    quarter = triton.cdiv(vocab, 4)
    blocks = triton.cdiv(quarter, BLOCK)
    best = logits.new_empty(rows, blocks, dtype=torch.float32)
    index = logits.new_empty(rows, blocks, dtype=torch.int32)
    _block_best[(rows, blocks)](
        logits, temperature, seeds, positions, threshold, marks, best, index, vocab, quarter, logits.stride(0),
        THRESHOLD=threshold is not None, MARKS=marks is not None, MARK_WORDS=MARK_WORDS, TILE_BLOCKS=TILE_BLOCKS,
        BLOCK_WORDS=BLOCK_WORDS, BLOCK=BLOCK, num_warps=4, **chained(),
    )  # fmt: skip
    _row_best[(rows,)](best, index, tokens, blocks, BLOCKS=triton.next_power_of_2(blocks), num_warps=1, **chained())
    return tokens


def _logits_shape(logits: Tensor) -> tuple[int, int]:
    require(logits.dim() == 2 and logits.stride(1) == 1, f"logits must be [rows, vocab], got {tuple(logits.shape)}")
    require(logits.shape[1] > 0, "the vocabulary is empty")
    return logits.shape[0], logits.shape[1]
