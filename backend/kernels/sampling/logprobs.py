# mypy: disable-error-code="no-untyped-def, untyped-decorator"
"""Log probabilities of a few chosen tokens a row, without a log-softmax of the whole vocabulary in memory."""

import torch
import triton
import triton.language as tl
from torch import Tensor

from backend.kernels.launching.launch import require

BLOCK = 4096


@triton.jit
def _token_logprobs(
    logits_ptr, token_ptr, out_ptr, vocab, chosen, row_stride, BLOCK: tl.constexpr, CHOSEN: tl.constexpr
):
    row = tl.program_id(0).to(tl.int64)
    row_ptr = logits_ptr + row * row_stride
    column = tl.arange(0, BLOCK)
    top = tl.full([BLOCK], -1e30, tl.float32)  # finite: a lane that sees only -inf adds zero, not NaN
    total = tl.zeros([BLOCK], tl.float32)
    for start in range(0, vocab, BLOCK):
        token = start + column
        x = tl.load(row_ptr + token, token < vocab, float("-inf")).to(tl.float32)
        new_top = tl.maximum(top, x)
        total = total * tl.exp(top - new_top) + tl.exp(x - new_top)
        top = new_top
    row_top = tl.max(top, 0)
    log_total = tl.log(tl.sum(total * tl.exp(top - row_top), 0))
    i = tl.arange(0, CHOSEN)
    token = tl.load(token_ptr + row * chosen + i, i < chosen, -1)
    known = (token >= 0) & (token < vocab)
    x = tl.load(row_ptr + token, known, float("-inf")).to(tl.float32)
    # the largest goes first: added to log_total it would swallow it
    tl.store(out_ptr + row * chosen + i, (x - row_top) - log_total, i < chosen)


def token_logprobs(logits: Tensor, tokens: Tensor) -> Tensor:
    """``log_softmax(logits)[row, tokens[row]]``.

    Args:
        logits: [rows, vocab], rows contiguous; float32/float16/bfloat16.
        tokens: [rows, chosen] int64, contiguous; an id outside the vocabulary gives -inf.
    Returns:
        [rows, chosen] float32.
    Raises:
        KernelArgumentError: shapes that do not fit.
    """
    require(logits.dim() == 2 and logits.stride(1) == 1, f"logits must be [rows, vocab], got {tuple(logits.shape)}")
    rows, vocab = logits.shape
    require(
        tokens.dim() == 2 and tokens.shape[0] == rows and tokens.is_contiguous(), f"tokens must be [{rows}, chosen]"
    )
    out = logits.new_empty(tokens.shape, dtype=torch.float32)
    if out.numel():
        block = min(BLOCK, triton.next_power_of_2(vocab))
        _token_logprobs[(rows,)](
            logits, tokens, out, vocab, tokens.shape[1], logits.stride(0),
            BLOCK=block, CHOSEN=triton.next_power_of_2(tokens.shape[1]), num_warps=max(1, block // 512),
        )  # fmt: skip
    return out
