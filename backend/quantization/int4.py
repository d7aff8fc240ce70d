"""Weights of four bits with activations in the model's dtype (W4A16): what the checkpoint formats AWQ and GPTQ share.

The engine keeps such weights as `kernels.linear.int4_reference` lays them out, whatever the checkpoint's own order of
columns; only groups of 128 columns are read. On the CPU, and with ``--quantization none``, they become the model's
dtype while they are loaded.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from backend.errors import CorruptCheckpoint
from backend.quantization.format import Packed, Quantization, Speed, StoredWeights, TensorHead
from backend.quantization.linear import Linear, Operand

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from backend.kernels.interface import Kernels

GROUP = 128
PLACES = 8  # numbers in a word of 32 bits
MOST_NARROW_ROWS = 128
MOST_ROWS_IN_PARTS = 16  # of few, columns are split either way; the parts of many take longer to read
MOST_ROWS = 256  # for which the product is ours; beyond, the weight is written out for the library


class Int4(Quantization):
    """What AWQ and GPTQ have in common. A format says how its words hold numbers and zeros."""

    dtypes = ("bfloat16", "float16")
    as_stored = True
    from_any = False
    few_rows = 0
    narrow_rows = MOST_NARROW_ROWS
    width_multiple = GROUP
    # H200: set by hand from bench/results/kernel-int4-h200.json. H100: scaled by the ratio of the cards' bandwidths.
    speeds: ClassVar = {"h100": Speed(1.5e12, 1.1e12, 400e12), "h200": Speed(2.1e12, 1.6e12, 400e12)}

    @abstractmethod
    def numbers(self, parts: Mapping[str, Tensor]) -> Tensor:
        """[outputs, width] int32, 0 to 15."""

    def scales(self, parts: Mapping[str, Tensor]) -> Tensor:
        """[outputs, groups] in a float type."""
        return parts["scales"].t()

    @abstractmethod
    def zeros(self, parts: Mapping[str, Tensor], stored: StoredWeights) -> Tensor:
        """[outputs, groups] int32, 0 to 16."""

    def part_of(self, head: TensorHead) -> tuple[str, str] | None:
        module, _, part = head.name.rpartition(".")
        return (f"{module}.weight", part) if part in ("qweight", "qzeros", "scales", "g_idx") else None

    def dense(self, parts: Mapping[str, Tensor], stored: StoredWeights) -> Tensor:
        outputs, width = (numbers := self.numbers(parts)).shape
        centred = numbers.view(outputs, -1, GROUP) - self.zeros(parts, stored)[:, :, None]
        return (centred.float() * self.scales(parts).float()[:, :, None]).view(outputs, width)

    def packed(self, parts: Mapping[str, Tensor], stored: StoredWeights, dtype: torch.dtype) -> dict[str, Tensor]:
        words, groups = self._laid_out(parts, stored)
        return {"words": words, "groups": groups.t()}

    def _laid_out(self, parts: Mapping[str, Tensor], stored: StoredWeights) -> tuple[Tensor, Tensor]:
        from backend.kernels.linear.int4_reference import pack

        return pack(self.numbers(parts), self.scales(parts), self.zeros(parts, stored))

    def empty(
        self, outputs: int, width: int, dtype: torch.dtype, device: torch.device, cuts: tuple[int, ...] = ()
    ) -> Packed:
        import torch

        words = torch.empty(outputs, width // PLACES, dtype=torch.int32, device=device)
        return Packed(self, {"words": words, "groups": words.new_empty(outputs, width // GROUP)})

    def fill_randomly(self, packed: Packed, spread: float) -> None:
        """Uniform numbers around a zero of 8."""
        import torch

        packed.parts["words"].random_(-(2**31), 2**31 - 1)
        scale = torch.tensor(spread / 4.6, dtype=torch.float16).view(torch.int16).item()
        packed.parts["groups"].fill_(int(scale) | (8 << 16))

    def linear(self, kernels: Kernels, packed: Packed) -> Linear:
        groups = packed.parts["groups"].t().contiguous()
        packed.parts["groups"] = groups.new_empty(0)
        return Int4Linear(kernels, packed.parts["words"], groups)

    def matrix_bytes(self, outputs: int, width: int, element_size: int) -> int:
        return outputs * (width // 2 + 4 * (width // GROUP))

    def bytes_read(self, element_size: int, rows: int) -> float:
        """With many rows, the weight is written out and read again in the model's dtype."""
        packed = 0.5 + 4 / GROUP
        return packed if rows <= MOST_NARROW_ROWS else packed + 2 * element_size

    def scratch_bytes(self, outputs: int, width: int, element_size: int) -> int:
        return outputs * width * element_size


def require_shapes(weight: str, parts: Mapping[str, TensorHead], names: tuple[str, ...]) -> None:
    """Raises CorruptCheckpoint naming a part that a matrix lacks."""
    for name in names:
        if name not in parts:
            raise CorruptCheckpoint(f"tensor {weight.removesuffix('weight')}{name} is missing")


def require_shape(part: TensorHead, *expected: tuple[int, ...]) -> None:
    """Raises CorruptCheckpoint for a part of another shape."""
    if part.shape not in expected:
        raise CorruptCheckpoint(f"tensor {part.name} is {list(part.shape)}, expected {list(expected[0])}")


class Int4Linear(Linear):
    """words: int32 [outputs, width / 8]; groups: int32 [width / 128, outputs], see `kernels.linear.int4_reference`."""

    rows_in_parts = MOST_ROWS_IN_PARTS

    def __init__(self, kernels: Kernels, words: Tensor, groups: Tensor) -> None:
        super().__init__(kernels)
        self.words, self.groups = words, groups
        if words.device.type == "cuda":
            from backend.kernels.linear import int4

            self._products: Any = int4
        else:
            from backend.kernels.linear import int4_reference

            self._products = int4_reference

    def tensors(self) -> list[Tensor]:
        return [self.words, self.groups]

    def one_row(
        self,
        x: Tensor,
        *,
        bias: Tensor | None = None,
        norm: Tensor | None = None,
        eps: float = 1e-6,
        residual: Tensor | None = None,
        gated: bool = False,
    ) -> Tensor:
        """As a few rows: tensor cores are faster than threads, which would spend their time on unpacking."""
        if norm is not None:
            x = self.kernels.rms_norm(x, norm, eps)
        y: Tensor = self._products.int4_linear(x, self.words, self.groups, bias=bias, gated=gated)
        return y if residual is None else y + residual

    def narrow(self, x: Operand, *, bias: Tensor | None = None, gated: bool = False) -> Tensor:
        y: Tensor = self._products.int4_linear(x.x, self.words, self.groups, bias=bias, gated=gated)
        return y

    def narrow_parts(self, x: Operand) -> Tensor:
        y: Tensor = self._products.int4_parts(x.x, self.words, self.groups)
        return y

    def many(self, x: Operand, bias: Tensor | None = None) -> Tensor:
        import torch.nn.functional as F

        if len(x.x) <= MOST_ROWS:
            y: Tensor = self._products.int4_linear(x.x, self.words, self.groups, bias=bias)
            return y
        return F.linear(x.x, self._products.int4_dense(self.words, self.groups, x.x.dtype), bias)
