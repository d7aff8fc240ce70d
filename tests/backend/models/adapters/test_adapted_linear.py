"""What adapters add comes on top of a weight's product in any format, in every form of the product."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from backend.kernels.interface import kernels_for
from backend.models.adapters.adapted_linear import AdaptedLinear
from backend.models.adapters.bank import AdapterBank
from backend.quantization import of_name
from backend.quantization.linear import Hidden, Linear, Operand
from tests.backend.tiny import tiny_config

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
KERNELS = kernels_for(DEVICE)
CONFIG = tiny_config(
    hidden_size=256, intermediate_size=128, num_heads=4, num_kv_heads=4, head_dim=64, num_layers=1, vocab_size=64
)
FORMATS = ("none", "fp8", "fp8-block", "int8", "awq")
EPS = 1e-5


def weight(format: str, matrix: str) -> Linear:
    outputs, width = CONFIG.matrices[matrix]
    chosen = of_name(format)
    if not chosen.from_any:
        packed = chosen.empty(outputs, width, torch.bfloat16, DEVICE)
        chosen.fill_randomly(packed, width**-0.5)
        return chosen.linear(KERNELS, packed)
    dense = torch.randn(outputs, width, device=DEVICE) * width**-0.5
    return chosen.quantised(KERNELS, nn.Parameter(dense.to(torch.bfloat16), requires_grad=False))


@pytest.fixture
def bank() -> AdapterBank:
    torch.manual_seed(3)
    made = AdapterBank(CONFIG, 3, 4, torch.bfloat16, DEVICE)
    for pages in made.layers[0].values():
        pages.a.normal_(0, 0.05)
        pages.b.normal_(0, 0.3)
    return made


def delta(bank: AdapterBank, matrix: str, x: Tensor, slots: Tensor) -> Tensor:
    """In float64."""
    pages = bank.layers[0][matrix]
    out = torch.zeros(len(x), sum(pages.place.heights), dtype=torch.float64, device=x.device)
    for row, slot in enumerate(slots.tolist()):
        if slot < 0:
            continue
        inner = (pages.a[slot].double() @ x[row].double()).split(bank.rank)
        parts = pages.b[slot].double().split(list(pages.place.heights))
        out[row] = torch.cat([part @ h for part, h in zip(parts, inner, strict=True)])
    return out


def near(found: Tensor, exact: Tensor, bound: float = 0.01) -> None:
    assert float((found.double() - exact).norm() / exact.norm()) < bound


@pytest.mark.parametrize("matrix", ["qkv", "out", "gate_up", "down"])
@pytest.mark.parametrize("format", FORMATS)
def test_every_form_of_the_product_is_the_bases_and_what_the_adapters_add(
    format: str, matrix: str, bank: AdapterBank
) -> None:
    base = weight(format, matrix)
    adapted = AdaptedLinear(base, bank, 0, matrix)
    rows = 9
    x = torch.randn(rows, CONFIG.matrices[matrix][1], device=DEVICE).to(torch.bfloat16)
    slots = torch.tensor([0, -1, 2, 2, 1, -1, 0, 0, 1], dtype=torch.int32, device=DEVICE)
    more = delta(bank, matrix, x, slots)
    bank.begin(slots)
    near(adapted.many(adapted.operand(x)), base.many(base.operand(x)).double() + more)
    near(adapted.narrow(adapted.operand(x)), base.narrow(base.operand(x)).double() + more)
    parts = adapted.narrow_parts(adapted.operand(x))
    near(parts.sum(0), base.narrow_parts(base.operand(x)).double().sum(0) + more)
    residual = torch.randn(rows, sum(bank.layers[0][matrix].place.heights), device=DEVICE).to(torch.bfloat16)
    hidden = adapted.added(residual.clone(), adapted.operand(x))
    assert hidden.added is not None and hidden.scales is None
    near(hidden.residual.double() + hidden.added.double(), residual + base.many(base.operand(x)).double() + more)
    if format == "none":  # what adapters add is apart, so that it can be made beside the base's product
        near(hidden.added, more)
        assert not hidden.added[slots < 0].any()
    if of_name(format).batch_invariant:
        near(adapted.invariant(adapted.operand(x)), base.invariant(base.operand(x)).double() + more)
    for row in (0, 1):
        bank.begin(slots[row : row + 1])
        one = base.one_row(x[row : row + 1]).double() + more[row]
        near(adapted.one_row(x[row : row + 1]), one)
        near(adapted.one_row(x[row : row + 1], residual=residual[row : row + 1]), one + residual[row].double())


@pytest.mark.parametrize("format", FORMATS)
def test_what_adapters_add_stands_before_the_gate_and_behind_the_norm(format: str, bank: AdapterBank) -> None:
    base = weight(format, "gate_up")
    adapted = AdaptedLinear(base, bank, 0, "gate_up")
    norm = torch.rand(256, device=DEVICE).to(torch.bfloat16)
    slots = torch.tensor([1], dtype=torch.int32, device=DEVICE)
    x = torch.randn(1, 256, device=DEVICE).to(torch.bfloat16)
    normed = KERNELS.rms_norm(x, norm, EPS)
    gate, up = (base.one_row(normed).double() + delta(bank, "gate_up", normed, slots)).chunk(2, -1)
    exact = torch.nn.functional.silu(gate) * up
    bank.begin(slots)
    near(adapted.one_row(x, norm=norm, eps=EPS, gated=True), exact)
    operand, _ = adapted.normed(Hidden(x), norm, EPS)
    assert operand.scale is None and operand.x.dtype == torch.bfloat16  # adapters multiply what was not quantised
    rounded = 0.01 if format in ("none", "awq") else 0.06  # by the base, on x's way in
    near(adapted.narrow(operand, gated=True), exact, rounded)
    near(adapted.gated(adapted.many(operand)).x, exact, rounded)


def test_rows_without_adapters_get_the_bases_bits(bank: AdapterBank) -> None:
    base = weight("none", "qkv")
    adapted = AdaptedLinear(base, bank, 0, "qkv")
    x = torch.randn(4, 256, device=DEVICE).to(torch.bfloat16)
    for slots in (None, torch.full((4,), -1, dtype=torch.int32, device=DEVICE)):
        bank.begin(slots)
        assert torch.equal(adapted.many(Operand(x)), base.many(Operand(x)))


@pytest.mark.parametrize("matrix", ["qkv", "out", "gate_up", "down"])
@pytest.mark.parametrize("format", FORMATS)
def test_a_step_without_adapters_has_the_bases_products_and_nothing_else(
    format: str, matrix: str, bank: AdapterBank, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = weight(format, matrix)
    adapted = AdaptedLinear(base, bank, 0, matrix)
    outputs, width = CONFIG.matrices[matrix]
    x, more = torch.randn(2, 5, width, device=DEVICE).to(torch.bfloat16)
    residual = torch.randn(5, outputs, device=DEVICE).to(torch.bfloat16)
    norm = torch.rand(width, device=DEVICE).to(torch.bfloat16)
    gated = matrix == "gate_up"

    def found(weight: Linear) -> list[Tensor]:
        operand, left = weight.normed(Hidden(x, more), norm, EPS)
        y, scales = weight.unscaled(operand)
        hidden = weight.added(residual.clone(), operand)
        scales_of_added = hidden.scales or ()
        found = [operand.x, operand.scale, left, weight.narrow(operand, gated=gated), weight.narrow_parts(operand), y]
        found += [*(scales or ()), hidden.residual, hidden.added, *scales_of_added, weight.many(operand)]
        one = weight.one_row(x[:1], norm=norm, eps=EPS, gated=gated)
        found += [one, weight.gated(y).x if gated else None]
        if of_name(format).batch_invariant:
            found.append(weight.invariant(operand))
        return [each for each in found if each is not None]

    expected = found(base)
    bank.begin(None)
    monkeypatch.delattr(AdaptedLinear, "_added")  # nothing of adapters runs
    for mine, other in zip(found(adapted), expected, strict=True):
        assert mine.dtype == other.dtype
        assert torch.equal(mine.float(), other.float())


def test_its_memory_is_the_bases_and_the_adapters(bank: AdapterBank) -> None:
    base = weight("fp8", "down")
    held: list[Any] = AdaptedLinear(base, bank, 0, "down").tensors()
    pages = bank.layers[0]["down"]
    assert {id(part) for part in held} == {id(part) for part in (*base.tensors(), pages.a, pages.b)}
