# mypy: disable-error-code="no-untyped-def, untyped-decorator"
"""Truncation sampling as one threshold a row: top-k, then top-p (Holtzman et al. 2020) of what is left, then min-p
(Nguyen et al. 2024), in the order of Hugging Face transformers.

All three keep the tokens whose logit is at least some value, so no sort is needed: the value is found by a search over
pivots. Floats are compared as integers of the same order, which makes the search exact: it ends at the one bit pattern
that separates kept from dropped, in at most 16 passes over the row (three pivots a pass), usually far fewer.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from backend.kernels.launching.chaining import after_predecessors, chained
from backend.kernels.launching.launch import require

BLOCK = 4096
LOWEST_KEY = tl.constexpr(-2139095041)  # of -inf


@triton.jit
def _logits(row_ptr, token, vocab):
    """float32 logits of the tokens; -inf for NaN and past the vocabulary."""
    x = tl.load(row_ptr + token, token < vocab, float("-inf")).to(tl.float32)
    return tl.where(x == x, x, float("-inf"))


@triton.jit
def _mass(x, top, inverse_temperature):
    """Unnormalised probability. -inf has none, also where there is nothing else (-inf - -inf)."""
    return tl.where(x > float("-inf"), tl.exp((x - top) * inverse_temperature), 0.0)


@triton.jit
def _key(x):
    """The int32 that orders as the float does; -0 as +0."""
    bits = (x + 0.0).to(tl.int32, bitcast=True)
    return tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits)


@triton.jit
def _value(key):
    return tl.where(key < 0, key ^ 0x7FFFFFFF, key).to(tl.float32, bitcast=True)


@triton.jit
def _largest_key(
    row_ptr, vocab, low, low_count, high, target, top, inverse_temperature, MASS: tl.constexpr, BLOCK: tl.constexpr
):
    """The largest key whose tokens at or above it reach `target`, in number or in (unnormalised) probability mass.

    `low` reaches it, with low_count tokens; `high` does not, with none. Ends early when one token is left between them,
    or, counting, when exactly `target` tokens are at or above `low`.
    """
    column = tl.arange(0, BLOCK)
    high_count = low_count * 0
    searching = (high - low > 1) & (low_count > 1)
    if not MASS:
        searching &= low_count > target
    while searching:
        width = high - low
        pivot1 = low + tl.maximum(width // 4, 1)
        pivot2 = low + tl.maximum(width // 2, 1)
        pivot3 = low + tl.maximum(width // 4 * 3, 1)
        counts1 = tl.zeros([BLOCK], tl.int32)
        counts2 = tl.zeros([BLOCK], tl.int32)
        counts3 = tl.zeros([BLOCK], tl.int32)
        masses1 = tl.zeros([BLOCK], tl.float32)
        masses2 = tl.zeros([BLOCK], tl.float32)
        masses3 = tl.zeros([BLOCK], tl.float32)
        for start in range(0, vocab, BLOCK):
            token = start + column
            x = _logits(row_ptr, token, vocab)
            key = tl.where(token < vocab, _key(x), -2147483648)  # below -inf: what is past the end is not counted
            counts1 += key >= pivot1
            counts2 += key >= pivot2
            counts3 += key >= pivot3
            if MASS:
                mass = _mass(x, top, inverse_temperature)
                masses1 += tl.where(key >= pivot1, mass, 0.0)
                masses2 += tl.where(key >= pivot2, mass, 0.0)
                masses3 += tl.where(key >= pivot3, mass, 0.0)
        count1, count2, count3 = tl.sum(counts1, 0), tl.sum(counts2, 0), tl.sum(counts3, 0)
        if MASS:
            reach1 = tl.sum(masses1, 0) >= target
            reach2 = tl.sum(masses2, 0) >= target
            reach3 = tl.sum(masses3, 0) >= target
        else:
            reach1, reach2, reach3 = count1 >= target, count2 >= target, count3 >= target
        high = tl.where(reach3, high, tl.where(reach2, pivot3, tl.where(reach1, pivot2, pivot1)))
        high_count = tl.where(reach3, high_count, tl.where(reach2, count3, tl.where(reach1, count2, count1)))
        low = tl.where(reach3, pivot3, tl.where(reach2, pivot2, tl.where(reach1, pivot1, low)))
        low_count = tl.where(reach3, count3, tl.where(reach2, count2, tl.where(reach1, count1, low_count)))
        searching = (high - low > 1) & (low_count - high_count > 1)
        if not MASS:
            searching &= low_count > target
    return low, low_count


@triton.jit
def _threshold(
    logits_ptr,
    temperature_ptr,
    top_k_ptr,
    top_p_ptr,
    min_p_ptr,
    threshold_ptr,
    vocab,
    row_stride,
    BLOCK: tl.constexpr,
    CHAINED: tl.constexpr,
):
    after_predecessors(CHAINED)
    row = tl.program_id(0).to(tl.int64)
    temperature = tl.load(temperature_ptr + row)
    top_k = tl.load(top_k_ptr + row)
    top_p = tl.load(top_p_ptr + row)
    min_p = tl.load(min_p_ptr + row)
    by_k = (top_k > 0) & (top_k < vocab)
    threshold = float("-inf")
    if (temperature > 0) & (by_k | (top_p < 1) | (min_p > 0)):
        row_ptr = logits_ptr + row * row_stride
        column = tl.arange(0, BLOCK)
        tops = tl.full([BLOCK], float("-inf"), tl.float32)
        for start in range(0, vocab, BLOCK):
            token = start + column
            tops = tl.maximum(tops, _logits(row_ptr, token, vocab))
        top = tl.max(tops, 0)
        high = _key(top).to(tl.int64) + 1
        low = high * 0 + LOWEST_KEY
        count = (low * 0).to(tl.int32) + vocab
        if by_k:
            low, count = _largest_key(row_ptr, vocab, low, count, high, top_k, top, 1.0, False, BLOCK)
        if top_p < 1:
            masses = tl.zeros([BLOCK], tl.float32)
            for start in range(0, vocab, BLOCK):
                token = start + column
                x = _logits(row_ptr, token, vocab)
                masses += tl.where(_key(x) >= low, _mass(x, top, 1.0 / temperature), 0.0)
            target = top_p * tl.sum(masses, 0)
            low, count = _largest_key(row_ptr, vocab, low, count, high, target, top, 1.0 / temperature, True, BLOCK)
        threshold = _value(low.to(tl.int32))
        if min_p > 0:
            threshold = tl.maximum(threshold, top + temperature * tl.log(min_p))
    tl.store(threshold_ptr + row, threshold)


def sampling_threshold(logits: Tensor, temperature: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor) -> Tensor:
    """The logit that a token must reach to be drawn; tokens that tie with it are all kept.

    Args:
        logits: [rows, vocab], rows contiguous; float32/float16/bfloat16.
        temperature: [rows] float32; a row of 0 (greedy) is not truncated.
        top_k: [rows] int32; 0 or less, or at least vocab: off.
        top_p: [rows] float32; 1 or more: off. 0 keeps the largest alone.
        min_p: [rows] float32, a share of the largest probability; 0: off.
    Returns:
        [rows] float32, -inf where nothing is dropped.
    Raises:
        KernelArgumentError: shapes that do not fit.
    """
    require(logits.dim() == 2 and logits.stride(1) == 1, f"logits must be [rows, vocab], got {tuple(logits.shape)}")
    rows, vocab = logits.shape
    require(
        all(x.shape == (rows,) for x in (temperature, top_k, top_p, min_p)),
        f"temperature, top_k, top_p and min_p must be [{rows}]",
    )
    threshold = logits.new_empty(rows, dtype=torch.float32)
    if rows:
        block = min(BLOCK, triton.next_power_of_2(vocab))
        _threshold[(rows,)](
            logits, temperature, top_k, top_p, min_p, threshold, vocab, logits.stride(0), BLOCK=block,
            num_warps=max(1, block // 256), **chained(),
        )  # fmt: skip
    return threshold
