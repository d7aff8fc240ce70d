"""Every kernel at the shapes of real models: how to run it, what it must give, the least bytes and operations it needs.

`gpu_check.py` checks and times these on a card; the tests compile them for Hopper where there is none.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from backend.kernels import fused, reference
from backend.kernels.decode_workspace import DecodeWorkspace, SharedPrefix
from backend.kernels.launch import FP8
from backend.kernels.row_state import Draws, RowState, SamplingRows, StepInputs

L2_BYTES = 50e6
BLOCK_SIZE = 16  # tokens of a cache block, unless a case says otherwise


@dataclass(frozen=True)
class Shape:
    """Attention and vocabulary of a model."""

    name: str
    width: int
    q_heads: int
    kv_heads: int
    head_dim: int
    ff_width: int
    vocab: int
    qk_norm: bool


LLAMA_8B = Shape("llama-3.1-8b", 4096, 32, 8, 128, 14336, 128256, False)
WIDE = Shape("llama-3.1-70b", 8192, 64, 8, 128, 28672, 128256, False)
QWEN3_06B = Shape("qwen3-0.6b", 1024, 16, 8, 128, 3072, 151936, True)


@dataclass(frozen=True)
class Case:
    """One kernel at one shape.

    ``run(i)`` runs it on the i-th of ``sets`` equal sets of inputs, together larger than the L2 cache, and returns the
    tensors it wrote; ``twin(i)`` the same in torch. ``peer(i)``: what a torch user would call instead, for its time.
    bytes: each input read once, each output written once. tolerance: of ‖out - twin‖ / ‖twin‖, or of the share of
    unequal integers. seen: what of the outputs is compared, where the outputs themselves may differ and be right.
    """

    name: str
    sets: int
    bytes: float
    run: Callable[[int], tuple[Tensor, ...]]
    twin: Callable[[int], tuple[Tensor, ...]]
    tolerance: float
    flops: float = 0.0
    peer: Callable[[int], Any] | None = None
    peer_name: str = ""
    seen: Callable[[tuple[Tensor, ...]], tuple[Tensor, ...]] = lambda outputs: outputs


def cases(device: torch.device, dtype: torch.dtype = torch.bfloat16) -> Iterator[Case]:
    """One after another, so that the memory of one is free before the next takes its own."""
    for tokens in (1, 256, 8192):
        yield from norm_cases(LLAMA_8B, tokens, dtype, device)
        yield from gate_cases(LLAMA_8B, tokens, dtype, device)
        for shape in (LLAMA_8B, QWEN3_06B):
            yield rotary_case(shape, tokens, dtype, dtype, device)
        yield rotary_case(LLAMA_8B, tokens, dtype, FP8, device)
    yield from gate_cases(WIDE, 256, dtype, device)
    for rows in (256, LLAMA_8B.ff_width):
        yield quantise_case(rows, LLAMA_8B.width, dtype, device)
    for queries, context, count in ((4096, 0, 1), (1024, 0, 8), (2048, 6144, 1)):
        yield prefill_case(LLAMA_8B, queries, context, count, dtype, dtype, device)
    yield prefill_case(LLAMA_8B, 4096, 0, 1, dtype, FP8, device)
    yield prefill_case(QWEN3_06B, 4096, 0, 1, dtype, dtype, device)
    for sequences, context in ((1, 256), (1, 8192), (32, 256), (32, 1024), (128, 1024), (256, 768)):
        for cache_dtype in (dtype, FP8):
            yield decode_case(LLAMA_8B, sequences, context, 1, dtype, cache_dtype, device)
    yield decode_case(LLAMA_8B, 8, 1024, 4, dtype, dtype, device)
    yield shared_case(LLAMA_8B, 128, 2048, 64, dtype, device)
    for shape in (LLAMA_8B, QWEN3_06B):
        yield from row_cases(shape, dtype, device)
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


def _sets(size: float, most: int = 64) -> int:
    return max(1, min(most, round(3 * L2_BYTES / size)))


def _label(*parts: object) -> str:
    return " ".join(str(part).removeprefix("torch.") for part in parts)


def norm_cases(shape: Shape, tokens: int, dtype: torch.dtype, device: torch.device) -> Iterator[Case]:
    width = shape.width
    size = 4 * tokens * width * dtype.itemsize
    n = _sets(size)
    x, residual = torch.randn(2, n, tokens, width, device=device).to(dtype)
    weight = (1 + torch.randn(width, device=device) / 4).to(dtype)
    yield Case(
        _label("add_rms_norm", tokens, width, dtype), n, size,
        lambda i: fused.add_rms_norm(x[i], residual[i], weight, 1e-5),
        lambda i: reference.add_rms_norm(x[i], residual[i], weight, 1e-5), 2e-3,
        peer=lambda i: F.rms_norm(x[i] + residual[i], (width,), weight, 1e-5), peer_name="torch add, rms_norm",
    )  # fmt: skip
    yield Case(
        _label("add_rms_norm_fp8", tokens, width, dtype), n, tokens * width * (3 * dtype.itemsize + 1),
        lambda i: fused.add_rms_norm_fp8(x[i], residual[i], weight, 1e-5),
        lambda i: reference.add_rms_norm_fp8(x[i], residual[i], weight, 1e-5), 1e-2,
    )  # fmt: skip


def gate_cases(shape: Shape, tokens: int, dtype: torch.dtype, device: torch.device) -> Iterator[Case]:
    width = shape.ff_width
    size = 3 * tokens * width * dtype.itemsize
    n = _sets(size)
    gate_up = torch.randn(n, tokens, 2 * width, device=device).to(dtype)

    def peer(i: int) -> Tensor:
        gate, up = gate_up[i].chunk(2, -1)
        return F.silu(gate) * up

    yield Case(
        _label("silu_mul", tokens, width, dtype), n, size, lambda i: (fused.silu_mul(gate_up[i]),),
        lambda i: (reference.silu_mul(gate_up[i]),), 2e-3, peer=peer, peer_name="torch silu, mul",
    )  # fmt: skip
    yield Case(
        _label("silu_mul_fp8", tokens, width, dtype), n, tokens * width * (2 * dtype.itemsize + 1),
        lambda i: fused.silu_mul_fp8(gate_up[i]), lambda i: reference.silu_mul_fp8(gate_up[i]), 1e-2,
    )  # fmt: skip


def quantise_case(rows: int, width: int, dtype: torch.dtype, device: torch.device) -> Case:
    size = rows * width * (dtype.itemsize + 1)
    n = _sets(size)
    x = torch.randn(n, rows, width, device=device).to(dtype)
    return Case(
        _label("quantize_rows", rows, width, dtype), n, size,
        lambda i: fused.quantize_rows(x[i]), lambda i: reference.quantize_rows(x[i]), 1e-2,
    )  # fmt: skip


def rotary_case(
    shape: Shape, tokens: int, dtype: torch.dtype, cache_dtype: torch.dtype, device: torch.device
) -> Case:  # fmt: skip
    q_heads, kv_heads, dim = shape.q_heads, shape.kv_heads, shape.head_dim
    heads = q_heads + 2 * kv_heads
    size = tokens * dim * (heads * dtype.itemsize + q_heads * dtype.itemsize + 2 * kv_heads * cache_dtype.itemsize)
    n = _sets(size)
    qkv = torch.randn(n, tokens, heads * dim, device=device).to(dtype)
    blocks = -(-tokens // BLOCK_SIZE)
    positions = torch.arange(tokens, device=device)
    slots = torch.arange(blocks * BLOCK_SIZE, device=device).flip(0)[:tokens].contiguous()
    angle = torch.outer(torch.arange(8192, device=device), 5e5 ** (-torch.arange(0, dim, 2, device=device) / dim))
    cos_sin = torch.cat((angle.cos(), angle.sin()), -1)
    options: dict[str, Any] = {}
    if shape.qk_norm:
        options |= {name: torch.rand(dim, device=device).to(dtype) + 0.5 for name in ("q_norm", "k_norm")}
    if cache_dtype == FP8:
        options |= {name: torch.full((kv_heads,), 0.02, device=device) for name in ("k_scale", "v_scale")}

    def run(kernels: Any, i: int, caches: Tensor) -> tuple[Tensor, ...]:
        q = kernels.rotary_kv(qkv[i], positions, cos_sin, slots, caches[0], caches[1], **options)
        return q, caches[0], caches[1]

    mine, other = (
        torch.zeros(n, 2, blocks, BLOCK_SIZE, kv_heads, dim, device=device, dtype=cache_dtype) for _ in range(2)
    )
    return Case(
        _label("rotary_kv", shape.name, tokens, dtype, "kv", cache_dtype), n, size,
        lambda i: run(fused, i, mine[i]), lambda i: run(reference, i, other[i]), 1e-2 if cache_dtype == FP8 else 2e-3,
    )  # fmt: skip


class PagedHistory:
    """Random keys and values of ``count`` sequences of ``length`` tokens, in blocks dealt at random, ``sets`` times."""

    def __init__(
        self, shape: Shape, count: int, length: int, sets: int, cache_dtype: torch.dtype, device: torch.device,
        block_size: int = BLOCK_SIZE,
    ) -> None:  # fmt: skip
        per_sequence = -(-length // block_size)
        total = count * per_sequence
        cache_shape = (sets, 2, total, block_size, shape.kv_heads, shape.head_dim)
        self.caches = torch.empty(cache_shape, device=device, dtype=torch.bfloat16).normal_().to(cache_dtype)
        self.tables = torch.randperm(total, device=device).int().view(count, per_sequence)
        self.seq_lens = torch.full((count,), length, dtype=torch.int32, device=device)
        self.scales: dict[str, Tensor] = {}
        if cache_dtype == FP8:
            self.scales = {name: 0.5 + torch.rand(shape.kv_heads, device=device) for name in ("k_scale", "v_scale")}

    def contiguous(self, i: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """[count, kv_heads, length, head_dim] twice, as torch's own attention wants them."""
        length = int(self.seq_lens[0])
        k, v = (c[self.tables.long()].flatten(1, 2)[:, :length].to(dtype).transpose(1, 2) for c in self.caches[i])
        return k.contiguous(), v.contiguous()


