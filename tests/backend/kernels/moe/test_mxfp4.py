"""Products by experts in MXFP4: the kernel is its twin, and both are float64."""

from typing import Any

import pytest
import torch
from torch import Tensor

from backend.kernels.launching.launch import KernelArgumentError
from backend.kernels.moe import mxfp4, mxfp4_reference
from backend.kernels.moe.blocks import blocks_by_expert

BOUND = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1e-2}


def case(
    tokens: int, per_token: int, width: int, outputs: int, dtype: torch.dtype, device: torch.device, experts: int = 5
) -> dict[str, Any]:
    shape = experts, outputs, width // 2
    chosen = torch.stack([torch.randperm(experts)[:per_token] for _ in range(tokens)]).to(torch.int32)
    return {
        "x": torch.randn(tokens, width).to(dtype).to(device),
        "packed": torch.randint(0, 256, shape, dtype=torch.uint8).to(device),
        "scales": torch.randint(120, 131, (experts, outputs, width // 32), dtype=torch.uint8).to(device),
        "chosen": chosen.to(device),
    }


def run(ops: Any, c: dict[str, Any], size: int = 16) -> Tensor:
    blocks = blocks_by_expert(c["chosen"], len(c["packed"]), size)
    return ops.grouped_mxfp4(
        c["x"], c["packed"], c["scales"], blocks, pairs=c["chosen"].numel(), per_token=c["chosen"].shape[1]
    )


def exact(c: dict[str, Any]) -> Tensor:
    weights = mxfp4_reference.dense(c["packed"], c["scales"]).double()
    pairs = [
        weights[expert] @ c["x"][token].double()
        for token, chosen in enumerate(c["chosen"].tolist())
        for expert in chosen
    ]
    return torch.stack(pairs)


@pytest.mark.parametrize("size", [16, 32])
@pytest.mark.parametrize(
    ("tokens", "per_token", "width", "outputs"), [(1, 4, 64, 48), (9, 2, 96, 70), (40, 1, 160, 33)]
)
def test_kernel_and_twin_are_float64(
    tokens: int, per_token: int, width: int, outputs: int, size: int, dtype: torch.dtype, device: torch.device
) -> None:
    c = case(tokens, per_token, width, outputs, dtype, device)
    expected = exact(c)
    for ops in (mxfp4, mxfp4_reference):
        found = run(ops, c, size)
        assert float((found.double() - expected).norm() / expected.norm()) < BOUND[dtype], ops.__name__


def test_each_of_the_sixteen_numbers_is_unpacked_at_each_place(device: torch.device) -> None:
    """x picks a column; the product is the number that stands there."""
    numbers = torch.arange(16, dtype=torch.uint8)
    packed = (numbers | (numbers.flip(0) << 4)).view(1, 16, 1).expand(1, 16, 16).contiguous().to(device)
    scales = torch.full((1, 16, 1), 128, dtype=torch.uint8, device=device)
    c = {"packed": packed, "scales": scales, "chosen": torch.zeros(2, 1, dtype=torch.int32, device=device)}
    c["x"] = torch.zeros(2, 32, device=device)
    c["x"][0, 6] = c["x"][1, 7] = 1.0
    values = [2 * v for v in (0, 0.5, 1, 1.5, 2, 3, 4, 6)]
    signed = torch.tensor([*values, *(-v for v in values)], device=device)
    for ops in (mxfp4, mxfp4_reference):
        assert torch.equal(run(ops, c), torch.stack((signed, signed.flip(0))))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"x": torch.zeros(2, 96)}, "x is 96 wide"),
        ({"packed": torch.zeros(1, 4, 32, dtype=torch.int8)}, "bytes, not"),
        ({"scales": torch.zeros(1, 4, 1, dtype=torch.uint8)}, "scales"),
        ({"x": torch.zeros(3, 64)}, "3 rows of 1 pairs are not 2"),
        ({"x": torch.zeros(64, 2).t()}, "contiguous"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
@pytest.mark.parametrize("ops", [mxfp4, mxfp4_reference], ids=["kernel", "twin"])
def test_arguments_that_do_not_fit_are_refused(ops: Any, change: dict[str, Tensor], said: str, device: Any) -> None:
    c: dict[str, Any] = {
        "x": torch.zeros(2, 64), "packed": torch.zeros(1, 4, 32, dtype=torch.uint8),
        "scales": torch.zeros(1, 4, 2, dtype=torch.uint8), "chosen": torch.zeros(2, 1, dtype=torch.int32),
    }  # fmt: skip
    with pytest.raises(KernelArgumentError, match=said):
        run(ops, {name: tensor.to(device) for name, tensor in {**c, **change}.items()})
