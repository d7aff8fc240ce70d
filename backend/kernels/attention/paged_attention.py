# mypy: disable-error-code="no-untyped-def, untyped-decorator"
"""Causal attention of a flat batch of queries of any lengths over a paged KV cache: prefill, chunks, mixed steps.

A program owns BLOCK_M rows of one sequence and one KV head. The grid is an upper bound that needs no length from the
GPU: program i finds its sequence by bisection, since those of sequence s start at ``query_start[s] // tokens + s``,
tokens being those of a block.
Rows outside any sequence (padding) are written as zeros.
"""

import triton
import triton.language as tl
from torch import Tensor

from backend.kernels.attention.online_softmax import (
    LOG2E,
    attend,
    capped,
    check_cache,
    check_cap,
    check_sinks,
    check_tables,
    output_like,
    unseen,
)
from backend.kernels.launching import tuning
from backend.kernels.launching.chaining import after_predecessors, chained
from backend.kernels.launching.launch import FP8, require


@triton.jit
def _sequence_of(query_start_ptr, block, sequences, BLOCK_TOKENS: tl.constexpr):
    """The last s whose first block is at or before `block`; `sequences` itself stands for the padding at the end."""
    low = 0
    high = sequences
    while low < high:
        middle = (low + high + 1) // 2
        if tl.load(query_start_ptr + middle) // BLOCK_TOKENS + middle <= block:
            low = middle
        else:
            high = middle - 1
    return low