def prefill_case(
    shape: Shape, queries: int, context: int, count: int, dtype: torch.dtype, cache_dtype: torch.dtype,
    device: torch.device, block_size: int = BLOCK_SIZE,
) -> Case:  # fmt: skip
    dim, length = shape.head_dim, queries + context
    history = PagedHistory(shape, count, length, 1, cache_dtype, device, block_size)
    q = torch.randn(count * queries, shape.q_heads, dim, device=device).to(dtype)
    query_start = (torch.arange(count + 1, device=device) * queries).int()
    kv_bytes = 2 * count * length * shape.kv_heads * dim * cache_dtype.itemsize
    pairs = count * (queries * context + queries * (queries + 1) / 2)

    def run(kernels: Any, i: int) -> tuple[Tensor, ...]:
        keys, values = history.caches[i]
        return (
            kernels.paged_attention(
                q, keys, values, history.tables, query_start, history.seq_lens, scale=dim**-0.5, **history.scales
            ),
        )

    peer = None
    if context == 0 and cache_dtype == dtype and device.type == "cuda":
        k, v = history.contiguous(0, dtype)
        rows = q.view(count, queries, shape.q_heads, dim).transpose(1, 2).contiguous()

        def peer(i: int) -> Tensor:
            return F.scaled_dot_product_attention(rows, k, v, is_causal=True, enable_gqa=True)

    return Case(
        _label("paged_attention", shape.name, f"{count}x{queries}+{context} p{block_size}", dtype, "kv", cache_dtype),
        1, kv_bytes + 2 * q.numel() * dtype.itemsize, lambda i: run(fused, i), lambda i: run(reference, i), 1e-2,
        flops=4 * pairs * shape.q_heads * dim, peer=peer, peer_name="torch SDPA, contiguous",
    )  # fmt: skip


