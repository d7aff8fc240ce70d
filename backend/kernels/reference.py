"""The torch twin of every kernel: the CPU path, and the oracle of the kernels' tests.

Same names, arguments and results as the kernels (see `interface` for the shapes), accumulating in float32; plain rather
than fast, except attention, which goes through torch's own fused form.
"""

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from backend.kernels.attention.workspace import DecodeWorkspace, SharedPrefix
from backend.kernels.launching.launch import FP8, FP8_MAX
from backend.kernels.sampling.row_state import Draws, MarkRows, RowState, SamplingRows, StepInputs
from backend.marks.scheme import TOKEN_BYTES, MarkKey, marked_context, nonce, random_words

KEY_WORDS = 8


def quantize_rows(x: Tensor) -> tuple[Tensor, Tensor]:
    values = x.float()
    scale = (values.abs().amax(-1, keepdim=True) / FP8_MAX).clamp_min(1e-12)
    return (values / scale).clamp(-FP8_MAX, FP8_MAX).to(FP8), scale


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return _normalised(x.float(), weight, eps).to(x.dtype)


def add_rms_norm(
    x: Tensor, residual: Tensor, weight: Tensor, eps: float, *, scales: tuple[Tensor, Tensor] | None = None
) -> tuple[Tensor, Tensor]:
    h = _scaled(_summed(x), scales) + residual.float()
    return _normalised(h, weight, eps).to(residual.dtype), h.to(residual.dtype)


