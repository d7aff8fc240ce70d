# mypy: disable-error-code="no-untyped-def, untyped-decorator"
"""Decode attention: one or a few newest tokens of each sequence over its paged KV cache, split along the keys.

A decode step reads the whole cache and computes little, so the work is cut until the card is full: (KV head, sequence,
split). Each split leaves an unnormalised partial; whichever program of a sequence arrives last folds them together in
split order, in the same launch (Flash-Decoding, Dao et al. 2023, without its second kernel). The order is fixed, so the
result does not depend on who arrives when. A beginning that all sequences share is attended to by `shared_prefix`
first; the first split then starts from its result, and behind it.

How many splits a sequence really uses is decided on the GPU from its length: a captured graph stays right while
sequences grow. With ``splits`` fixed, a row's bits depend on its own sequence alone, whatever the batch.
"""

import triton
import triton.language as tl
from torch import Tensor

from backend.kernels.attention.online_softmax import (
    LOG2E,
    LOWEST,
    attend,
    capped,
    check_cache,
    check_cap,
    check_sinks,
    check_tables,
    output_like,
    unseen,
)
from backend.kernels.attention.shared_prefix import attend_prefix, prefix_splits
from backend.kernels.attention.workspace import (
    MAX_SPLITS,
    PREFIX_STEP,
    DecodeWorkspace,
    SharedPrefix,
    block_rows,
    crowded,
    default_splits,
    partial_size,
)
from backend.kernels.launching import tuning
from backend.kernels.launching.chaining import after_predecessors, chained
from backend.kernels.launching.launch import FP8, require

UNCUT_KEYS = 512  # of a sequence, up to which splitting it costs more than it evens out in a large batch