def decode_case(
    shape: Shape, sequences: int, context: int, queries: int, dtype: torch.dtype, cache_dtype: torch.dtype,
    device: torch.device, block_size: int = BLOCK_SIZE, splits: int | None = None,
) -> Case:  # fmt: skip
    dim = shape.head_dim
    kv_bytes = 2 * sequences * context * shape.kv_heads * dim * cache_dtype.itemsize
    n = _sets(kv_bytes, 32)
    history = PagedHistory(shape, sequences, context, n, cache_dtype, device, block_size)
    q = torch.randn(sequences * queries, shape.q_heads, dim, device=device).to(dtype)
    workspace = DecodeWorkspace.allocate(
        device, sequences, shape.q_heads, shape.kv_heads, dim, queries=queries, splits=splits
    )

    def run(kernels: Any, i: int) -> tuple[Tensor, ...]:
        keys, values = history.caches[i]
        return (
            kernels.paged_decode(
                q,
                keys,
                values,
                history.tables,
                history.seq_lens,
                workspace,
                scale=dim**-0.5,
                splits=splits,
                **history.scales,
            ),
        )

    notes = [f"{queries}q p{block_size}"] + ([f"s{splits}"] if splits else [])
    peer = None
    if queries == 1 and cache_dtype == dtype and device.type == "cuda":
        pairs = [history.contiguous(i, dtype) for i in range(n)]
        rows = q[:, :, None]

        def peer(i: int) -> Tensor:
            return F.scaled_dot_product_attention(rows, *pairs[i], enable_gqa=True)

    return Case(
        _label("paged_decode", shape.name, f"{sequences}x{context}", *notes, dtype, "kv", cache_dtype),
        n, kv_bytes + 2 * q.numel() * dtype.itemsize, lambda i: run(fused, i), lambda i: run(reference, i), 1e-2,
        flops=4 * sequences * queries * context * shape.q_heads * dim, peer=peer, peer_name="torch SDPA, contiguous",
    )  # fmt: skip


