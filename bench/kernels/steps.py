"""Cases of what a step does around the layers: sampling, its inputs, its bookkeeping."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from backend.kernels import fused, reference
from backend.kernels.sampling.row_state import MARK_WORDS, Draws, MarkRows, RowState, SamplingRows, StepInputs
from bench.kernels.case import BLOCK_SIZE, Case, Shape, label, sets_of


def sampling_cases(shape: Shape, rows: int, device: torch.device) -> Iterator[Case]:
    vocab = shape.vocab
    size = rows * vocab * 4
    n = sets_of(size)
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
            label(name, rows, vocab),
            n,
            size,
            lambda i, heat=heat: (fused.sample(logits[i], heat, seeds, positions),),
            lambda i, heat=heat: (reference.sample(logits[i], heat, seeds, positions),),
            0.01,
            peer=(lambda i: logits[i].argmax(-1))
            if name == "sample greedy"
            else (lambda i: torch.multinomial((logits[i] / temperature[:, None]).softmax(-1), 1)),
            peer_name="torch argmax" if name == "sample greedy" else "torch softmax, multinomial",
        )
    marks = torch.randint(-(2**31), 2**31 - 1, (rows, MARK_WORDS), dtype=torch.int32, device=device)
    marks[:, 0] = 1
    yield Case(
        label("sample marked", rows, vocab),
        n,
        size,
        lambda i: (fused.sample(logits[i], temperature, seeds, positions, None, marks),),
        lambda i: (reference.sample(logits[i], temperature, seeds, positions, None, marks),),
        0.01,
        peer=lambda i: fused.sample(logits[i], temperature, seeds, positions),
        peer_name="sample without marks",
    )
    for name, options in (
        ("top-k", (top_k, off, 0 * off)),
        ("top-p", (off_k, top_p, 0 * off)),
        ("all", (top_k, top_p, min_p)),
    ):
        yield Case(
            label("sampling_threshold", name, rows, vocab),
            n,
            size,
            lambda i, options=options: (fused.sampling_threshold(logits[i], temperature, *options),),
            lambda i, options=options: (reference.sampling_threshold(logits[i], temperature, *options),),
            2.1 / vocab,
            seen=lambda outputs: (logits[0] >= outputs[0][:, None],),  # the tokens kept, not the bound itself
            peer=lambda i: logits[i].sort(-1, descending=True),
            peer_name="torch sort",
        )
    yield Case(
        label("token_logprobs", rows, vocab),
        n,
        size,
        lambda i: (fused.token_logprobs(logits[i], tokens),),
        lambda i: (reference.token_logprobs(logits[i], tokens),),
        1e-5,
        peer=lambda i: logits[i].log_softmax(-1),
        peer_name="torch log_softmax",
    )

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
        label("count_outputs", rows, vocab),
        1,
        rows * 20,
        lambda _: counted(fused, counts),
        lambda _: counted(reference, other_counts),
        0.0,
    )
    yield Case(
        label("zeros, mark_prompt", rows, vocab),
        1,
        tokens.numel() * 8 + bits.numel() * 4,
        lambda _: marked(fused),
        lambda _: marked(reference),
        0.0,
    )
    yield Case(
        label("clone, apply_bitmask", rows, vocab),
        n,
        3 * size + bits.numel() * 4,
        lambda i: masked(fused, i),
        lambda i: masked(reference, i),
        0.0,
    )
    yield Case(
        label("clone, apply_penalties", rows, vocab),
        n,
        5 * size + bits.numel() * 4,
        lambda i: penalised(fused, i),
        lambda i: penalised(reference, i),
        1e-6,
    )


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
        torch.rand(sequences, device=device),
        torch.arange(sequences, device=device),
        torch.arange(sequences, dtype=torch.int32, device=device),
        torch.rand(sequences, device=device),
        torch.rand(sequences, device=device),
    )

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
        label("gather_draws", sequences),
        1,
        sequences * 60,
        lambda _: gather(fused, Draws.allocate(sequences, device)),
        lambda _: gather(reference, Draws.allocate(sequences, device)),
        0.0,
    )
    asked = MarkRows(
        torch.ones(sequences, dtype=torch.int32, device=device),
        torch.randint(0, 2**31 - 1, (sequences, 8), dtype=torch.int32, device=device),
    )
    drawn_at = torch.full((sequences,), 1000, dtype=torch.int32, device=device)
    marked = torch.zeros(2, sequences, MARK_WORDS, dtype=torch.int32, device=device)

    def gather_marks(kernels: Any, into: Tensor) -> tuple[Tensor, ...]:
        kernels.gather_marks(rows, drawn_at, state.tokens, asked, into)
        return (into[:, 0],)

    yield Case(
        label("gather_marks", sequences),
        1,
        sequences * 4000,
        lambda _: gather_marks(fused, marked[0]),
        lambda _: gather_marks(reference, marked[1]),
        0.0,
    )
    yield Case(
        label("write_segments", 64),
        1,
        8 * len(packed),
        lambda _: write(fused, memory[0]),
        lambda _: write(reference, memory[1]),
        0.0,
    )
    size = sequences * (3 * 8 + 8 + 2 * 4 * (1001 // BLOCK_SIZE))
    yield Case(
        label("prepare_step", sequences),
        1,
        size,
        lambda _: prepare(fused, made),
        lambda _: prepare(reference, other),
        0.0,
    )
    copies = [
        RowState(*(x.clone() for x in (state.tokens, state.known, state.computed, state.block_tables))) for _ in "ab"
    ]
    yield Case(
        label("commit_step", sequences),
        1,
        sequences * 28,
        lambda _: commit(fused, copies[0]),
        lambda _: commit(reference, copies[1]),
        0.0,
    )
