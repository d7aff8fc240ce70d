"""Every kernel at the shapes of real models (see `kernel_case`).

`gpu_check.py` checks and times these on a card; the tests compile them for Hopper where there is none.
"""

from collections.abc import Iterator

import torch

from backend.kernels.launching.launch import FP8
from bench.kernels import formats, latent
from bench.kernels.attention import (
    decode_case,
    joined_case,
    prefill_case,
    resumed_case,
    shared_case,
    uneven_case,
)
from bench.kernels.case import LLAMA_8B, QWEN3_06B, WIDE, Case
from bench.kernels.layers import gate_cases, narrow_cases, norm_cases, quantise_case, rotary_case, row_cases
from bench.kernels.steps import sampling_cases, step_cases


def cases(device: torch.device, dtype: torch.dtype = torch.bfloat16) -> Iterator[Case]:
    """One after another, so that the memory of one is free before the next takes its own."""
    for tokens in (1, 256, 8192):
        yield from norm_cases(LLAMA_8B, tokens, dtype, device)
        yield from gate_cases(LLAMA_8B, tokens, dtype, device)
        for shape in (LLAMA_8B, QWEN3_06B):
            yield rotary_case(shape, tokens, dtype, dtype, device)
        yield rotary_case(LLAMA_8B, tokens, dtype, FP8, device)
    yield from gate_cases(WIDE, 256, dtype, device)
    yield quantise_case(256, WIDE.ff_width, dtype, device)
    for rows in (256, LLAMA_8B.ff_width):
        yield quantise_case(rows, LLAMA_8B.width, dtype, device)
    for queries, context, count in ((4096, 0, 1), (1024, 0, 8), (2048, 6144, 1)):
        yield prefill_case(LLAMA_8B, queries, context, count, dtype, dtype, device)
    yield prefill_case(LLAMA_8B, 4096, 0, 1, dtype, FP8, device)
    yield joined_case(LLAMA_8B, 8192, dtype, device)
    if device.type == "cuda":  # the library cannot be asked elsewhere, not even for shapes
        for rows, history in ((2048, 2048), (8192, 8192), (8192, 16384)):
            yield resumed_case(LLAMA_8B, rows, history, dtype, device)
    yield prefill_case(QWEN3_06B, 4096, 0, 1, dtype, dtype, device)
    for sequences, context in ((1, 256), (1, 8192), (32, 256), (32, 1024), (128, 1024), (256, 768)):
        for cache_dtype in (dtype, FP8):
            yield decode_case(LLAMA_8B, sequences, context, 1, dtype, cache_dtype, device)
    for sequences in (256, 128, 48):
        for cache_dtype in (dtype, FP8):
            for sort in (False, True):
                yield uneven_case(LLAMA_8B, sequences, dtype, cache_dtype, device, sort=sort)
    yield decode_case(LLAMA_8B, 8, 1024, 4, dtype, dtype, device)
    yield shared_case(LLAMA_8B, 128, 2048, 64, dtype, device)
    for shape in (LLAMA_8B, QWEN3_06B):
        yield from row_cases(shape, dtype, device)
        for rows in (8, 32):
            yield from narrow_cases(shape, rows, dtype, device)
    for sequences in (8, 32, 64, 128):
        for splits in (1, 2, 4, 8):
            yield decode_case(LLAMA_8B, sequences, 1024, 1, dtype, dtype, device, splits=splits)
    for block_size in (64, 256):
        yield decode_case(LLAMA_8B, 128, 1024, 1, dtype, dtype, device, block_size)
        yield prefill_case(LLAMA_8B, 4096, 0, 1, dtype, dtype, device, block_size)
    for sequences in (1, 128):
        yield decode_case(QWEN3_06B, sequences, 384, 1, dtype, dtype, device)
    for rows in (1, 128, 256):
        yield from sampling_cases(LLAMA_8B, rows, device)
    yield from step_cases(256, device)
    yield from formats.cases(device, dtype)
    yield from latent.cases(device, dtype)