def shared_case(
    shape: Shape, sequences: int, prefix: int, own: int, dtype: torch.dtype, device: torch.device
) -> Case:  # fmt: skip
    """Decode over keys most of which all sequences share; its bytes count them once."""
    dim = shape.head_dim
    history = PagedHistory(shape, sequences, prefix + own, 1, dtype, device)
    history.tables[:, : prefix // BLOCK_SIZE] = history.tables[:1, : prefix // BLOCK_SIZE]
    q = torch.randn(sequences, shape.q_heads, dim, device=device).to(dtype)
    workspace = DecodeWorkspace.allocate(device, sequences, shape.q_heads, shape.kv_heads, dim)
    length = torch.tensor([prefix], dtype=torch.int32, device=device)
    shared = SharedPrefix.allocate(length, sequences, shape.q_heads, dim)
    keys, values = history.caches[0]
    arguments = (q, keys, values, history.tables, history.seq_lens, workspace)
    return Case(
        _label("paged_decode shared", shape.name, f"{sequences}x({prefix}+{own})", dtype), 1,
        2 * (prefix + sequences * own) * shape.kv_heads * dim * dtype.itemsize + 2 * q.numel() * dtype.itemsize,
        lambda _: (fused.paged_decode(*arguments, scale=dim**-0.5, shared=shared),),
        lambda _: (reference.paged_decode(*arguments, scale=dim**-0.5),), 1e-2,
        flops=4 * sequences * (prefix + own) * shape.q_heads * dim,
        peer=lambda _: fused.paged_decode(*arguments, scale=dim**-0.5), peer_name="each sequence by itself",
    )  # fmt: skip


def row_cases(shape: Shape, dtype: torch.dtype, device: torch.device) -> Iterator[Case]:
    """One row through the products of a layer, in the model's dtype and in FP8."""
    q_width, kv_width = shape.q_heads * shape.head_dim, shape.kv_heads * shape.head_dim
    for outputs, width, kind in (
        (q_width + 2 * kv_width, shape.width, "norm"),
        (shape.width, q_width, "residual"),
        (shape.ff_width, shape.width, "norm gated"),
        (shape.width, shape.ff_width, "residual"),
    ):
        for fp8 in (False, True):
            yield row_case(outputs, width, kind, fp8, dtype, device)


def row_case(outputs: int, width: int, kind: str, fp8: bool, dtype: torch.dtype, device: torch.device) -> Case:
    both = outputs * (2 if "gated" in kind else 1)
    size = both * width * (1 if fp8 else dtype.itemsize)
    n = _sets(size, 32)
    x = torch.randn(1, width, device=device).to(dtype)
    weights = (torch.randn(n, both, width, device=device) / width**0.5).to(FP8 if fp8 else dtype)
    options: dict[str, Any] = {"gated": "gated" in kind}
    if fp8:
        options["scale"] = torch.rand(both, 1, device=device) + 0.5
    if "norm" in kind:
        options["norm"] = (torch.rand(width, device=device) + 0.5).to(dtype)
    if "residual" in kind:
        options["residual"] = torch.randn(1, outputs, device=device).to(dtype)
    peer = None if fp8 else lambda i: F.linear(x, weights[i])
    return Case(
        _label("skinny_linear", f"{outputs}x{width}", kind, dtype, "fp8 weight" if fp8 else ""), n, size,
        lambda i: (fused.skinny_linear(x, weights[i], **options),),
        lambda i: (reference.skinny_linear(x, weights[i], **options),), 1e-2,
        peer=peer, peer_name="torch linear alone",
    )  # fmt: skip


def sampling_cases(shape: Shape, rows: int, device: torch.device) -> Iterator[Case]:
    vocab = shape.vocab
    size = rows * vocab * 4
    n = _sets(size)
    logits = 3 * torch.randn(n, rows, vocab, device=device)
    temperature = torch.full((rows,), 0.7, device=device)
    seeds, positions = torch.arange(rows, device=device), torch.arange(rows, device=device) + 100
    top_k = torch.full((rows,), 50, dtype=torch.int32, device=device)
    top_p, min_p = torch.full((rows,), 0.9, device=device), torch.full((rows,), 0.05, device=device)
    off_k, off = torch.zeros_like(top_k), torch.ones_like(top_p)
    tokens = torch.randint(0, vocab, (rows, 20), device=device)
    table_rows = torch.arange(rows, dtype=torch.int32, device=device)
    bits = torch.randint(-(2**31), 2**31 - 1, (rows, (vocab + 31) // 32), dtype=torch.int32, device=device)
    counts = torch.randint(0, 2, (rows, vocab), dtype=torch.int32, device=device)
    for name, heat in (("sample", temperature), ("sample greedy", torch.zeros_like(temperature))):
        yield Case(
            _label(name, rows, vocab), n, size,
            lambda i, heat=heat: (fused.sample(logits[i], heat, seeds, positions),),
            lambda i, heat=heat: (reference.sample(logits[i], heat, seeds, positions),), 0.01,
            peer=(lambda i: logits[i].argmax(-1)) if name == "sample greedy"
            else (lambda i: torch.multinomial((logits[i] / temperature[:, None]).softmax(-1), 1)),
            peer_name="torch argmax" if name == "sample greedy" else "torch softmax, multinomial",
        )  # fmt: skip
    for name, options in (
        ("top-k", (top_k, off, 0 * off)),
        ("top-p", (off_k, top_p, 0 * off)),
        ("all", (top_k, top_p, min_p)),
    ):
        yield Case(
            _label("sampling_threshold", name, rows, vocab), n, size,
            lambda i, options=options: (fused.sampling_threshold(logits[i], temperature, *options),),
            lambda i, options=options: (reference.sampling_threshold(logits[i], temperature, *options),), 2.1 / vocab,
            seen=lambda outputs: (logits[0] >= outputs[0][:, None],),  # the tokens kept, not the bound itself
            peer=lambda i: logits[i].sort(-1, descending=True), peer_name="torch sort",
        )  # fmt: skip
    yield Case(
        _label("token_logprobs", rows, vocab), n, size, lambda i: (fused.token_logprobs(logits[i], tokens),),
        lambda i: (reference.token_logprobs(logits[i], tokens),), 1e-5,
        peer=lambda i: logits[i].log_softmax(-1), peer_name="torch log_softmax",
    )  # fmt: skip

    def masked(kernels: Any, i: int) -> tuple[Tensor, ...]:
        out = logits[i].clone()
        kernels.apply_bitmask(out, bits, table_rows)
        return (out,)

    def penalised(kernels: Any, i: int) -> tuple[Tensor, ...]:
        out = logits[i].clone()
        kernels.apply_penalties(out, table_rows, bits, counts, off + 0.1, off * 0.5, off * 0.25)
        return (out,)

    def counted(kernels: Any, into: Tensor) -> tuple[Tensor, ...]:
        kernels.count_outputs(into, table_rows, tokens[:, 0].contiguous())
        return (into,)

    def marked(kernels: Any) -> tuple[Tensor, ...]:
        into = torch.zeros_like(bits)
        kernels.mark_prompt(into, rows - 1, tokens.flatten(), vocab)
        return (into,)

    other_counts = counts.clone()
    yield Case(
        _label("count_outputs", rows, vocab), 1, rows * 20,
        lambda _: counted(fused, counts), lambda _: counted(reference, other_counts), 0.0,
    )  # fmt: skip
    yield Case(
        _label("zeros, mark_prompt", rows, vocab), 1, tokens.numel() * 8 + bits.numel() * 4,
        lambda _: marked(fused), lambda _: marked(reference), 0.0,
    )  # fmt: skip
    yield Case(
        _label("clone, apply_bitmask", rows, vocab), n, 3 * size + bits.numel() * 4,
        lambda i: masked(fused, i), lambda i: masked(reference, i), 0.0,
    )  # fmt: skip
    yield Case(
        _label("clone, apply_penalties", rows, vocab), n, 5 * size + bits.numel() * 4,
        lambda i: penalised(fused, i), lambda i: penalised(reference, i), 1e-6,
    )  # fmt: skip


def step_cases(sequences: int, device: torch.device) -> Iterator[Case]:
    max_len = 2048
    state = RowState.allocate(sequences, max_len, BLOCK_SIZE, device)
    state.tokens.random_(0, 100_000)
    state.computed.fill_(1000)
    state.known.fill_(1001)
    state.block_tables.copy_(torch.arange(state.block_tables.numel(), device=device).view_as(state.block_tables))
    rows = torch.arange(sequences, dtype=torch.int32, device=device)
    query_start = torch.arange(sequences + 1, dtype=torch.int32, device=device)
    made = StepInputs.allocate(sequences, sequences, max_len // BLOCK_SIZE, device)
    other = StepInputs.allocate(sequences, sequences, max_len // BLOCK_SIZE, device)
    sampled = torch.arange(sequences, device=device)

    def prepare(kernels: Any, inputs: StepInputs) -> tuple[Tensor, ...]:
        kernels.prepare_step(rows, query_start, state, BLOCK_SIZE, inputs)
        return inputs.token_ids, inputs.positions, inputs.slots, inputs.seq_lens, inputs.block_tables, inputs.last

    def commit(kernels: Any, own: RowState) -> tuple[Tensor, ...]:
        kernels.commit_step(rows, query_start, sampled, own)
        return own.tokens, own.known, own.computed

    wanted = SamplingRows(
        torch.rand(sequences, device=device), torch.arange(sequences, device=device),
        torch.arange(sequences, dtype=torch.int32, device=device), torch.rand(sequences, device=device),
        torch.rand(sequences, device=device),
    )  # fmt: skip

    def gather(kernels: Any, draws: Draws) -> tuple[Tensor, ...]:
        kernels.gather_draws(rows, state.known, wanted, draws)
        return draws.temperature, draws.seeds, draws.top_k, draws.top_p, draws.min_p, draws.positions

    memory = torch.zeros(2, 1 << 20, dtype=torch.int32, device=device)
    segments = torch.arange(64, device=device)
    described = torch.stack((segments * 5000, 7 + segments * 20, 192 + segments), 1).flatten()
    packed = torch.cat((described, torch.arange(4096, device=device))).int()

    def write(kernels: Any, into: Tensor) -> tuple[Tensor, ...]:
        kernels.write_segments(into, packed, 64)
        return (into,)

    yield Case(
        _label("gather_draws", sequences), 1, sequences * 60,
        lambda _: gather(fused, Draws.allocate(sequences, device)),
        lambda _: gather(reference, Draws.allocate(sequences, device)), 0.0,
    )  # fmt: skip
    yield Case(
        _label("write_segments", 64), 1, 8 * len(packed), lambda _: write(fused, memory[0]),
        lambda _: write(reference, memory[1]), 0.0,
    )  # fmt: skip
    size = sequences * (3 * 8 + 8 + 2 * 4 * (1001 // BLOCK_SIZE))
    yield Case(
        _label("prepare_step", sequences), 1, size,
        lambda _: prepare(fused, made), lambda _: prepare(reference, other), 0.0,
    )  # fmt: skip
    copies = [
        RowState(*(x.clone() for x in (state.tokens, state.known, state.computed, state.block_tables))) for _ in "ab"
    ]
    yield Case(
        _label("commit_step", sequences), 1, sequences * 28,
        lambda _: commit(fused, copies[0]), lambda _: commit(reference, copies[1]), 0.0,
    )  # fmt: skip
