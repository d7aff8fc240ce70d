"""Products by experts in MXFP4: the kernel is its twin, and both are float64."""

from typing import Any

import pytest
import torch
from torch import Tensor

from backend.kernels.launching.launch import KernelArgumentError
from backend.kernels.moe import mxfp4, mxfp4_reference
from backend.kernels.moe.blocks import blocks_by_expert
from backend.kernels.moe.reference import clamped_gate

BOUND = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1e-2}
GATE = 1.5, 1.702


def laid_out(stored: Tensor, scales: Tensor) -> tuple[Tensor, Tensor]:
    """(words, groups) of uint8 [experts, outputs, width / 2] and [experts, outputs, width / 32]."""
    each = [mxfp4_reference.pack(*expert) for expert in zip(stored, scales, strict=True)]
    return torch.stack([words for words, _ in each]), torch.stack([groups.t() for _, groups in each]).contiguous()


def case(
    tokens: int, per_token: int, width: int, outputs: int, dtype: torch.dtype, device: torch.device, experts: int = 5
) -> dict[str, Any]:
    shape = experts, outputs, width // 2
    stored = torch.randint(0, 256, shape, dtype=torch.uint8)
    scales = torch.randint(118, 129, (experts, outputs, width // 32), dtype=torch.uint8)
    words, groups = laid_out(stored, scales)
    chosen = torch.stack([torch.randperm(experts)[:per_token] for _ in range(tokens)]).to(torch.int32)
    values = torch.tensor([*mxfp4_reference.VALUES, *(-value for value in mxfp4_reference.VALUES)]).double()
    numbers = torch.stack((values[(stored & 0xF).int()], values[(stored >> 4).int()]), -1).flatten(-2)
    weights = numbers * torch.exp2(scales.double() - 127).repeat_interleave(32, -1)
    found = {
        "x": torch.randn(tokens, width).to(dtype), "words": words, "groups": groups, "chosen": chosen,
        "bias": torch.randn(experts, outputs).to(dtype), "weights": weights,
    }  # fmt: skip
    return {name: tensor.to(device) for name, tensor in found.items()}


def run(ops: Any, c: dict[str, Any], size: int = 16, **options: Any) -> Tensor:
    blocks = blocks_by_expert(c["chosen"], len(c["words"]), size)
    per_token = c["chosen"].shape[1]
    return ops.grouped_mxfp4(c["x"], c["words"], c["groups"], c["bias"], blocks, per_token=per_token, **options)


def exact(c: dict[str, Any], rows: Tensor) -> Tensor:
    """float64 [pairs, outputs]. rows: of each pair."""
    expert = c["chosen"].flatten().long()
    return torch.einsum("pow,pw->po", c["weights"][expert], rows.double()) + c["bias"][expert].double()


def near(found: Tensor, expected: Tensor, dtype: torch.dtype) -> bool:
    return float((found.double() - expected).norm() / expected.norm()) < BOUND[dtype]


SHAPES = pytest.mark.parametrize(
    ("tokens", "per_token", "width", "outputs"), [(1, 4, 64, 48), (9, 2, 96, 70), (40, 1, 288, 34), (3, 3, 256, 33)]
)


@pytest.mark.parametrize("size", [8, 16, 64])
@SHAPES
def test_kernel_and_twin_are_float64(
    tokens: int, per_token: int, width: int, outputs: int, size: int, dtype: torch.dtype, device: torch.device
) -> None:
    c = case(tokens, per_token, width, outputs, dtype, device)
    expected = exact(c, c["x"].repeat_interleave(per_token, 0))
    for ops in (mxfp4, mxfp4_reference):
        assert near(run(ops, c, size), expected, dtype), ops.__name__


@pytest.mark.parametrize("size", [8, 32])
@SHAPES
def test_gate_and_up_by_turns_are_clamped_and_multiplied(
    tokens: int, per_token: int, width: int, outputs: int, size: int, dtype: torch.dtype, device: torch.device
) -> None:
    c = case(tokens, per_token, width, 2 * outputs, dtype, device)
    expected = clamped_gate(exact(c, c["x"].repeat_interleave(per_token, 0)), *GATE)
    for ops in (mxfp4, mxfp4_reference):
        found = run(ops, c, size, gate=GATE)
        assert found.shape == (tokens * per_token, outputs)
        assert near(found, expected, dtype), ops.__name__


@pytest.mark.parametrize("out_dtype", [torch.float32, None])
@SHAPES
def test_a_row_for_each_pair_is_weighed_and_goes_to_its_part(
    tokens: int, per_token: int, width: int, outputs: int, out_dtype: Any, dtype: torch.dtype, device: torch.device
) -> None:
    c = case(tokens, per_token, width, outputs, dtype, device)
    c["x"] = torch.randn(tokens * per_token, width, device=device).to(dtype)
    factors = torch.rand(tokens, per_token, device=device)
    expected = (exact(c, c["x"]).view(tokens, per_token, outputs) * factors[:, :, None]).transpose(0, 1)
    for ops in (mxfp4, mxfp4_reference):
        found = run(ops, c, factors=factors, out_dtype=out_dtype)
        assert found.dtype == (out_dtype or dtype)
        assert near(found, expected, dtype), ops.__name__


@pytest.mark.parametrize("scale", [70, 100, 128, 192])
def test_each_of_the_sixteen_numbers_is_unpacked_at_each_place(
    scale: int, dtype: torch.dtype, device: torch.device
) -> None:
    """x picks a column; the product is the number that stands there."""
    if dtype == torch.float16 and scale != 128:
        scale = 126  # beyond its numbers otherwise
    numbers = torch.arange(16, dtype=torch.uint8)
    stored = (numbers | (numbers.flip(0) << 4)).view(1, 16, 1).expand(1, 16, 64).contiguous()
    words, groups = laid_out(stored, torch.full((1, 16, 4), scale, dtype=torch.uint8))
    c = {"words": words.to(device), "groups": groups.to(device), "bias": torch.zeros(1, 16, device=device)}
    c["chosen"] = torch.zeros(128, 1, dtype=torch.int32, device=device)
    c["x"] = torch.eye(128, device=device).to(dtype)
    values = [2.0 ** (scale - 127) * v for v in (0, 0.5, 1, 1.5, 2, 3, 4, 6)]
    signed = torch.tensor([*values, *(-v for v in values)], device=device)
    for ops in (mxfp4, mxfp4_reference):
        found = run(ops, c, out_dtype=torch.float32)
        assert torch.equal(found, torch.stack((signed, signed.flip(0))).repeat(64, 1)), ops.__name__


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"x": torch.zeros(2, 160)}, "x is 160 wide"),
        ({"words": torch.zeros(1, 4, 16, dtype=torch.uint8)}, "int32, not"),
        ({"groups": torch.zeros(1, 4, 1, dtype=torch.int32)}, "groups"),
        ({"x": torch.zeros(64, 2).t()}, "contiguous"),
        ({"bias": torch.zeros(1, 5)}, "a bias is"),
        ({"factors": torch.zeros(3, 1)}, "factors are float32"),
        ({"factors": torch.zeros(2, 1, dtype=torch.float16)}, "factors are float32"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
@pytest.mark.parametrize("ops", [mxfp4, mxfp4_reference], ids=["kernel", "twin"])
def test_arguments_that_do_not_fit_are_refused(ops: Any, change: dict[str, Tensor], said: str, device: Any) -> None:
    c: dict[str, Any] = {
        "x": torch.zeros(2, 64), "words": torch.zeros(1, 4, 16, dtype=torch.int32),
        "groups": torch.zeros(1, 1, 4, dtype=torch.int32), "bias": torch.zeros(1, 4),
        "chosen": torch.zeros(2, 1, dtype=torch.int32), "factors": torch.zeros(2, 1),
    }  # fmt: skip
    c = {name: tensor.to(device) for name, tensor in {**c, **change}.items()}
    with pytest.raises(KernelArgumentError, match=said):
        run(ops, c, factors=c["factors"])


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"gate": GATE, "factors": torch.zeros(2, 1)}, "what is gated has no factors"),
        ({"gate": GATE}, "gate and up by turns are not 5 rows"),
    ],
    ids=["both", "odd"],
)
@pytest.mark.parametrize("ops", [mxfp4, mxfp4_reference], ids=["kernel", "twin"])
def test_a_gate_that_does_not_fit_is_refused(ops: Any, options: dict[str, Any], said: str, device: Any) -> None:
    c: dict[str, Any] = {
        "x": torch.zeros(2, 64), "words": torch.zeros(1, 5, 16, dtype=torch.int32),
        "groups": torch.zeros(1, 1, 5, dtype=torch.int32), "bias": torch.zeros(1, 5),
        "chosen": torch.zeros(2, 1, dtype=torch.int32),
    }  # fmt: skip
    options = {k: v.to(device) if isinstance(v, Tensor) else v for k, v in options.items()}
    with pytest.raises(KernelArgumentError, match=said):
        run(ops, {name: tensor.to(device) for name, tensor in c.items()}, **options)


@pytest.mark.parametrize(
    ("pairs", "size"), [(4, 8), (128, 8), (129, 16), (512, 32), (1024, 64), (4096, 128), (99999, 128)]
)
def test_blocks_hold_twice_what_an_expert_gets_on_average(pairs: int, size: int) -> None:
    assert mxfp4.block_size(pairs, 32) == size
    assert mxfp4.block_size(pairs, 32, batch_invariant=True) == mxfp4.block_size(4, 32, batch_invariant=True)
