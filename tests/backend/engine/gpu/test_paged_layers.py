"""Every kind of row in one step attends to what float64 says it should."""

import pytest
import torch
from torch import Tensor

from backend.engine.gpu import paged_layers
from backend.engine.gpu.paged_layers import (
    DensePrompts,
    PagedLayers,
    ResumedPrompt,
    StepShape,
    dense_lengths,
    dense_prompts,
    is_resumed,
    resumed_prompts,
)
from backend.kernels.attention.workspace import DecodeWorkspace
from backend.kernels.interface import kernels_for
from backend.models.decoders.paged_decoder import PagedCache
from tests.backend.tiny import tiny_config

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
CONFIG = tiny_config(num_heads=4, num_kv_heads=2, head_dim=64, num_layers=1)
DTYPE, TOLERANCE = (torch.bfloat16, 1e-2) if DEVICE.type == "cuda" else (torch.float32, 1e-5)
BLOCK_SIZE = 16


class Step:
    """Sequences of (queries, total) tokens with their keys and values in a cache, and the rows of one step."""

    def __init__(self, lengths: list[tuple[int, int]], padding: int = 0, cache_dtype: torch.dtype = DTYPE) -> None:
        heads, kv_heads, dim = CONFIG.num_heads, CONFIG.num_kv_heads, CONFIG.head_dim
        rows = sum(queries for queries, _ in lengths) + padding
        self.lengths = lengths
        self.qkv = torch.randn(rows, (heads + 2 * kv_heads) * dim, device=DEVICE).to(DTYPE)
        self.q = self.qkv.view(rows, -1, dim)[:, :heads].contiguous()
        needed = [-(-total // BLOCK_SIZE) for _, total in lengths]
        order = torch.randperm(sum(needed))
        self.tables = torch.zeros(len(lengths), max(needed), dtype=torch.int32, device=DEVICE)
        pages = torch.zeros(2, 1, sum(needed), BLOCK_SIZE, kv_heads, dim, device=DEVICE, dtype=DTYPE)
        self.history: list[Tensor] = []
        row = 0
        for i, ((queries, total), count) in enumerate(zip(lengths, needed, strict=True)):
            blocks, order = order[:count].to(DEVICE), order[count:]
            self.tables[i, :count] = blocks.int()
            kv = torch.randn(2, total, kv_heads, dim, device=DEVICE).to(DTYPE)
            new = self.qkv[row : row + queries].view(queries, -1, dim)[:, heads:]
            kv[0, total - queries :], kv[1, total - queries :] = new[:, :kv_heads], new[:, kv_heads:]
            self.history.append(kv.double().cpu())
            padded = torch.zeros(2, count * BLOCK_SIZE, kv_heads, dim, device=DEVICE, dtype=DTYPE)
            padded[:, :total] = kv
            pages[:, 0, blocks] = padded.view(2, count, BLOCK_SIZE, kv_heads, dim)
            row += queries
        scales = None
        if cache_dtype != DTYPE:  # keys and values as the cache holds them are what exact attention is of
            scales = [torch.rand(1, kv_heads, device=DEVICE) * 0.02 + 0.01 for _ in range(2)]
            stored = [(pages[i].float() / scales[i][0][:, None]).to(cache_dtype) for i in range(2)]
            held = [(stored[i].double() * scales[i][0][:, None]).cpu()[0] for i in range(2)]
            for i, (queries, total) in enumerate(lengths):
                blocks, old = self.tables[i, : needed[i]].long().cpu(), total - queries
                for kv in range(2):
                    self.history[i][kv][:old] = held[kv][blocks].flatten(0, 1)[:old]
            self.cache = PagedCache(stored[0], stored[1], scales[0], scales[1])
        else:
            self.cache = PagedCache(pages[0], pages[1])
        self.seq_lens = torch.tensor([total for _, total in lengths], dtype=torch.int32, device=DEVICE)

    def attend(self, shape: StepShape) -> Tensor:
        chunks = [queries for queries, _ in self.lengths[shape.decodes :][: shape.chunks]]
        starts = torch.tensor([0, *chunks]).cumsum(0).int().to(DEVICE)
        workspace = DecodeWorkspace.allocate(DEVICE, 8, CONFIG.num_heads, CONFIG.num_kv_heads, CONFIG.head_dim)
        kernels = kernels_for(DEVICE)
        layers = PagedLayers(CONFIG, kernels, self.cache, workspace, shape, self.tables, self.seq_lens, starts)
        return layers(0, self.q, self.qkv)

    def exact(self) -> Tensor:
        out, row = [], 0
        for (queries, total), (k, v) in zip(self.lengths, self.history, strict=True):
            q = self.q[row : row + queries].double().cpu().transpose(0, 1)
            visible = torch.ones(queries, total, dtype=torch.bool).tril(total - queries)
            mixed = torch.nn.functional.scaled_dot_product_attention(
                q[None], k.transpose(0, 1)[None], v.transpose(0, 1)[None], attn_mask=visible, enable_gqa=True
            )
            out.append(mixed[0].transpose(0, 1).reshape(queries, -1))
            row += queries
        return torch.cat(out)


def assert_exact(step: Step, out: Tensor) -> None:
    exact = step.exact()
    found = out[: len(exact)].double().cpu()
    assert float((found - exact).norm() / exact.norm()) < TOLERANCE
    assert out.shape == (len(step.q), CONFIG.num_heads * CONFIG.head_dim)


def test_decodes_alone() -> None:
    step = Step([(1, 1), (1, 40), (1, 17)])
    assert_exact(step, step.attend(StepShape(3)))


def test_chunks_with_and_without_a_history_and_padding_behind_them() -> None:
    step = Step([(7, 30), (33, 33), (2, 20)], padding=9)
    assert_exact(step, step.attend(StepShape(0, chunks=3, chunk_rows=42)))


@pytest.mark.parametrize("spare", [0, 300])
def test_decodes_chunks_and_whole_prompts_in_one_step(spare: int) -> None:
    step = Step([(1, 25), (1, 9), (5, 60), (90, 90), (300, 300), (256, 256)], padding=spare)
    dense = (DensePrompts(97, 300, 512), DensePrompts(397, 256, 256))
    shape = StepShape(2, chunks=2, chunk_rows=95, dense=dense)
    assert_exact(step, step.attend(shape))


def test_a_prompt_runs_the_dense_kernel_over_what_follows_it_without_a_trace() -> None:
    step = Step([(10, 10)], padding=246)
    shape = StepShape(0, dense=(DensePrompts(0, 10, 256),))
    assert_exact(step, step.attend(shape))
    before = step.attend(shape)[:10].clone()
    step.qkv[10:], step.q[10:] = 1e3, 1e3
    assert torch.equal(step.attend(shape)[:10], before)


@pytest.mark.parametrize("cache_dtype", [DTYPE, torch.float8_e4m3fn], ids=str)
@pytest.mark.parametrize("part", [64, 96, 16384])
def test_a_part_of_a_prompt_is_joined_with_its_history_in_parts(
    part: int, cache_dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(paged_layers, "HISTORY_PART", part)
    step = Step([(90, 90 + 192), (40, 40 + 64), (30, 30)], padding=400, cache_dtype=cache_dtype)
    resumed = resumed_prompts(0, [(90, 192), (40, 64)])
    assert resumed == (ResumedPrompt(0, 90, 256, 192), ResumedPrompt(90, 40, 256, 64))
    shape = StepShape(0, resumed=resumed, dense=(DensePrompts(130, 30, 256),))
    assert (shape.tokens, shape.rows) == (160, 386)
    assert_exact(step, step.attend(shape))


def test_every_kind_of_row_in_one_step() -> None:
    step = Step([(1, 25), (1, 9), (5, 60), (70, 70 + 128), (300, 300)], padding=300)
    shape = StepShape(
        2, chunks=1, chunk_rows=5, resumed=resumed_prompts(7, [(70, 128)]), dense=(DensePrompts(77, 300, 512),)
    )
    assert_exact(step, step.attend(shape))
    assert PagedLayers(
        CONFIG,
        kernels_for(DEVICE),
        step.cache,
        None,
        shape,
        step.tables,
        step.seq_lens,
        step.seq_lens,  # type: ignore[arg-type]
    ).keys_in_place


def test_what_follows_a_part_of_a_prompt_leaves_no_trace() -> None:
    step = Step([(40, 40 + 64)], padding=216)
    shape = StepShape(0, resumed=resumed_prompts(0, [(40, 64)]))
    before = step.attend(shape)[:40].clone()
    step.qkv[40:], step.q[40:] = 1e3, 1e3
    assert torch.equal(step.attend(shape)[:40], before)


def test_a_part_of_a_prompt_takes_the_dense_kernel_if_it_and_its_history_are_long_and_the_latter_whole_steps() -> None:
    assert is_resumed(2048, 2048)
    assert is_resumed(1024, 120 * 1024)
    assert not is_resumed(2048, 2049)
    assert not is_resumed(2048, 2048 - 16)
    assert not is_resumed(1023, 120 * 1024)
    assert not is_resumed(1024, 1024)
    assert not is_resumed(8192, 0)


def test_long_prompts_are_dense_and_short_ones_if_enough_are_equally_long() -> None:
    assert dense_lengths([1024, 3000, 700]) == {1024, 3000}
    assert dense_lengths([512] * 4 + [300] * 20) == {512}  # 300 would be padded, and run one by one
    assert dense_lengths([512] * 3 + [256] * 7) == set()
    assert dense_lengths([256] * 8) == {256}
    assert dense_lengths([]) == set()


def test_prompts_of_one_length_run_as_one_and_others_by_themselves() -> None:
    assert dense_prompts(7, [512, 512, 512, 300, 300, 512]) == (
        DensePrompts(7, 512, 512, 3),
        DensePrompts(1543, 300, 512),
        DensePrompts(1843, 300, 512),
        DensePrompts(2143, 512, 512),
    )
    assert dense_prompts(0, []) == ()


def test_prompts_that_run_as_one_do_not_see_each_other() -> None:
    step = Step([(1, 9), (256, 256), (256, 256), (256, 256), (280, 280)], padding=232)
    dense = dense_prompts(1, [256, 256, 256, 280])
    assert [p.count for p in dense] == [3, 1]
    assert_exact(step, step.attend(StepShape(1, dense=dense)))