@triton.jit
def _fold_partials(
    partial_ptr, base, out_ptr, out_at, used, active, v_scale,
    ROWS: tl.constexpr, BLOCK_M: tl.constexpr, HEAD_DIM: tl.constexpr, D: tl.constexpr,
    SPLITS: tl.constexpr, D_PART: tl.constexpr,
):  # fmt: skip
    """out = Σ 2^(top_s - top) acc_s / Σ 2^(top_s - top) total_s, in the fixed tree of tl.sum."""
    row = tl.arange(0, ROWS)
    split = tl.arange(0, SPLITS)
    at = base + (split[None, :] * BLOCK_M + row[:, None]) * (D + 2)
    arrived = (row < used)[:, None] & (split < active)[None, :]
    # .cg: other multiprocessors wrote these, and this one's L1 may hold what was there before
    top = tl.load(partial_ptr + at + D, arrived, LOWEST, cache_modifier=".cg")
    total = tl.load(partial_ptr + at + D + 1, arrived, 0.0, cache_modifier=".cg")
    weight = tl.exp2(top - tl.max(top, 1)[:, None])
    norm = tl.sum(total * weight, 1)
    weight *= (v_scale / tl.where(norm > 0, norm, 1.0))[:, None]
    for part in tl.static_range(D // D_PART):
        dim = part * D_PART + tl.arange(0, D_PART)
        acc = tl.load(partial_ptr + at[:, :, None] + dim[None, None, :], arrived[:, :, None], 0.0, cache_modifier=".cg")
        out = tl.sum(acc * weight[:, :, None], 1)
        tl.store(out_ptr + out_at[:, None] + dim[None, :], out, (row < used)[:, None] & (dim < HEAD_DIM)[None, :])


@triton.jit
def _row_offset(row, sequence, kv_head, QUERIES, GROUP: tl.constexpr, Q_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr):
    """Offset in q and out of a tile's row: query token ``row // GROUP``, head ``row % GROUP`` of the group."""
    token = sequence * QUERIES + row // GROUP
    return (token * Q_HEADS + kv_head * GROUP + row % GROUP) * HEAD_DIM


@triton.jit(do_not_specialize=["min_tiles"])
def _paged_decode(
    q_ptr, k_ptr, v_ptr, out_ptr, partial_ptr, arrived_ptr, table_ptr, seq_lens_ptr, k_scale_ptr, v_scale_ptr,
    shared_length_ptr, shared_out_ptr, shared_top_ptr, shared_stride, sink_ptr,
    table_stride, k_block_stride, k_token_stride, k_head_stride, v_block_stride, v_token_stride, v_head_stride,
    scale, window, min_tiles,
    QUERIES: tl.constexpr, Q_HEADS: tl.constexpr, GROUP: tl.constexpr, HEAD_DIM: tl.constexpr, D: tl.constexpr,
    BLOCK_SIZE: tl.constexpr, FP8_CACHE: tl.constexpr, WINDOWED: tl.constexpr, CAP: tl.constexpr, SPLITS: tl.constexpr,
    BLOCK_M: tl.constexpr, ROWS: tl.constexpr, TILE: tl.constexpr, D_PART: tl.constexpr, SHARED: tl.constexpr,
    PREFIX_SPLITS: tl.constexpr, SINKS: tl.constexpr, CHAINED: tl.constexpr,
):  # fmt: skip
    after_predecessors(CHAINED)
    kv_head = tl.program_id(0)
    sequence = tl.program_id(1).to(tl.int64)
    split = tl.program_id(2)
    length = tl.load(seq_lens_ptr + sequence)
    oldest = 0
    if WINDOWED:
        oldest = tl.maximum(length - QUERIES - window + 1, 0)
    if SHARED:
        oldest = tl.minimum(tl.load(shared_length_ptr), length)  # none of a padding row
    begin = oldest // TILE * TILE
    tiles = tl.cdiv(length - begin, TILE)
    tiles_each = tl.maximum(tl.cdiv(tiles, SPLITS), min_tiles)
    active = tl.maximum(tl.cdiv(tiles, tiles_each), 1)  # an empty sequence still gets its zeros written
    if split >= active:
        return

    row = tl.arange(0, BLOCK_M)
    dim = tl.arange(0, D)
    used = QUERIES * GROUP
    inside = (row < used)[:, None] & (dim < HEAD_DIM)[None, :]
    at = _row_offset(row, sequence, kv_head, QUERIES, GROUP, Q_HEADS, HEAD_DIM)[:, None] + dim[None, :]
    q = tl.load(q_ptr + at, inside, 0.0)
    score_scale = scale
    v_scale = 1.0
    if FP8_CACHE:
        q = q.to(tl.float16)  # e4m3 widens to float16 in one instruction, to bfloat16 in several
        score_scale *= tl.load(k_scale_ptr + kv_head)
        v_scale = tl.load(v_scale_ptr + kv_head)
    position = tl.where(row < used, length - QUERIES + row // GROUP, -1)
    first = begin + split * tiles_each * TILE
    last = tl.minimum(first + tiles_each * TILE, length)
    acc = tl.zeros([BLOCK_M, D], tl.float32)
    top, total = unseen(sink_ptr, kv_head * GROUP + row % GROUP, (row < used) & (split == 0), SINKS)  # a sink once
    if SHARED:
        carried = (row < used) & (split == 0) & (oldest < length)
        head_row = sequence * Q_HEADS + kv_head * GROUP + row
        for part in tl.static_range(PREFIX_SPLITS):
            top = tl.maximum(top, tl.load(shared_top_ptr + part * shared_stride + head_row, carried, LOWEST))
        for part in tl.static_range(PREFIX_SPLITS):
            weight = tl.exp2(tl.load(shared_top_ptr + part * shared_stride + head_row, carried, LOWEST) - top)
            weight = tl.where(carried & (oldest > 0), weight, 0.0)
            total += weight
            share = tl.load(shared_out_ptr + part * shared_stride * HEAD_DIM + at, inside & carried[:, None], 0.0)
            acc += weight[:, None] * share
    acc, top, total = attend(
        acc, top, total, q, position, oldest, first, last, table_ptr + sequence * table_stride,
        k_ptr + kv_head * k_head_stride, v_ptr + kv_head * v_head_stride,
        k_block_stride, k_token_stride, v_block_stride, v_token_stride, score_scale, window,
        True, WINDOWED, BLOCK_SIZE, HEAD_DIM, D, TILE, CAP,
    )  # fmt: skip
    if active == 1:
        out = acc * (v_scale / tl.where(total > 0, total, 1.0))[:, None]
        tl.store(out_ptr + at, out, inside)
    elif SPLITS > 1:
        pair = sequence * tl.num_programs(0) + kv_head
        base = pair * SPLITS * BLOCK_M * (D + 2)
        mine = partial_ptr + base + (split * BLOCK_M + row) * (D + 2)
        tl.store(mine[:, None] + dim[None, :], acc, (row < used)[:, None])
        tl.store(mine + D, top, row < used)
        tl.store(mine + D + 1, total, row < used)
        tl.debug_barrier()  # every thread's stores come before the one thread's release below
        if tl.atomic_add(arrived_ptr + pair, 1, sem="acq_rel", scope="gpu") == active - 1:
            out_row = tl.arange(0, ROWS)
            out_at = _row_offset(out_row, sequence, kv_head, QUERIES, GROUP, Q_HEADS, HEAD_DIM)
            _fold_partials(
                partial_ptr, base, out_ptr, out_at, used, active, v_scale, ROWS, BLOCK_M, HEAD_DIM, D, SPLITS, D_PART
            )
            tl.store(arrived_ptr + pair, 0)  # ready for the next launch


def paged_decode(
    q: Tensor, key_cache: Tensor, value_cache: Tensor, block_tables: Tensor, seq_lens: Tensor,
    workspace: DecodeWorkspace, *,
    scale: float, window: int | None = None, cap: float | None = None, k_scale: Tensor | None = None,
    v_scale: Tensor | None = None, splits: int | None = None, shared: SharedPrefix | None = None,
    sinks: Tensor | None = None, out: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """Attention of each sequence's newest tokens, equally many for each (1, or 1 + drafts), over all its tokens.

    Args:
        q: [sequences * queries, q_heads, head_dim], contiguous, float16/bfloat16/float32; a sequence's queries are its
            last tokens, in order.
        key_cache, value_cache: [blocks, block_size ≥ 16, kv_heads, head_dim], last dimension contiguous; q's dtype, or
            float8_e4m3fn with both scales.
        block_tables: [sequences, max_blocks] int32.
        seq_lens: [sequences] int32, tokens of s including its queries; 0 marks a padding row, which gets zeros.
        workspace: from `DecodeWorkspace.allocate`, large enough for this batch.
        scale: factor of the scores, usually ``head_dim ** -0.5``.
        window: a query sees itself and the ``window - 1`` tokens before it; None for all.
        cap: scaled scores s become ``cap * tanh(s / cap)`` (Gemma 2); None: they stay.
        k_scale, v_scale: [kv_heads] float32 of an FP8 cache.
        splits: a power of two ≤ 32; None for the one that fills the card at this batch size.
        shared: a prefix that all sequences but padding rows have in the same blocks, the first sequence being none; one
            query each, and neither window nor cap nor sinks.
        sinks: float32 [q_heads], a score of each head that takes its part of the softmax and has no value (gpt-oss).
        out: where to leave the result, as contiguous as q; None: in new memory.
    Returns:
        [sequences * queries, q_heads, head_dim] in q's dtype.
    Raises:
        KernelArgumentError: shapes or dtypes that do not fit, or too small a workspace.
    """
    group, padded_dim = check_cache(q, key_cache, value_cache, k_scale, v_scale)
    check_tables(block_tables, seq_lens)
    limit = check_cap(cap)
    tokens, q_heads, head_dim = q.shape
    _, block_size, kv_heads, _ = key_cache.shape
    sequences = len(seq_lens)
    check_sinks(sinks, q_heads)
    require(sequences > 0 and tokens % sequences == 0, f"{tokens} queries do not divide among {sequences} sequences")
    require(window is None or window > 0, f"a window of {window} tokens sees nothing")
    whole = splits is None and crowded(sequences, kv_heads, q.device)
    splits = splits or default_splits(sequences, kv_heads, q.device)
    require(splits in (1, 2, 4, 8, 16, 32), f"splits must be a power of two up to {MAX_SPLITS}, got {splits}")
    queries = tokens // sequences
    block_m = block_rows(queries * group)
    require(block_m <= 64, f"{queries} queries × {group} heads a KV head are more than a decode tile holds")
    needed = sequences * kv_heads * splits * partial_size(queries * group, head_dim) if splits > 1 else 0
    require(
        workspace.partial.numel() >= needed and workspace.arrived.numel() >= sequences * kv_heads,
        f"the workspace holds {workspace.partial.numel()} partial values, this batch needs {needed}",
    )
    shape = f"d{head_dim} g{group} m{block_m} p{block_size} s{splits} {q.dtype} {key_cache.dtype}{capped(cap)}"
    shape = shape.replace("torch.", "")
    default = default_choice(padded_dim, key_cache.element_size(), splits, block_m, queries=queries, crowded=whole)
    choice = tuning.choice("paged_decode", shape, default)
    rows = triton.next_power_of_2(queries * group)
    at_once = (4096 if queries == 1 else 2048) * choice.warps  # values folded together; more would spill
    parts = 1
    if shared is not None:
        plain = queries == 1 and window is None and cap is None and sinks is None
        require(plain, "a shared prefix goes with one query each, no window and no cap, nor sinks")
        require(PREFIX_STEP % dict(choice.blocks)["TILE"] == 0, f"a shared prefix ends within a tile of {choice}")
        parts = prefix_splits(sequences * group, kv_heads, q.element_size(), q.device)
        attend_prefix(
            q, key_cache, value_cache, block_tables[0], shared, scale=scale, k_scale=k_scale, padded_dim=padded_dim,
            splits=parts,
        )  # fmt: skip
    prefix = (None, None, None, 0) if shared is None else (shared.length, shared.out, shared.top, shared.top.stride(0))
    out = output_like(q, out)
    _paged_decode[(kv_heads, sequences, splits)](
        q, key_cache, value_cache, out, workspace.partial, workspace.arrived, block_tables, seq_lens, k_scale, v_scale,
        *prefix, sinks,
        block_tables.stride(0), *key_cache.stride()[:3], *value_cache.stride()[:3], scale * LOG2E, window or 0,
        QUERIES=queries, Q_HEADS=q_heads, GROUP=group, HEAD_DIM=head_dim, D=padded_dim, BLOCK_SIZE=block_size,
        FP8_CACHE=key_cache.dtype == FP8, WINDOWED=window is not None, CAP=limit, SPLITS=splits, BLOCK_M=block_m,
        ROWS=rows, D_PART=max(8, min(padded_dim, at_once // (rows * splits))), SHARED=shared is not None,
        PREFIX_SPLITS=parts, SINKS=sinks is not None, **choice.arguments(),
        **chained(),
    )  # fmt: skip
    return out


def default_choice(
    padded_dim: int, item_size: int, splits: int, block_m: int = 16, *, queries: int = 1, crowded: bool = False
) -> tuning.Choice:
    """Small tiles, so that even a short context is many programs, and one warp, which has nobody to wait for.

    Measured at 256 to 2048 keys, on an H100 and, where a row of queries is one of 16, an H200. FP8 in tiles of one
    block each, whose place in the cache is one number. Many splits mean few sequences, which wait for latency, not for
    bytes. crowded: sequences of up to 512 keys are not cut.
    """
    tile = max(16, min(64, (4096 if item_size > 1 else 8192) // padded_dim))
    if block_m > 16 or padded_dim > 128 or item_size == 4:  # a single warp would spill
        if splits >= 8:  # heads of 256 spill with other stages, or two warps, by the assembler of Triton 3.6
            return tuning.Choice.of(warps=4, stages=3 if item_size == 1 else 2, TILE=tile, min_tiles=1)
        if item_size == 1:  # so would two
            return tuning.Choice.of(warps=4, stages=5, TILE=tile, min_tiles=2)
        if padded_dim > 128 and item_size == 2:
            return tuning.Choice.of(warps=4, stages=3, TILE=2 * tile, min_tiles=1)
        return tuning.Choice.of(warps=2, stages=3, TILE=tile, min_tiles=1)
    least = UNCUT_KEYS if crowded else 1
    if item_size == 1 and splits <= 8:
        return tuning.Choice.of(warps=1, stages=6, TILE=16, min_tiles=max(1, least // 16))
    if splits >= 8:
        return tuning.Choice.of(warps=4, stages=2, TILE=tile if queries == 1 else min(64, 2 * tile), min_tiles=1)
    warps, stages = (2, 3) if crowded and splits == 4 else (1, 4)
    return tuning.Choice.of(warps, stages, TILE=tile, min_tiles=max(1, least // tile))


def candidates(padded_dim: int, item_size: int) -> list[tuning.Choice]:
    """What is worth timing on a card; those that need too much shared memory fail to launch and are passed over."""
    return [
        tuning.Choice.of(warps, stages, TILE=tile, min_tiles=least)
        for tile in (16, 32, 64, 128)
        for warps in (1, 2, 4, 8)
        for stages in (3, 5, 7)
        for least in (1, 2, 4)
        if tile * padded_dim * item_size * (stages - 1) <= 200_000
    ]
