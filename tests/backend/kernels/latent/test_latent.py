"""Kernels of latent attention beside their torch twins, and the twins beside attention with keys and values written
out."""

import inspect
import random
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from backend.kernels.latent import attention, products, reference, rotary
from backend.kernels.launching.launch import KernelArgumentError

SHAPES = {  # heads, rank, rotary, block size
    "small": (4, 32, 16, 16),
    "v2-lite": (16, 512, 64, 16),
    "uneven": (5, 48, 24, 32),
    "more heads than a tile holds": (66, 16, 16, 16),
}


def bound(dtype: torch.dtype) -> float:
    return {torch.float32: 2e-4, torch.float16: 4e-3}.get(dtype, 3e-2)


def assert_close(found: Tensor, expected: Tensor) -> None:
    tolerance = bound(found.dtype)
    torch.testing.assert_close(found.float(), expected.float(), atol=tolerance, rtol=tolerance)


@dataclass
class Case:
    """lengths: tokens of each sequence, its queries included. queries: of each, its newest tokens."""

    lengths: list[int]
    queries: list[int]
    shape: str
    dtype: torch.dtype
    device: torch.device
    padding: int = 0

    def __post_init__(self) -> None:
        self.heads, self.rank, self.rotary, size = SHAPES[self.shape]
        width = max(1, *(-(-n // size) for n in self.lengths))
        blocks = width * len(self.lengths) + 1
        order = random.Random(1).sample(range(blocks), width * len(self.lengths))
        kind: dict[str, Any] = {"dtype": self.dtype, "device": self.device}
        self.latents = torch.randn(blocks, size, 1, self.rank, **kind)
        self.keys = torch.randn(blocks, size, 1, self.rotary, **kind)
        self.q = torch.randn(sum(self.queries) + self.padding, self.heads, self.rank + self.rotary, **kind)
        self.tables = self._ints(order).view(len(self.lengths), width)
        self.seq_lens = self._ints(self.lengths)
        self.query_start = self._ints([sum(self.queries[:i]) for i in range(len(self.queries) + 1)])
        self.scale = (self.rank + self.rotary) ** -0.5
        for cache in (self.latents, self.keys):  # what is behind an end may be anything
            for row, length in zip(self.tables.tolist(), self.lengths, strict=True):
                for position in range(length, width * size):
                    cache[row[position // size], position % size] = float("nan")

    def _ints(self, values: list[int]) -> Tensor:
        return torch.tensor(values, dtype=torch.int32, device=self.device)

    def expected(self) -> Tensor:
        """In double precision, query by query."""
        size, out = self.latents.shape[1], torch.zeros(*self.q.shape[:2], self.rank, dtype=torch.float64)
        row = 0
        for sequence, (length, count) in enumerate(zip(self.lengths, self.queries, strict=True)):
            for position in range(length - count, length):
                blocks = [int(self.tables[sequence, i // size]) for i in range(position + 1)]
                at = torch.arange(position + 1) % size
                latent = self.latents[blocks, at, 0].double().cpu()
                key = torch.cat((latent, self.keys[blocks, at, 0].double().cpu()), 1)
                weights = (self.q[row].double().cpu() @ key.t() * self.scale).softmax(-1)
                out[row] = weights @ latent
                row += 1
        return out

    def prompts(self, ops: Any = attention, **changes: Any) -> Tensor:
        return ops.latent_attention(
            self.q, self.latents, self.keys, self.tables, self.query_start, self.seq_lens, scale=self.scale, **changes
        )

    def decode(self, ops: Any = attention, **changes: Any) -> Tensor:
        splits = changes.get("splits") or 32
        rows = len(self.lengths) * self.heads * splits * (reference.power_of_two(self.rank) + 2)
        room = reference.DecodeWorkspace(torch.empty(rows, device=self.device), torch.empty(0, device=self.device))
        return ops.latent_decode(
            self.q, self.latents, self.keys, self.tables, self.seq_lens, room, scale=self.scale, **changes
        )


@pytest.mark.parametrize("name", ["per_head_linear", "latent_rotary", "latent_attention", "latent_decode"])
def test_every_kernel_has_a_twin_with_its_signature(name: str) -> None:
    own = next(getattr(module, name) for module in (attention, products, rotary) if hasattr(module, name))
    assert inspect.signature(own) == inspect.signature(getattr(reference, name))


@pytest.mark.parametrize("shape", SHAPES)
def test_decodes_of_any_length_are_those_of_plain_attention(
    shape: str, dtype: torch.dtype, device: torch.device
) -> None:
    case = Case([40, 1, 17], [1, 1, 1], shape, dtype, device)
    expected = case.expected()
    assert_close(case.decode(reference).cpu(), expected)
    assert_close(case.decode(splits=1).cpu(), expected)
    assert_close(case.decode(splits=4).cpu(), expected)


@pytest.mark.parametrize("splits", [2, 16])
def test_keys_in_parts_give_the_same_whoever_has_how_many(splits: int, device: torch.device) -> None:
    case = Case([200, 3, 65, 64, 129], [1] * 5, "small", torch.float32, device)
    assert_close(case.decode(splits=splits).cpu(), case.expected())
    alone = Case([200], [1], "small", torch.float32, device)
    alone.q, alone.latents, alone.keys, alone.tables = case.q[:1], case.latents, case.keys, case.tables[:1]
    assert torch.equal(alone.decode(splits=splits), case.decode(splits=splits)[:1])


def test_a_padding_row_gets_zeros_and_reads_nothing(device: torch.device) -> None:
    case = Case([33, 0, 16], [1, 1, 1], "small", torch.float32, device)
    for splits in (1, 4):
        found = case.decode(splits=splits)
        assert not found[1].any()
        assert found[[0, 2]].isfinite().all()


@pytest.mark.parametrize("shape", ["small", "uneven"])
def test_prompts_chunks_and_decodes_together_are_those_of_plain_attention(
    shape: str, dtype: torch.dtype, device: torch.device
) -> None:
    case = Case([9, 1, 37, 20, 12], [9, 1, 5, 1, 11], shape, dtype, device, padding=2)
    expected = case.expected()
    for found in (case.prompts(), case.prompts(reference), case.prompts(batch_invariant=True)):
        assert_close(found.cpu(), expected)
        assert not found[-2:].any()


def test_a_row_has_the_same_bits_in_any_batch_and_chunk(device: torch.device) -> None:
    case = Case([37, 20], [30, 20], "small", torch.float32, device)
    for ops in (attention, reference):
        whole = case.prompts(ops, batch_invariant=True)
        part = Case([37], [5], "small", torch.float32, device)
        part.q, part.latents, part.keys = case.q[25:30].contiguous(), case.latents, case.keys
        part.tables = case.tables[:1]
        assert torch.equal(part.prompts(ops, batch_invariant=True), whole[25:30])


@pytest.mark.parametrize(("tokens", "heads", "width", "outputs"), [(1, 3, 16, 48), (5, 4, 24, 32), (70, 2, 100, 70)])
def test_each_head_is_multiplied_by_its_own_matrix(
    tokens: int, heads: int, width: int, outputs: int, dtype: torch.dtype, device: torch.device
) -> None:
    wide = torch.randn(tokens, heads, width + 8, dtype=dtype, device=device)
    both = torch.randn(heads, width + outputs, outputs, dtype=dtype, device=device) * width**-0.5
    x, weight = wide[..., :width], both[:, :width]  # as they lie beside rotary parts, and beside the values' matrix
    room = torch.full((tokens, heads, outputs + 16), 7.0, dtype=dtype, device=device)
    expected = torch.einsum("thk,hkn->thn", x.double(), weight.double())
    for ops in (products, reference):
        for invariant in (False, True):
            found = ops.per_head_linear(x, weight, room[..., :outputs], batch_invariant=invariant)
            assert_close(found, expected)
            assert (room[..., outputs:] == 7.0).all()
    turned = both[:, width:].transpose(1, 2)  # [heads, outputs, outputs] in another layout
    y = torch.randn(tokens, heads, outputs, dtype=dtype, device=device)
    found = products.per_head_linear(y, turned, torch.empty_like(y))
    assert_close(found, torch.einsum("thk,hkn->thn", y.double(), turned.double()))


def test_a_heads_product_has_the_same_bits_in_any_batch(device: torch.device) -> None:
    x, weight = torch.randn(80, 3, 40, device=device), torch.randn(3, 40, 24, device=device)
    for ops in (products, reference):
        whole = ops.per_head_linear(x, weight, x.new_empty(80, 3, 24), batch_invariant=True)
        part = ops.per_head_linear(x[70:73], weight, x.new_empty(3, 3, 24), batch_invariant=True)
        assert torch.equal(part, whole[70:73])


def step(dtype: torch.dtype, device: torch.device, *, rank: int = 48, rotary: int = 24) -> dict[str, Any]:
    tokens, heads, plain = 6, 18, 40
    kind: dict[str, Any] = {"dtype": dtype, "device": device}
    angles = torch.rand(50, rotary // 2, device=device) * 6
    return {
        "qkv": torch.randn(tokens, 20 + rank + rotary, **kind),
        "q": torch.randn(tokens, heads, plain + rotary, **kind),
        "positions": torch.tensor([0, 3, 49, 7, 1, 0], device=device),
        "cos_sin": torch.cat((angles.cos(), angles.sin()), 1),
        "slots": torch.tensor([5, 33, 0, -1, 63, -1], device=device),
        "norm": torch.randn(rank, **kind),
        "latents": torch.full((4, 16, 1, rank), 9.0, **kind),
        "keys": torch.full((4, 16, 1, rotary), 9.0, **kind),
        "out": torch.full((tokens, heads, rank + rotary), 9.0, **kind),
    }


@pytest.mark.parametrize("interleaved", [True, False])
def test_latents_are_normed_keys_and_queries_turned_and_padding_written_nowhere(
    interleaved: bool, dtype: torch.dtype, device: torch.device
) -> None:
    found = step(dtype, device)
    expected = {name: tensor.clone() for name, tensor in found.items()}
    rotary.latent_rotary(**found, eps=1e-5, interleaved=interleaved)
    reference.latent_rotary(**expected, eps=1e-5, interleaved=interleaved)
    for name in ("latents", "keys", "out", "qkv", "q"):
        assert_close(found[name], expected[name])
    assert (found["latents"] == 9.0).all(-1).sum() == 4 * 16 - 4  # of 64 slots four were written
    assert (found["out"][..., :48] == 9.0).all()
    norms = found["keys"].view(-1, 24)[[5, 33, 0, 63]].float().norm(dim=1)
    torch.testing.assert_close(norms, found["qkv"][[0, 1, 2, 4], -24:].float().norm(dim=1), atol=0.02, rtol=0.02)


def test_neighbours_that_turn_together_are_the_halves_of_another_order(device: torch.device) -> None:
    one = step(torch.float32, device)
    two = {name: tensor.clone() for name, tensor in one.items()}
    two["qkv"][:, -24:] = torch.cat((one["qkv"][:, -24::2], one["qkv"][:, -23::2]), 1)
    two["q"][..., -24:] = torch.cat((one["q"][..., -24::2], one["q"][..., -23::2]), -1)
    rotary.latent_rotary(**one, interleaved=True)
    rotary.latent_rotary(**two, interleaved=False)
    assert torch.equal(one["keys"], two["keys"])
    assert torch.equal(one["out"], two["out"])


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"norm": torch.zeros(3)}, "norm's weight"),
        ({"slots": torch.zeros(2, dtype=torch.int64)}, "positions and slots"),
        ({"cos_sin": torch.zeros(5, 8)}, "cos_sin is 8 wide"),
        ({"out": torch.zeros(6, 18, 3)}, "out is"),
        ({"keys": torch.zeros(4, 8, 1, 24)}, "of the same tokens"),
        ({"latents": torch.zeros(4, 16, 1, 480)}, "columns do not hold"),
        ({"q": torch.zeros(6, 18, 64, dtype=torch.float64)}, "q torch.float64"),
    ],
    ids=str,
)
def test_a_step_that_does_not_fit_is_refused(change: dict[str, Tensor], said: str, device: torch.device) -> None:
    arguments = step(torch.float32, device) | {name: tensor.to(device) for name, tensor in change.items()}
    with pytest.raises(KernelArgumentError, match=said):
        rotary.latent_rotary(**arguments)


def test_attention_that_does_not_fit_is_refused(device: torch.device) -> None:
    def case() -> Case:
        return Case([20], [1], "small", torch.float32, device)

    wrong = case()
    wrong.q = wrong.q[..., :40].contiguous()
    with pytest.raises(KernelArgumentError, match="queries are 40 wide"):
        wrong.decode()
    wrong = case()
    wrong.latents = wrong.latents.half()
    with pytest.raises(KernelArgumentError, match="the cache is"):
        wrong.prompts()
    with pytest.raises(KernelArgumentError, match="out must be contiguous"):
        case().prompts(out=torch.zeros(1, 4, 48, device=device))
    small, room = case(), reference.decode_workspace(device, 1, 1, 16)
    with pytest.raises(KernelArgumentError, match="the workspace holds"):
        attention.latent_decode(
            small.q, small.latents, small.keys, small.tables, small.seq_lens, room, scale=1.0, splits=32
        )
    wide = torch.zeros(1, 2, 1040, device=device)
    cache = torch.zeros(1, 16, 1, 1024, device=device), torch.zeros(1, 16, 1, 16, device=device)
    with pytest.raises(KernelArgumentError, match="a rank of 1024"):
        attention.latent_attention(wide, *cache, *small_tables(device), scale=1.0)
    x = torch.zeros(2, 3, 16, device=device)
    with pytest.raises(KernelArgumentError, match="weight must be"):
        products.per_head_linear(x, torch.zeros(2, 16, 4, device=device), torch.zeros(2, 3, 4, device=device))
    with pytest.raises(KernelArgumentError, match="out must be"):
        products.per_head_linear(x, torch.zeros(3, 16, 4, device=device), torch.zeros(2, 3, 5, device=device))


def small_tables(device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    kind: dict[str, Any] = {"dtype": torch.int32, "device": device}
    return torch.zeros(1, 1, **kind), torch.tensor([0, 1], **kind), torch.ones(1, **kind)


def test_room_that_is_set_aside_suffices_for_every_smaller_batch(device: torch.device) -> None:
    room = reference.decode_workspace(device, 40, 16, 32).partial.numel()
    for batch in range(1, 41):
        splits = reference.default_splits(batch, 16, device)
        assert splits == 1 or batch * 16 * splits * 34 <= room