@triton.jit(do_not_specialize=["tokens", "sequences"])
def _paged_attention(
    q_ptr, k_ptr, v_ptr, out_ptr, table_ptr, query_start_ptr, seq_lens_ptr, k_scale_ptr, v_scale_ptr,
    sink_ptr, tokens, sequences, table_stride,
    k_block_stride, k_token_stride, k_head_stride, v_block_stride, v_token_stride, v_head_stride, scale, window,
    Q_HEADS: tl.constexpr, GROUP: tl.constexpr, HEAD_DIM: tl.constexpr, D: tl.constexpr, BLOCK_SIZE: tl.constexpr,
    FP8_CACHE: tl.constexpr, WINDOWED: tl.constexpr, CAP: tl.constexpr, SINKS: tl.constexpr, BLOCK_M: tl.constexpr,
    TILE: tl.constexpr, CHAINED: tl.constexpr,
):  # fmt: skip
    after_predecessors(CHAINED)
    BLOCK_TOKENS: tl.constexpr = BLOCK_M // GROUP
    block = (
        tl.num_programs(0) - 1 - tl.program_id(0)
    )  # the end of a causal sequence is its longest work: start it first
    kv_head = tl.program_id(1)
    sequence = _sequence_of(query_start_ptr, block, sequences, BLOCK_TOKENS)
    query_first = tl.load(query_start_ptr + sequence)
    if sequence < sequences:
        query_end = tl.load(query_start_ptr + sequence + 1)
        length = tl.load(seq_lens_ptr + sequence)
    else:
        query_end = tokens
        length = 0
    begin = query_first + (block - query_first // BLOCK_TOKENS - sequence) * BLOCK_TOKENS
    if begin >= query_end:
        return

    row = tl.arange(0, BLOCK_M)
    token = begin + row // GROUP
    owned = (row < BLOCK_TOKENS * GROUP) & (token < query_end)
    dim = tl.arange(0, D)
    inside = owned[:, None] & (dim < HEAD_DIM)[None, :]
    q_head = kv_head * GROUP + row % GROUP
    at = (token.to(tl.int64) * Q_HEADS + q_head)[:, None] * HEAD_DIM + dim[None, :]
    q = tl.load(q_ptr + at, inside, 0.0)
    score_scale = scale
    if FP8_CACHE:
        q = q.to(tl.float16)  # e4m3 widens to float16 in one instruction, to bfloat16 in several
        score_scale *= tl.load(k_scale_ptr + kv_head)

    context = length - query_end  # position of a token = token + context
    position = tl.where(owned & (sequence < sequences), token + context, -1)
    oldest = 0
    if WINDOWED:
        oldest = tl.maximum(begin + context - window + 1, 0)
    last = tl.maximum(tl.minimum(begin + BLOCK_TOKENS, query_end) + context, 0)
    first = oldest // TILE * TILE
    seen_by_all = first  # up to here no row needs a mask
    if not WINDOWED:
        seen_by_all = tl.maximum(begin + context + 1, 0) // TILE * TILE
        if sequence == sequences:
            seen_by_all = 0
    if sequence == sequences:
        last = 0
    acc = tl.zeros([BLOCK_M, D], tl.float32)
    top, total = unseen(sink_ptr, q_head, owned, SINKS)
    table = table_ptr + sequence.to(tl.int64) * table_stride
    k_head, v_head = k_ptr + kv_head * k_head_stride, v_ptr + kv_head * v_head_stride
    if not WINDOWED:
        acc, top, total = attend(
            acc, top, total, q, position, oldest, first, seen_by_all, table, k_head, v_head,
            k_block_stride, k_token_stride, v_block_stride, v_token_stride, score_scale, window,
            False, False, BLOCK_SIZE, HEAD_DIM, D, TILE, CAP,
        )  # fmt: skip
    acc, top, total = attend(
        acc, top, total, q, position, oldest, seen_by_all, last, table, k_head, v_head,
        k_block_stride, k_token_stride, v_block_stride, v_token_stride, score_scale, window,
        True, WINDOWED, BLOCK_SIZE, HEAD_DIM, D, TILE, CAP,
    )  # fmt: skip
    out = acc / tl.where(total > 0, total, 1.0)[:, None]
    if FP8_CACHE:
        out *= tl.load(v_scale_ptr + kv_head)
    tl.store(out_ptr + at, out, inside)


def paged_attention(
    q: Tensor, key_cache: Tensor, value_cache: Tensor, block_tables: Tensor, query_start: Tensor, seq_lens: Tensor, *,
    scale: float, window: int | None = None, cap: float | None = None, k_scale: Tensor | None = None,
    v_scale: Tensor | None = None, batch_invariant: bool = False, sinks: Tensor | None = None,
    out: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """Causal attention of each sequence's newest tokens over all its tokens, which the cache must hold already.

    Args:
        q: [tokens, q_heads, head_dim], contiguous, float16/bfloat16/float32; head_dim 16..256.
        key_cache, value_cache: [blocks, block_size ≥ 16, kv_heads, head_dim], last dimension contiguous; q's dtype, or
            float8_e4m3fn with both scales.
        block_tables: [sequences, max_blocks] int32: the blocks of each sequence, in order.
        query_start: [sequences + 1] int32, ascending: queries of s are ``query_start[s] : query_start[s + 1]``. Tokens
            from ``query_start[-1]`` on are padding.
        seq_lens: [sequences] int32, tokens of s including its queries.
        scale: factor of the scores, usually ``head_dim ** -0.5``.
        window: a query sees itself and the ``window - 1`` tokens before it; None for all.
        cap: scaled scores s become ``cap * tanh(s / cap)`` (Gemma 2); None: they stay.
        k_scale, v_scale: [kv_heads] float32 of an FP8 cache.
        sinks: float32 [q_heads], a score of each head that takes its part of the softmax and has no value (gpt-oss).
        batch_invariant: fixed tiles, so that a row's bits depend on its own sequence alone, not on chunk or batch.
        out: where to leave the result, as contiguous as q; None: in new memory.
    Returns:
        [tokens, q_heads, head_dim] in q's dtype; zeros for padding.
    Raises:
        KernelArgumentError: shapes or dtypes that do not fit.
    """
    group, padded_dim = check_cache(q, key_cache, value_cache, k_scale, v_scale)
    check_tables(block_tables, seq_lens)
    limit = check_cap(cap)
    require(query_start.shape == (len(seq_lens) + 1,), "query_start has one entry more than there are sequences")
    require(window is None or window > 0, f"a window of {window} tokens sees nothing")
    check_sinks(sinks, q.shape[1])
    require(group <= 64, f"{group} query heads a KV head are more than a tile holds")
    tokens, q_heads, head_dim = q.shape
    _, block_size, kv_heads, _ = key_cache.shape
    sequences = len(seq_lens)
    out = output_like(q, out)
    if tokens == 0:
        return out
    rows = 0 if batch_invariant else min(128, triton.next_power_of_2(group * triton.cdiv(tokens, max(1, sequences))))
    shape = f"d{head_dim} g{group} p{block_size} r{rows} {q.dtype} {key_cache.dtype}{capped(cap)}".replace("torch.", "")
    default = default_choice(rows, group, padded_dim, q.element_size(), fp8=key_cache.dtype == FP8)
    choice = tuning.choice("paged_attention", shape, default)
    arguments = choice.arguments()
    blocks = tokens // (arguments["BLOCK_M"] // group) + sequences + 1
    _paged_attention[(blocks, kv_heads)](
        q, key_cache, value_cache, out, block_tables, query_start, seq_lens, k_scale, v_scale,
        sinks, tokens, sequences, block_tables.stride(0), *key_cache.stride()[:3], *value_cache.stride()[:3],
        scale * LOG2E, window or 0,
        Q_HEADS=q_heads, GROUP=group, HEAD_DIM=head_dim, D=padded_dim, BLOCK_SIZE=block_size,
        FP8_CACHE=key_cache.dtype == FP8, WINDOWED=window is not None, CAP=limit, SINKS=sinks is not None,
        **arguments, **chained(),
    )  # fmt: skip
    return out


def default_choice(rows: int, group: int, padded_dim: int, item_size: int, *, fp8: bool = False) -> tuning.Choice:
    """Tiles by the typical number of rows (query tokens × group) of a sequence; 0 for the batch-invariant choice.

    Two programs of 64 rows a multiprocessor are ahead of one of 128: one multiplies while the other takes exponents.
    fp8: of the cache, whose keys and values take registers on their way to float16; 64 rows of wide heads would spill.
    """
    if item_size == 4:  # float32 has no tensor cores to feed, and would spill its registers
        return tuning.Choice.of(warps=4, stages=2, BLOCK_M=max(16, triton.next_power_of_2(group)), TILE=16)
    many = 32 if fp8 and padded_dim > 128 else 64
    block_m = max(many if rows == 0 or rows > 16 else 16, triton.next_power_of_2(group))
    warps = 8 if block_m * padded_dim > 64 * 128 or block_m == many == 32 else 4
    return tuning.Choice.of(warps=warps, stages=3, BLOCK_M=block_m, TILE=max(16, min(64, 8192 // padded_dim)))


def candidates(padded_dim: int, group: int) -> list[tuning.Choice]:
    """What is worth timing on a card; those that need too much shared memory fail to launch and are passed over."""
    return [
        tuning.Choice.of(warps, stages, BLOCK_M=block_m, TILE=tile)
        for block_m in (16, 64, 128)
        if block_m >= group
        for tile in (32, 64, 128)
        for warps in ((8,) if block_m == 128 else (4,))
        for stages in (2, 3, 5)
        if tile * padded_dim * stages <= 128 * 128 * 3
    ]