def rms_norm_fp8(x: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    return quantize_rows(_normalised(x.float(), weight, eps))


def add_rms_norm_fp8(
    x: Tensor, residual: Tensor, weight: Tensor, eps: float, *, scales: tuple[Tensor, Tensor] | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    h = _scaled(_summed(x), scales) + residual.float()
    return *quantize_rows(_normalised(h, weight, eps)), h.to(residual.dtype)


def _summed(x: Tensor) -> Tensor:
    return x.sum(0) if x.dim() == 3 else x


def _scaled(x: Tensor, scales: tuple[Tensor, Tensor] | None) -> Tensor:
    return x.float() if scales is None else x.float() * (scales[0] * scales[1].t())


def _normalised(h: Tensor, weight: Tensor, eps: float) -> Tensor:
    return h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + eps) * weight.float()


def fp8_linear(x: Tensor, x_scale: Tensor, weight: Tensor, weight_scale: Tensor) -> Tensor:
    return ((x.float() * x_scale) @ (weight.float() * weight_scale).t()).bfloat16()


def fp8_product(x: Tensor, weight: Tensor, one: Tensor) -> Tensor:
    return (x.float() @ weight.float().t() * one).bfloat16()


def invariant_linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    return F.linear(x, weight, bias)


def invariant_parts(x: Tensor, weight: Tensor, parts: int) -> Tensor:
    pairs = zip(x.chunk(parts, 1), weight.chunk(parts, 1), strict=True)
    return torch.stack([F.linear(a.float(), b.float()) for a, b in pairs])


def skinny_linear(
    x: Tensor,
    weight: Tensor,
    *,
    scale: Tensor | None = None,
    bias: Tensor | None = None,
    norm: Tensor | None = None,
    eps: float = 1e-6,
    residual: Tensor | None = None,
    gated: bool = False,
) -> Tensor:
    wide = x.float() if norm is None else _normalised(x.float(), norm, eps)
    y = wide @ (weight.float() if scale is None else weight.float() * scale).t()
    if bias is not None:
        y = y + bias.float()
    if gated:
        y = _gated(y)
    if residual is not None:
        y = y + residual.float()
    return y.to(x.dtype)


def narrow_linear(
    x: Tensor,
    weight: Tensor,
    *,
    scales: tuple[Tensor, Tensor] | None = None,
    bias: Tensor | None = None,
    gated: bool = False,
) -> Tensor:
    y = _scaled(F.linear(x.float(), weight.float()), scales) + (0.0 if bias is None else bias.float())
    return (_gated(y) if gated else y).to(torch.bfloat16 if x.dtype == FP8 else x.dtype)


def narrow_parts(x: Tensor, weight: Tensor, *, scales: tuple[Tensor, Tensor] | None = None) -> Tensor:
    return _scaled(F.linear(x.float(), weight.float()), scales)[None]


def silu_mul(gate_up: Tensor) -> Tensor:
    return _gated(gate_up).to(gate_up.dtype)


def silu_mul_fp8(gate_up: Tensor) -> tuple[Tensor, Tensor]:
    return quantize_rows(_gated(gate_up))


def _gated(gate_up: Tensor) -> Tensor:
    gate, up = gate_up.float().chunk(2, -1)
    return F.silu(gate) * up


def rotary_kv(
    qkv: Tensor,
    positions: Tensor,
    cos_sin: Tensor,
    slots: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    *,
    q_norm: Tensor | None = None,
    k_norm: Tensor | None = None,
    eps: float = 1e-6,
    k_scale: Tensor | None = None,
    v_scale: Tensor | None = None,
    keys_in_place: bool = False,
    scales: tuple[Tensor, Tensor] | None = None,
    dtype: torch.dtype | None = None,
) -> Tensor:
    _, block_size, kv_heads, head_dim = key_cache.shape
    found = qkv.sum(0) if qkv.dim() == 3 else _scaled(qkv, scales)
    heads = found.view(len(found), -1, head_dim)
    q, k, v = heads[:, : -2 * kv_heads], heads[:, -2 * kv_heads : -kv_heads], heads[:, -kv_heads:]
    if q_norm is not None and k_norm is not None:
        q, k = _normalised(q, q_norm, eps), _normalised(k, k_norm, eps)
    cos, sin = cos_sin[positions.long()][:, None].chunk(2, -1)
    q, k = _rotated(q, cos, sin), _rotated(k, cos, sin)
    if keys_in_place:
        qkv.view(len(qkv), -1, head_dim)[:, -2 * kv_heads : -kv_heads] = k.to(qkv.dtype)
    live = slots >= 0
    block, offset = slots[live] // block_size, slots[live] % block_size
    for cache, values, scale in ((key_cache, k, k_scale), (value_cache, v, v_scale)):
        written = values[live] if scale is None else (values[live] / scale[:, None]).clamp(-FP8_MAX, FP8_MAX)
        cache[block, offset] = written.to(cache.dtype)
    return q.to(dtype or qkv.dtype)


def _rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    half = cos.shape[-1]
    lo, hi, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
    return torch.cat((lo * cos - hi * sin, hi * cos + lo * sin, rest), -1)


def paged_attention(
    q: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    block_tables: Tensor,
    query_start: Tensor,
    seq_lens: Tensor,
    *,
    scale: float,
    window: int | None = None,
    cap: float | None = None,
    k_scale: Tensor | None = None,
    v_scale: Tensor | None = None,
    batch_invariant: bool = False,
    sinks: Tensor | None = None,
    out: Tensor | None = None,
) -> Tensor:
    out = torch.zeros_like(q) if out is None else out.zero_()
    bounds = query_start.tolist()
    for table, begin, end, length in zip(block_tables, bounds[:-1], bounds[1:], seq_lens.tolist(), strict=True):
        if end == begin:
            continue
        if window is not None:  # blocks that it has passed may be another sequence's by now
            passed = max(0, length - (end - begin) - window + 1) // key_cache.shape[1]
            table, length = table[passed:], length - passed * key_cache.shape[1]
        k = _gathered(key_cache, table, length, k_scale)
        v = _gathered(value_cache, table, length, v_scale)
        position = torch.arange(length - (end - begin), length, device=q.device)[:, None]
        key = torch.arange(length, device=q.device)[None, :]
        visible = (key <= position) if window is None else (key <= position) & (key > position - window)
        rows = q[begin:end].float().transpose(0, 1)[None]
        if cap is None and sinks is None:
            mixed = F.scaled_dot_product_attention(rows, k, v, attn_mask=visible, scale=scale, enable_gqa=True)
        else:
            mixed = _capped(rows, k, v, visible, scale, cap, sinks)
        out[begin:end] = mixed[0].transpose(0, 1).to(q.dtype)
    return out


def dense_attention(q: Tensor, k: Tensor, v: Tensor, *, scale: float, causal: bool) -> tuple[Tensor, Tensor]:
    k, v = (part.float().repeat_interleave(q.shape[1] // part.shape[1], 1) for part in (k, v))
    scores = q.float() @ k.transpose(-1, -2) * scale
    if causal:
        scores = scores.masked_fill(~torch.ones_like(scores[0, 0], dtype=torch.bool).tril(), float("-inf"))
    return (scores.softmax(-1) @ v).to(q.dtype), scores.logsumexp(-1)[0]


def join_parts(first: Tensor, first_sum: Tensor, second: Tensor, second_sum: Tensor, out: Tensor) -> None:
    rows = len(first)
    sums = torch.stack((first_sum[:, :rows], second_sum[:, :rows]))
    shares = sums.softmax(0).transpose(1, 2)[..., None]
    out.copy_(first.float() * shares[0] + second.float() * shares[1])
    first_sum[:, :rows] = sums.logsumexp(0)


def _capped(
    q: Tensor, k: Tensor, v: Tensor, visible: Tensor, scale: float, cap: float | None, sinks: Tensor | None
) -> Tensor:
    """The library has neither cap nor sinks. q: [1, heads, queries, head_dim]; k, v: [1, kv_heads, keys, head_dim];
    sinks: [heads]."""
    k, v = (part.repeat_interleave(q.shape[1] // part.shape[1], 1) for part in (k, v))
    scores = q @ k.transpose(-1, -2) * scale
    if cap is not None:
        scores = torch.tanh(scores / cap) * cap
    scores = scores.masked_fill(~visible, float("-inf"))
    if sinks is None:
        return scores.softmax(-1) @ v
    sink = sinks.to(scores.dtype)[None, :, None, None].expand(*scores.shape[:3], 1)
    return torch.cat((scores, sink), -1).softmax(-1)[..., :-1] @ v


def _gathered(cache: Tensor, table: Tensor, length: int, scale: Tensor | None) -> Tensor:
    """float32 [1, kv_heads, length, head_dim] of one sequence."""
    block_size = cache.shape[1]
    blocks = table[: (length + block_size - 1) // block_size].long()
    values = cache[blocks].flatten(0, 1)[:length].float()
    if scale is not None:
        values = values * scale[:, None]
    return values.transpose(0, 1)[None]


def paged_decode(
    q: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    block_tables: Tensor,
    seq_lens: Tensor,
    workspace: DecodeWorkspace,
    *,
    scale: float,
    window: int | None = None,
    cap: float | None = None,
    k_scale: Tensor | None = None,
    v_scale: Tensor | None = None,
    splits: int | None = None,
    shared: SharedPrefix | None = None,
    sinks: Tensor | None = None,
    out: Tensor | None = None,
) -> Tensor:
    # `splits` and `shared` say how, not what
    queries = q.shape[0] // len(seq_lens)
    live = (seq_lens > 0).int() * queries
    query_start = torch.cat((live.new_zeros(1), live.cumsum(0, dtype=torch.int32)))
    rows = (seq_lens > 0).repeat_interleave(queries)
    out = torch.zeros_like(q) if out is None else out.zero_()
    out[rows] = paged_attention(
        q[rows],
        key_cache,
        value_cache,
        block_tables,
        query_start,
        seq_lens,
        scale=scale,
        window=window,
        cap=cap,
        k_scale=k_scale,
        v_scale=v_scale,
        sinks=sinks,
    )
    return out


def sample(
    logits: Tensor,
    temperature: Tensor,
    seeds: Tensor,
    positions: Tensor,
    threshold: Tensor | None = None,
    marks: Tensor | None = None,
) -> Tensor:
    scores = logits.float()
    if threshold is not None:
        scores = scores.masked_fill(~(scores >= threshold[:, None]), float("-inf"))
    noisy = scores / temperature.clamp_min(torch.finfo(torch.float32).tiny)[:, None]
    noise = gumbel_noise(seeds, positions, logits.shape[1])
    if marks is not None:
        for row in marks[:, 0].nonzero().flatten().tolist():
            noise[row] = _gumbel(_mark_words(marks[row], logits.shape[1]).to(noise.device))
    noisy = noisy + noise
    scores = torch.where(temperature[:, None] > 0, noisy, scores).nan_to_num(float("-inf"), float("inf"), float("-inf"))
    known = logits.float().amax(-1).isfinite()  # NaN wins amax
    return torch.where(known, scores.argmax(-1), -1)


def gumbel_noise(seeds: Tensor, positions: Tensor, vocab: int) -> Tensor:
    """[rows, vocab] float32: the noise that the kernel adds for these seeds and positions (see `sampling`)."""
    quarter = (vocab + 3) // 4
    counter = torch.arange(quarter, device=seeds.device).expand(len(seeds), -1)
    words = _philox(seeds[:, None], counter, positions[:, None].long() & 0xFFFFFFFF)
    return _gumbel(torch.cat(words, -1)[:, :vocab])


def _mark_words(mark: Tensor, vocab: int) -> Tensor:
    """[vocab] int64: the random words of a marked row. mark: [MARK_WORDS]."""
    packed = mark[1:].cpu().numpy().tobytes()
    nonce = packed[4 * KEY_WORDS :]
    context = [int.from_bytes(nonce[i : i + TOKEN_BYTES], "little") for i in range(0, len(nonce), TOKEN_BYTES)]
    words = random_words(MarkKey(packed[: 4 * KEY_WORDS]), context, vocab)
    return torch.from_numpy(words.astype(np.int64))


def _gumbel(random: Tensor) -> Tensor:
    u = ((random.float() + 0.5) * 2.0**-32).clamp_max(0.99999994)
    return -torch.log(torch.where(u < 1e-3, u * (1 + 0.5 * u), -torch.log(1 - u)))


def _philox(seed: Tensor, c0: Tensor, c1: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Philox 4x32-10 of counter (c0, c1, 0, 0) and a 64-bit key: four words of 32 bits, held in int64."""
    low = 0xFFFFFFFF
    k0, k1 = seed & low, (seed >> 32) & low
    c2 = c3 = torch.zeros_like(c0)
    for _ in range(10):
        # a product of two words wraps in int64, but keeps its 64 bits
        even, odd = c0 * 0xD2511F53, c2 * 0xCD9E8D57
        c0, c1, c2, c3 = ((odd >> 32) & low) ^ c1 ^ k0, odd & low, ((even >> 32) & low) ^ c3 ^ k1, even & low
        k0, k1 = (k0 + 0x9E3779B9) & low, (k1 + 0xBB67AE85) & low
    return c0, c1, c2, c3


def sampling_threshold(logits: Tensor, temperature: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor) -> Tensor:
    vocab = logits.shape[1]
    ordered = logits.float().nan_to_num(float("-inf"), float("inf"), float("-inf")).sort(-1, descending=True).values
    threshold = torch.full_like(temperature, float("-inf"))
    by_k = (top_k > 0) & (top_k < vocab)
    kth = ordered.gather(1, (top_k.long() - 1).clamp(0, vocab - 1)[:, None])[:, 0]
    threshold = torch.where(by_k, kth, threshold)
    mass = ((ordered - ordered[:, :1]) / temperature.clamp_min(1e-30)[:, None]).exp()
    mass = mass.masked_fill(ordered < threshold[:, None], 0).cumsum(-1)
    enough = (mass < top_p[:, None] * mass[:, -1:]).sum(-1).clamp_max(vocab - 1)
    threshold = torch.where(top_p < 1, ordered.gather(1, enough[:, None])[:, 0], threshold)
    by_min_p = torch.where(min_p > 0, ordered[:, 0] + temperature * min_p.log(), float("-inf"))
    return torch.where(temperature > 0, torch.maximum(threshold, by_min_p), float("-inf"))


def apply_penalties(
    logits: Tensor,
    rows: Tensor,
    prompt_bits: Tensor,
    output_counts: Tensor,
    repetition: Tensor,
    frequency: Tensor,
    presence: Tensor,
) -> None:
    live = rows >= 0
    row = rows[live].long()
    x, counts = logits[live].float(), output_counts[row]
    seen = (counts > 0) | _bits(prompt_bits[row], logits.shape[1])
    factor = repetition[live, None]
    x = torch.where(seen, torch.where(x > 0, x / factor, x * factor), x)
    x -= frequency[live, None] * counts + presence[live, None] * (counts > 0)
    logits[live] = x.to(logits.dtype)


def _bits(words: Tensor, vocab: int) -> Tensor:
    shifts = torch.arange(32, dtype=torch.int32, device=words.device)
    return ((words[..., None] >> shifts) & 1).bool().flatten(-2)[..., :vocab]


def count_outputs(output_counts: Tensor, rows: Tensor, tokens: Tensor) -> None:
    known = (rows >= 0) & (tokens >= 0) & (tokens < output_counts.shape[1])
    one = torch.ones((), dtype=output_counts.dtype, device=output_counts.device)
    output_counts.index_put_((rows[known].long(), tokens[known]), one, accumulate=True)


def mark_prompt(prompt_bits: Tensor, row: int, tokens: Tensor, vocab: int) -> None:
    seen = torch.zeros(prompt_bits.shape[1] * 32, dtype=torch.int32, device=prompt_bits.device)
    seen[tokens[(tokens >= 0) & (tokens < vocab)].long()] = 1
    shifts = torch.arange(32, dtype=torch.int32, device=prompt_bits.device)
    prompt_bits[row] |= (seen.view(-1, 32) << shifts).sum(-1, dtype=torch.int32)


def apply_bitmask(logits: Tensor, bits: Tensor, rows: Tensor) -> None:
    live = rows >= 0
    row = rows[live].long()
    logits[row] = logits[row].masked_fill(~_bits(bits[live], logits.shape[1]), float("-inf"))


def token_logprobs(logits: Tensor, tokens: Tensor) -> Tensor:
    known = (tokens >= 0) & (tokens < logits.shape[1])
    chosen = logits.float().log_softmax(-1).gather(1, tokens.where(known, 0))
    return chosen.masked_fill(~known, float("-inf"))


def prepare_step(rows: Tensor, query_start: Tensor, state: RowState, block_size: int, inputs: StepInputs) -> None:
    inputs.token_ids.zero_()
    inputs.positions.zero_()
    inputs.slots.fill_(-1)
    bounds = query_start.tolist()
    for sequence, (row, begin, end) in enumerate(zip(rows.tolist(), bounds[:-1], bounds[1:], strict=True)):
        inputs.last[sequence] = max(end - 1, 0)
        if row < 0:
            inputs.seq_lens[sequence] = 0
            continue
        computed = int(state.computed[row])
        length = computed + end - begin
        position = torch.arange(computed, length, device=rows.device)
        table = state.block_tables[row]
        blocks = -(-length // block_size)
        inputs.token_ids[begin:end] = state.tokens[row, computed:length].long()
        inputs.positions[begin:end] = position
        inputs.slots[begin:end] = table[position // block_size].long() * block_size + position % block_size
        inputs.seq_lens[sequence] = length
        inputs.block_tables[sequence, :blocks] = table[:blocks]


def commit_step(rows: Tensor, query_start: Tensor, sampled: Tensor, state: RowState) -> None:
    live = rows >= 0
    row = rows[live].long()
    queries = query_start.diff()[live]
    state.computed[row] += queries
    known = state.known[row]
    grows = (queries > 0) & (state.computed[row] == known) & (known < state.tokens.shape[1])
    state.tokens[row[grows], known[grows].long()] = sampled[live][grows].clamp_min(0).int()
    state.known[row[grows]] += 1


def gather_draws(rows: Tensor, known: Tensor, wanted: SamplingRows, draws: Draws) -> None:
    row = rows.clamp_min(0).long()
    for name, idle in (("temperature", 0.0), ("seeds", 0), ("top_k", 0), ("top_p", 1.0), ("min_p", 0.0)):
        getattr(draws, name).copy_(getattr(wanted, name)[row].masked_fill(rows < 0, idle))
    draws.positions.copy_(known[row].masked_fill(rows < 0, 0))


def largest_activations(states: Tensor, most: int, out: Tensor | None = None) -> Tensor:
    bits = states.to(torch.bfloat16).view(torch.int16).long() & 0xFFFF
    last = states.shape[1] - 1
    order = (bits & 0x7FFF) << 16 | last - torch.arange(last + 1, device=states.device)  # of equals, the lower place
    places = (last - (order.topk(min(most, last + 1)).values & 0xFFFF)).sort().values
    found = (bits.gather(1, places) << 16 | places).int()
    return found if out is None else out.copy_(found)


def gather_marks(rows: Tensor, positions: Tensor, tokens: Tensor, wanted: MarkRows, marks: Tensor) -> None:
    marks.zero_()
    for sequence, (row, position) in enumerate(zip(rows.tolist(), positions.tolist(), strict=True)):
        start = int(wanted.start[row]) if row >= 0 else 0
        context = marked_context(tokens[row, :position].tolist(), start, position) if start else None
        if context is not None:
            marks[sequence, 0] = 1
            marks[sequence, 1 : 1 + KEY_WORDS] = wanted.keys[row]
            packed = torch.frombuffer(bytearray(nonce(context)), dtype=torch.int32)
            marks[sequence, 1 + KEY_WORDS :] = packed.to(marks.device)


def write_segments(memory: Tensor, packed: Tensor, segments: int) -> None:
    for target, length, source in packed[: 3 * segments].view(-1, 3).tolist():
        memory[target : target + length] = packed[source : source + length]
