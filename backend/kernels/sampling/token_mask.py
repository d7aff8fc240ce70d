# mypy: disable-error-code="no-untyped-def, untyped-decorator"
"""Grammar masks: bits of allowed tokens, applied to the logits (the format of xgrammar and llguidance)."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from backend.kernels.launching.launch import require

BLOCK = 2048


@triton.jit
def _apply_bitmask(logits_ptr, bits_ptr, row_ptr, vocab, words, logits_stride, BLOCK: tl.constexpr):
    mask_row = tl.program_id(0).to(tl.int64)
    row = tl.load(row_ptr + mask_row).to(tl.int64)
    token = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = (token < vocab) & (row >= 0)
    word = tl.load(bits_ptr + mask_row * words + token // 32, inside, 0)
    forbidden = ((word >> (token % 32)) & 1) == 0
    tl.store(logits_ptr + row * logits_stride + token, float("-inf"), inside & forbidden)


def apply_bitmask(logits: Tensor, bits: Tensor, rows: Tensor) -> None:
    """Set the logits of forbidden tokens to -inf, in place.

    Args:
        logits: [batch, vocab], rows contiguous; float32/float16/bfloat16.
        bits: [masks, ceil(vocab / 32)] int32, contiguous; bit ``token % 32`` of word ``token // 32`` set: allowed.
        rows: [masks] int32, the row of logits each mask is for; -1 for none.
    Raises:
        KernelArgumentError: shapes that do not fit.
    """
    vocab = logits.shape[1]
    words = (vocab + 31) // 32
    require(logits.stride(1) == 1, "a row of logits must be contiguous")
    require(bits.dtype == torch.int32 and bits.is_contiguous(), "bits must be contiguous int32")
    require(bits.shape == (len(rows), words), f"bits must be [{len(rows)}, {words}], got {tuple(bits.shape)}")
    if len(rows):
        _apply_bitmask[(len(rows), triton.cdiv(vocab, BLOCK))](
            logits, bits, rows, vocab, words, logits.stride(0), BLOCK=BLOCK
        )
