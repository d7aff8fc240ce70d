from typing import Any

import pytest
import torch

from backend.kernels import reference
from backend.kernels.launching.launch import FP8, KernelArgumentError
from backend.kernels.linear.skinny import skinny_linear

TOLERANCE = {torch.float32: 1e-5, torch.float16: 3e-3, torch.bfloat16: 2e-2}


def error(mine: torch.Tensor, other: torch.Tensor) -> float:
    return float((mine.double() - other.double()).norm() / other.double().norm())


def parts(rows, outputs, width, dtype, device, kind) -> tuple[Any, Any, dict[str, Any]]:
    x = torch.randn(rows, width, device=device).to(dtype)
    doubled = 2 if "gated" in kind else 1
    weight = torch.randn(doubled * outputs, width, device=device).to(dtype) / width**0.5
    options: dict[str, Any] = {}
    if "fp8" in kind:
        weight, options["scale"] = reference.quantize_rows(weight)
    if "norm" in kind:
        options |= {"norm": (torch.rand(width, device=device) + 0.5).to(dtype), "eps": 1e-5}
    if "residual" in kind:
        options["residual"] = torch.randn(rows, outputs, device=device).to(dtype)
    if "bias" in kind:
        options["bias"] = torch.randn(outputs, device=device).to(dtype)
    return x, weight, options | {"gated": "gated" in kind}


@pytest.mark.parametrize(
    "kind", ["plain", "norm bias", "residual", "norm gated", "fp8 norm", "fp8 gated", "fp8 norm gated residual"]
)
@pytest.mark.parametrize("rows,outputs,width", [(1, 48, 64), (2, 40, 96), (3, 33, 130), (4, 64, 256), (1, 16, 4200)])
def test_kernel_matches_its_twin(rows, outputs, width, kind, dtype, device):
    x, weight, options = parts(rows, outputs, width, dtype, device, kind)
    assert error(skinny_linear(x, weight, **options), reference.skinny_linear(x, weight, **options)) < TOLERANCE[dtype]


def test_the_twin_is_the_layers_it_stands_for(device):
    x, weight, options = parts(4, 24, 32, torch.float32, device, "norm gated residual")
    normed = reference.rms_norm(x, options["norm"], options["eps"])
    expected = reference.silu_mul(torch.nn.functional.linear(normed, weight)) + options["residual"]
    assert error(reference.skinny_linear(x, weight, **options), expected) < 1e-6


def test_a_row_does_not_depend_on_its_company(dtype, device):
    x, weight, options = parts(4, 48, 128, dtype, device, "norm gated")
    together = skinny_linear(x, weight, **options)
    for row in range(4):
        assert error(skinny_linear(x[row : row + 1], weight, **options)[0], together[row]) < TOLERANCE[dtype]


def test_rows_of_nothing_come_out_as_nothing(dtype, device):
    x, weight, options = parts(3, 16, 64, dtype, device, "norm")
    x[2] = 0
    assert skinny_linear(x, weight, **options)[2].eq(0).all()
    assert skinny_linear(x[:0], weight, **options).shape == (0, 16)


@pytest.mark.parametrize(
    "changes",
    [
        {"x": torch.zeros(1 << 16, 32)},
        {"x": torch.zeros(4, 31)},
        {"x": torch.zeros(4, 32).half()},
        {"scale": torch.ones(16, 1)},
        {"weight": torch.zeros(16, 32).to(FP8)},
        {"residual": torch.zeros(4, 15)},
        {"gated": True, "bias": torch.zeros(8)},
    ],
    ids=["rows", "width", "dtype", "scale without fp8", "fp8 without scale", "residual", "gated bias"],
)
def test_arguments_that_do_not_fit_are_refused(changes):
    with pytest.raises(KernelArgumentError):
        skinny_linear(**({"x": torch.zeros(4, 32), "weight": torch.zeros(16, 32)} | changes))
