# mypy: disable-error-code="no-untyped-def, untyped-decorator"
"""Causal attention of all heads over the latents of a paged cache. A tile of latents is loaded once and used as keys,
with the rotary keys, and as values.

The rows of a program's tile are (token, head) pairs, because all heads attend to the same keys. `latent_attention` is
for prompts, chunks and mixed steps (as `attention.paged_attention`). `latent_decode` is for one token of each sequence
and splits the keys into parts (Flash-Decoding, Dao et al. 2023), which a second kernel combines in order.
"""

from functools import partial

import triton
import triton.language as tl
from torch import Tensor

from backend.kernels.attention.online_softmax import LOG2E, LOWEST, check_tables
from backend.kernels.attention.workspace import DecodeWorkspace
from backend.kernels.latent.reference import decode_rows, default_splits, require_cache
from backend.kernels.launching import tuning
from backend.kernels.launching.chaining import after_predecessors, chained
from backend.kernels.launching.launch import require

LEAST_TILES = 2  # tiles of keys in a part; below it the fold costs more than the split saves


@triton.jit
def _attend_latents(
    acc, top, total, q, turned, position, first, last, table_ptr, latent_ptr, rotary_ptr,
    l_block_stride, l_token_stride, r_block_stride, r_token_stride, score_scale,
    BLOCK_SIZE: tl.constexpr, RANK: tl.constexpr, D: tl.constexpr, ROTARY: tl.constexpr, R: tl.constexpr,
    TILE: tl.constexpr,
):  # fmt: skip
    """Accumulate the keys ``first ≤ key < last`` into (acc [M, D], top [M], total [M]) by online softmax.

    q: [M, D], query against the latents. turned: [M, R], rotary part of the query.
    """
    dim, pair = tl.arange(0, D), tl.arange(0, R)
    for start in tl.range(first, last, TILE):
        key = start + tl.arange(0, TILE)
        readable = key < last
        block = tl.load(table_ptr + key // BLOCK_SIZE, readable, 0).to(tl.int64)
        latent_row = latent_ptr + block * l_block_stride + key % BLOCK_SIZE * l_token_stride
        rotary_row = rotary_ptr + block * r_block_stride + key % BLOCK_SIZE * r_token_stride
        latent = tl.load(latent_row[:, None] + dim[None, :], readable[:, None] & (dim < RANK)[None, :], 0.0)
        rotary = tl.load(rotary_row[:, None] + pair[None, :], readable[:, None] & (pair < ROTARY)[None, :], 0.0)
        score = tl.dot(q, tl.trans(latent), input_precision="ieee")
        score = tl.dot(turned, tl.trans(rotary), score, input_precision="ieee") * score_scale
        score = tl.where(key[None, :] <= position[:, None], score, float("-inf"))
        new_top = tl.maximum(top, tl.max(score, 1))
        p = tl.exp2(score - new_top[:, None])
        shrink = tl.exp2(top - new_top)
        top = new_top
        total = total * shrink + tl.sum(p, 1)
        acc = tl.dot(p.to(q.dtype), latent, acc * shrink[:, None], input_precision="ieee")
    return acc, top, total


@triton.jit
def _sequence_of_rows(query_start_ptr, block, sequences, heads, BLOCK_M: tl.constexpr):
    """As `paged_attention._sequence_of`, for rows of (token, head)."""
    low = 0
    high = sequences
    while low < high:
        middle = (low + high + 1) // 2
        if tl.load(query_start_ptr + middle) * heads // BLOCK_M + middle <= block:
            low = middle
        else:
            high = middle - 1
    return low


@triton.jit(do_not_specialize=["tokens", "sequences"])
def _latent_attention(
    q_ptr, latent_ptr, rotary_ptr, out_ptr, table_ptr, query_start_ptr, seq_lens_ptr, tokens, sequences, table_stride,
    l_block_stride, l_token_stride, r_block_stride, r_token_stride, score_scale,
    HEADS: tl.constexpr, BLOCK_SIZE: tl.constexpr, RANK: tl.constexpr, D: tl.constexpr, ROTARY: tl.constexpr,
    R: tl.constexpr, BLOCK_M: tl.constexpr, TILE: tl.constexpr, CHAINED: tl.constexpr,
):  # fmt: skip
    after_predecessors(CHAINED)
    block = tl.num_programs(0) - 1 - tl.program_id(0)  # longest work first: the last tokens see the most keys
    sequence = _sequence_of_rows(query_start_ptr, block, sequences, HEADS, BLOCK_M)
    query_first = tl.load(query_start_ptr + sequence)
    if sequence < sequences:
        query_end = tl.load(query_start_ptr + sequence + 1)
        length = tl.load(seq_lens_ptr + sequence)
    else:
        query_end = tokens
        length = 0
    begin = query_first * HEADS + (block - query_first * HEADS // BLOCK_M - sequence) * BLOCK_M
    if begin >= query_end * HEADS:
        return

    row = (begin + tl.arange(0, BLOCK_M)).to(tl.int64)
    owned = row < query_end * HEADS
    dim, pair = tl.arange(0, D), tl.arange(0, R)
    q_row = q_ptr + row * (RANK + ROTARY)
    q = tl.load(q_row[:, None] + dim[None, :], owned[:, None] & (dim < RANK)[None, :], 0.0)
    turned = tl.load(q_row[:, None] + RANK + pair[None, :], owned[:, None] & (pair < ROTARY)[None, :], 0.0)
    context = length - query_end
    position = tl.where(owned & (sequence < sequences), row // HEADS + context, -1)
    last = 0
    if sequence < sequences:
        last = tl.minimum((begin + BLOCK_M - 1) // HEADS + 1, query_end) + context
    acc = tl.zeros([BLOCK_M, D], tl.float32)
    top = tl.full([BLOCK_M], LOWEST, tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    acc, top, total = _attend_latents(
        acc, top, total, q, turned, position, 0, last, table_ptr + sequence.to(tl.int64) * table_stride, latent_ptr,
        rotary_ptr, l_block_stride, l_token_stride, r_block_stride, r_token_stride, score_scale,
        BLOCK_SIZE, RANK, D, ROTARY, R, TILE,
    )  # fmt: skip
    out = acc / tl.where(total > 0, total, 1.0)[:, None]
    tl.store(out_ptr + row[:, None] * RANK + dim[None, :], out, owned[:, None] & (dim < RANK)[None, :])


@triton.jit
def _parts_of(length, SPLITS: tl.constexpr, TILE: tl.constexpr, LEAST: tl.constexpr):
    """Return (tiles of each part, number of parts with tiles)."""
    tiles = tl.cdiv(length, TILE)
    each = tl.maximum(tl.cdiv(tiles, SPLITS), LEAST)
    return each, tl.maximum(tl.cdiv(tiles, each), 1)  # an empty sequence still gets its zeros written


@triton.jit
def _latent_decode(
    q_ptr, latent_ptr, rotary_ptr, out_ptr, partial_ptr, table_ptr, seq_lens_ptr, table_stride,
    l_block_stride, l_token_stride, r_block_stride, r_token_stride, score_scale,
    HEADS: tl.constexpr, BLOCK_SIZE: tl.constexpr, RANK: tl.constexpr, D: tl.constexpr, ROTARY: tl.constexpr,
    R: tl.constexpr, BLOCK_M: tl.constexpr, TILE: tl.constexpr, SPLITS: tl.constexpr, LEAST: tl.constexpr,
    CHAINED: tl.constexpr,
):  # fmt: skip
    after_predecessors(CHAINED)
    sequence, split = tl.program_id(1).to(tl.int64), tl.program_id(2)
    length = tl.load(seq_lens_ptr + sequence)
    each, active = _parts_of(length, SPLITS, TILE, LEAST)
    if split >= active:
        return
    head = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    owned = head < HEADS
    row = sequence * HEADS + head
    dim, pair = tl.arange(0, D), tl.arange(0, R)
    q_row = q_ptr + row * (RANK + ROTARY)
    q = tl.load(q_row[:, None] + dim[None, :], owned[:, None] & (dim < RANK)[None, :], 0.0)
    turned = tl.load(q_row[:, None] + RANK + pair[None, :], owned[:, None] & (pair < ROTARY)[None, :], 0.0)
    first = split * each * TILE
    acc = tl.zeros([BLOCK_M, D], tl.float32)
    top = tl.full([BLOCK_M], LOWEST, tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    acc, top, total = _attend_latents(
        acc, top, total, q, turned, tl.where(owned, length - 1, -1), first, tl.minimum(first + each * TILE, length),
        table_ptr + sequence * table_stride, latent_ptr, rotary_ptr, l_block_stride, l_token_stride, r_block_stride,
        r_token_stride, score_scale, BLOCK_SIZE, RANK, D, ROTARY, R, TILE,
    )  # fmt: skip
    if active == 1:
        out = acc / tl.where(total > 0, total, 1.0)[:, None]
        tl.store(out_ptr + row[:, None] * RANK + dim[None, :], out, owned[:, None] & (dim < RANK)[None, :])
    else:
        mine = partial_ptr + (row * SPLITS + split) * (D + 2)
        tl.store(mine[:, None] + dim[None, :], acc, owned[:, None])
        tl.store(mine + D, top, owned)
        tl.store(mine + D + 1, total, owned)


@triton.jit
def _fold_latents(
    partial_ptr, out_ptr, seq_lens_ptr,
    HEADS: tl.constexpr, RANK: tl.constexpr, D: tl.constexpr, TILE: tl.constexpr, SPLITS: tl.constexpr,
    LEAST: tl.constexpr, CHAINED: tl.constexpr,
):  # fmt: skip
    after_predecessors(CHAINED)
    row = tl.program_id(0).to(tl.int64)
    _, active = _parts_of(tl.load(seq_lens_ptr + row // HEADS), SPLITS, TILE, LEAST)
    if active == 1:
        return
    dim = tl.arange(0, D)
    acc = tl.zeros([D], tl.float32)
    top = tl.full([], LOWEST, tl.float32)
    total = tl.full([], 0.0, tl.float32)
    for split in tl.range(0, active):
        part = partial_ptr + (row * SPLITS + split) * (D + 2)
        own = tl.load(part + D)
        new_top = tl.maximum(top, own)
        shrink, weight = tl.exp2(top - new_top), tl.exp2(own - new_top)
        acc = acc * shrink + tl.load(part + dim) * weight
        total = total * shrink + tl.load(part + D + 1) * weight
        top = new_top
    tl.store(out_ptr + row * RANK + dim, acc / tl.where(total > 0, total, 1.0), dim < RANK)


def latent_attention(
    q: Tensor, latents: Tensor, keys: Tensor, block_tables: Tensor, query_start: Tensor, seq_lens: Tensor, *,
    scale: float, batch_invariant: bool = False, out: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """Causal attention of each sequence's newest tokens over all its tokens, which must be in the cache already.

    Args:
        q: [tokens, heads, rank + rotary], contiguous, float16/bfloat16/float32.
        latents, keys: [blocks, block_size ≥ 16, 1, rank] and [blocks, block_size, 1, rotary] of q's dtype.
        block_tables: [sequences, max_blocks] int32.
        query_start: [sequences + 1] int32, ascending: queries of s are ``query_start[s] : query_start[s + 1]``. Tokens
            from ``query_start[-1]`` on are padding.
        seq_lens: [sequences] int32, tokens of s including its queries.
        scale: factor of the scores.
        batch_invariant: no effect; the tiles are the same for every batch.
        out: [tokens, heads, rank], contiguous, receives the result; None: a new tensor.
    Returns:
        [tokens, heads, rank] in q's dtype: weighted sums of latents; zeros for padding.
    Raises:
        KernelArgumentError: shapes or dtypes do not fit.
    """
    tokens, heads, rank, rotary, out = require_cache(q, latents, keys, out)
    check_tables(block_tables, seq_lens)
    require(query_start.shape == (len(seq_lens) + 1,), "query_start has one entry more than there are sequences")
    if tokens == 0:
        return out
    sequences, rows = len(seq_lens), decode_rows(heads, q.element_size())

    def launch(choice: tuning.Choice) -> None:
        _latent_attention[(tokens * heads // rows + sequences + 1,)](
            q, latents, keys, out, block_tables, query_start, seq_lens, tokens, sequences, block_tables.stride(0),
            *latents.stride()[:2], *keys.stride()[:2], scale * LOG2E,
            HEADS=heads, BLOCK_SIZE=latents.shape[1], RANK=rank, ROTARY=rotary, D=triton.next_power_of_2(rank),
            R=max(16, triton.next_power_of_2(rotary)), BLOCK_M=rows, **choice.arguments(), **chained(),
        )  # fmt: skip

    tuning.launched(_lookup("latent_attention", rank, rotary, rows, q), launch)
    return out


def latent_decode(
    q: Tensor, latents: Tensor, keys: Tensor, block_tables: Tensor, seq_lens: Tensor, workspace: DecodeWorkspace, *,
    scale: float, splits: int | None = None, out: Tensor | None = None,
) -> Tensor:  # fmt: skip
    """Attention of the newest token of each sequence over all its tokens.

    Args:
        q: [sequences, heads, rank + rotary]; others as in `latent_attention`.
        seq_lens: [sequences] int32; 0 marks a padding row, which gets zeros.
        workspace: from `reference.decode_workspace`, large enough for this batch.
        splits: number of parts of the keys; None: enough to fill the GPU at this batch size.
    Returns:
        [sequences, heads, rank] in q's dtype.
    Raises:
        KernelArgumentError: shapes or dtypes do not fit, or the workspace is too small.
    """
    sequences, heads, rank, rotary, out = require_cache(q, latents, keys, out)
    check_tables(block_tables, seq_lens)
    require(len(seq_lens) == sequences, f"{sequences} queries of {len(seq_lens)} sequences")
    splits = splits or default_splits(sequences, heads, q.device)
    padded = triton.next_power_of_2(rank)
    needed = sequences * heads * splits * (padded + 2) if splits > 1 else 0
    held = workspace.partial.numel()
    require(held >= needed, f"the workspace holds {held} partial values, this batch needs {needed}")
    rows = decode_rows(heads, q.element_size())

    def launch(choice: tuning.Choice) -> None:
        _latent_decode[(triton.cdiv(heads, rows), sequences, splits)](
            q, latents, keys, out, workspace.partial, block_tables, seq_lens, block_tables.stride(0),
            *latents.stride()[:2], *keys.stride()[:2], scale * LOG2E,
            HEADS=heads, BLOCK_SIZE=latents.shape[1], RANK=rank, ROTARY=rotary, SPLITS=splits, LEAST=LEAST_TILES,
            D=padded, R=max(16, triton.next_power_of_2(rotary)), BLOCK_M=rows, **choice.arguments(), **chained(),
        )  # fmt: skip
        if splits > 1:
            _fold_latents[(sequences * heads,)](
                workspace.partial, out, seq_lens, HEADS=heads, RANK=rank, D=padded, TILE=dict(choice.blocks)["TILE"],
                SPLITS=splits, LEAST=LEAST_TILES, num_warps=4, **chained(),
            )  # fmt: skip

    tuning.launched(_lookup("latent_decode", rank, rotary, rows, q), launch)
    return out


def _lookup(kernel: str, rank: int, rotary: int, rows: int, q: Tensor) -> tuning.Lookup:
    shape = f"r{rank}+{rotary} m{rows} {str(q.dtype).removeprefix('torch.')}"
    return tuning.Lookup(kernel, shape, default_choice(rank, rows, q.element_size()), partial(candidates, rank, rows))


def default_choice(rank: int, rows: int, item_size: int) -> tuning.Choice:
    """Return the tile and warps. Accumulators of 64 rows and a rank of 512 take 128 registers of each thread with eight
    warps. Tiles of 64 keys were the fastest on an H200 (`choices.json`), at 64 rows although registers spill there, and
    far more of them do on older cards."""
    if item_size == 4:
        return tuning.Choice.of(8 if rows * rank > 16 * 256 else 4, 2, TILE=16)
    return tuning.Choice.of(8, 2, TILE=32 if rows * rank > 16 * 512 else 64)


def candidates(rank: int, rows: int) -> list[tuning.Choice]:
    """Return the choices to time on a GPU. One that needs too much shared memory fails to launch and is skipped."""
    warps = (8,) if rows * rank > 16 * 256 else (4, 8)
    return [
        tuning.Choice.of(each, stages, TILE=tile) for tile in (16, 32, 64) for each in warps for stages in (1, 2, 3)
    ]
