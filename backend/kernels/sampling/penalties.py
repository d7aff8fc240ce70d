# mypy: disable-error-code="no-untyped-def, untyped-decorator"
"""Repetition, frequency and presence penalties, from token statistics that stay on the GPU.

Repetition (Keskar et al. 2019) looks at prompt and output, frequency and presence (OpenAI API) at the output alone.
A request owns a row of two tables: a bit set of the tokens in its prompt, and counts of those in its output.
"""

import triton
import triton.language as tl
from torch import Tensor

from backend.kernels.launching.launch import require

BLOCK = 1024


@triton.jit
def _penalise(
    logits_ptr, row_ptr, prompt_ptr, count_ptr, repetition_ptr, frequency_ptr, presence_ptr,
    vocab, words, logits_stride, BLOCK: tl.constexpr,
):  # fmt: skip
    batch_row = tl.program_id(0).to(tl.int64)
    repetition = tl.load(repetition_ptr + batch_row)
    frequency = tl.load(frequency_ptr + batch_row)
    presence = tl.load(presence_ptr + batch_row)
    row = tl.load(row_ptr + batch_row).to(tl.int64)
    if (row >= 0) & ((repetition != 1.0) | (frequency != 0.0) | (presence != 0.0)):
        token = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
        inside = token < vocab
        at = logits_ptr + batch_row * logits_stride + token
        x = tl.load(at, inside, 0.0).to(tl.float32)
        count = tl.load(count_ptr + row * vocab + token, inside, 0)
        word = tl.load(prompt_ptr + row * words + token // 32, inside, 0)
        seen = (count > 0) | (((word >> (token % 32)) & 1) != 0)
        x = tl.where(seen, tl.where(x > 0, x / repetition, x * repetition), x)
        x -= frequency * count.to(tl.float32) + tl.where(count > 0, presence, 0.0)
        tl.store(at, x, inside)


@triton.jit(do_not_specialize=["rows"])
def _count_outputs(count_ptr, row_ptr, token_ptr, rows, vocab, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    row = tl.load(row_ptr + i, i < rows, -1).to(tl.int64)
    token = tl.load(token_ptr + i, i < rows, -1)
    tl.atomic_add(count_ptr + row * vocab + token, 1, (row >= 0) & (token >= 0) & (token < vocab))


@triton.jit(do_not_specialize=["tokens"])
def _mark_prompt(prompt_ptr, token_ptr, tokens, vocab, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    token = tl.load(token_ptr + i, i < tokens, -1).to(tl.int32)
    known = (token >= 0) & (token < vocab)
    tl.atomic_or(prompt_ptr + token // 32, 1 << (token % 32), known)


def apply_penalties(
    logits: Tensor, rows: Tensor, prompt_bits: Tensor, output_counts: Tensor,
    repetition: Tensor, frequency: Tensor, presence: Tensor,
) -> None:  # fmt: skip
    """Penalise in place the tokens that a request has seen.

    Args:
        logits: [batch, vocab], rows contiguous; float32/float16/bfloat16.
        rows: [batch] int32, each request's row in the tables; -1 for a padding row, which is left alone.
        prompt_bits: [table rows, ceil(vocab / 32)] int32.
        output_counts: [table rows, vocab] int32.
        repetition: [batch] float32, > 0, 1 for none: positive logits are divided by it, negative multiplied.
        frequency, presence: [batch] float32, 0 for none: taken off once an occurrence, once at all.
    Raises:
        KernelArgumentError: shapes that do not fit.
    """
    batch, vocab = logits.shape
    _check_tables(prompt_bits, output_counts, vocab)
    require(logits.stride(1) == 1, "a row of logits must be contiguous")
    per_row = (rows, repetition, frequency, presence)
    require(all(x.shape == (batch,) for x in per_row), f"rows and penalties must be [{batch}]")
    if batch:
        _penalise[(batch, triton.cdiv(vocab, BLOCK))](
            logits, rows, prompt_bits, output_counts, repetition, frequency, presence,
            vocab, prompt_bits.shape[1], logits.stride(0), BLOCK=BLOCK,
        )  # fmt: skip


def count_outputs(output_counts: Tensor, rows: Tensor, tokens: Tensor) -> None:
    """Add one to ``output_counts[rows[i], tokens[i]]`` for each i; rows or tokens of -1 are skipped.

    rows: [batch] int32; tokens: [batch] int64 (as `sample` gives them).
    """
    require(rows.shape == tokens.shape and rows.dim() == 1, "one token a row")
    require(output_counts.is_contiguous(), "output_counts must be contiguous")
    if len(rows):
        grid = (triton.cdiv(len(rows), 128),)
        _count_outputs[grid](output_counts, rows, tokens, len(rows), output_counts.shape[1], BLOCK=128)


def mark_prompt(prompt_bits: Tensor, row: int, tokens: Tensor, vocab: int) -> None:
    """Set the bits of a prompt's tokens in its row, which the caller has zeroed. tokens: [n], int32 or int64."""
    require(prompt_bits.is_contiguous() and 0 <= row < prompt_bits.shape[0], f"there is no prompt row {row}")
    require(
        prompt_bits.shape[1] == (vocab + 31) // 32, f"a prompt row of {vocab} tokens has {(vocab + 31) // 32} words"
    )
    if len(tokens):
        _mark_prompt[(triton.cdiv(len(tokens), BLOCK),)](prompt_bits[row], tokens, len(tokens), vocab, BLOCK=BLOCK)


def _check_tables(prompt_bits: Tensor, output_counts: Tensor, vocab: int) -> None:
    words = (vocab + 31) // 32
    require(output_counts.shape[1] == vocab and output_counts.is_contiguous(), f"output_counts must be [rows, {vocab}]")
    require(
        prompt_bits.shape == (output_counts.shape[0], words) and prompt_bits.is_contiguous(),
        f"prompt_bits must be [{output_counts.shape[0]}, {words}]",
    )
