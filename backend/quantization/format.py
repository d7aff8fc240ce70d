"""What a weight format declares.

A format is one object from which everything else follows: its name on the command line, the checkpoints that it reads,
how layers multiply by its weights, what it requires of model and card, and what the planner counts. The package lists
them. Importing a format does not import torch: the planner and the command line read the same declarations.
"""

from __future__ import annotations

import re
from abc import ABC
from collections.abc import Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from backend.errors import ConfigError, UnsupportedModel

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from backend.kernels.interface import Kernels
    from backend.kernels.moe.rule import Routing
    from backend.parallel.shard import Share
    from backend.quantization.experts import Experts
    from backend.quantization.linear import Linear

FEW_ROWS = 1  # from two on, tensor cores are faster than `skinny_linear`
NARROW_ROWS = 32  # most rows for which `narrow_linear` is faster than the library, in bfloat16 and FP8


@dataclass(frozen=True, slots=True)
class Speed:
    """How fast a card multiplies by weights of a format.

    Attributes:
        one_row, many_rows: bytes/s at which products read weights, for one row and for more.
        flops: of products of many rows, per second.
    """

    one_row: float
    many_rows: float
    flops: float


class TensorHead(Protocol):
    """What the table of a checkpoint says of a tensor before it is read."""

    @property
    def name(self) -> str: ...
    @property
    def dtype(self) -> torch.dtype: ...
    @property
    def shape(self) -> tuple[int, ...]: ...


@dataclass(frozen=True)
class StoredWeights:
    """How a checkpoint says that its weights are quantised.

    Attributes:
        format: reads them.
        kept: modules that stay in higher precision: by name or a part of it ("lm_head", "mlp.down_proj",
            "model.layers.0"), with "*" for any characters, or by a regular expression after "re:" that a name begins
            with, as compressed-tensors has them.
        only: modules that are quantised, likewise; () for all but the ones kept.
    """

    format: Quantization
    kept: tuple[str, ...] = ()
    only: tuple[str, ...] = ()

    def keeps(self, module: str) -> bool:
        """Whether a module such as "model.layers.0.mlp.down_proj" stays in higher precision."""

        def named(patterns: tuple[str, ...]) -> bool:
            return any(_names(pattern, spelled) for pattern in patterns for spelled in _spellings(module))

        return named(self.kept) or (bool(self.only) and not named(self.only))


def _names(pattern: str, module: str) -> bool:
    if pattern.startswith("re:"):
        return re.match(pattern.removeprefix("re:"), module) is not None
    if "*" in pattern:
        return fnmatchcase(module, pattern)
    return f".{pattern}." in f".{module}."


def _spellings(module: str) -> tuple[str, ...]:
    """A release that reads images has its text part under a name of its own, in one of two places."""
    body = module.removeprefix("model.")
    return module, f"language_model.{module}", f"model.language_model.{body}"


@dataclass(frozen=True)
class Packed:
    """A matrix [outputs, width] as a format stores it: tensors by name, so that matrices are joined and cut by rows as
    dense ones are.

    span: for how many rows of the matrix a row of a part stands, where that is not 1.
    """

    format: Quantization
    parts: dict[str, Tensor]
    span: dict[str, int] = field(default_factory=dict)

    def rows(self, begin: int, end: int) -> Packed:
        """A view of some rows of the matrix."""
        found = {}
        for name, part in self.parts.items():
            span = self.span.get(name, 1)
            found[name] = part[begin // span : -(-end // span)]
        return Packed(self.format, found, self.span)


class Quantization(ABC):
    """One weight format.

    Attributes:
        name: on the command line and in metrics. summary: one line for ``--help`` and docs/models.md.
        methods: values of ``quantization_config.quant_method`` in config.json that this format reads, perhaps as one of
            several (`reads`).
        dtypes: model dtypes that it goes with; () for all.
        unit: what a card's tensor cores must have ("fp8"); None for nothing special.
        gpu_only: the CPU does not multiply by it; a checkpoint of it is dequantised there.
        batch_invariant: its products can be computed so that a row does not depend on its batch.
        groups_stored: it multiplies a mixture's experts as a checkpoint stores them, too.
        as_stored: the engine keeps such weights as the checkpoint stores them, unless another format is asked for.
        from_any: the engine can make them from the weights of any checkpoint.
        becomes: other formats by name that its checkpoints may be brought into, beside "none".
        few_rows: most rows that are multiplied one by one, fused with the operations before and after a product.
        narrow_rows: most rows for which its kernel for few rows is used.
        width_multiple: widths of matrices must be multiples of this.
        speeds: by card that was measured (`planner.cards`).
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    methods: ClassVar[tuple[str, ...]] = ()
    dtypes: ClassVar[tuple[str, ...]] = ()
    unit: ClassVar[str | None] = None
    gpu_only: ClassVar[bool] = True
    batch_invariant: ClassVar[bool] = False
    groups_stored: ClassVar[bool] = False
    as_stored: ClassVar[bool] = False
    from_any: ClassVar[bool] = True
    becomes: ClassVar[tuple[str, ...]] = ()
    few_rows: ClassVar[int] = FEW_ROWS
    narrow_rows: ClassVar[int] = NARROW_ROWS
    width_multiple: ClassVar[int] = 1
    speeds: ClassVar[Mapping[str, Speed]]

    def __repr__(self) -> str:
        return f"<quantization {self.name}>"

    # What it requires

    def require_model(self, widths: tuple[int, ...], dtype: str) -> None:
        """Raises ConfigError if the model's dtype or the widths of its matrices do not go with it."""
        if self.dtypes and dtype not in self.dtypes:
            raise ConfigError(
                f"quantization {self.name} goes with dtype {' or '.join(self.dtypes)}, not {dtype}; choose that, or "
                f"--quantization none"
            )
        if any(width % self.width_multiple for width in widths):
            raise ConfigError(
                f"quantization {self.name} needs widths that are multiples of {self.width_multiple}, not {widths}; "
                f"choose --quantization none"
            )

    # How a checkpoint stores it

    def reads(self, declared: Mapping[str, Any]) -> bool:
        """Whether ``quantization_config`` of config.json, whose method is one of `methods`, is of this format."""
        return True

    def stored(self, declared: Mapping[str, Any]) -> StoredWeights:
        """From ``quantization_config`` of config.json. Raises UnsupportedModel for a form that is not read."""
        raise UnsupportedModel(f"{self.name} weights are not read from a checkpoint")

    def part_of(self, head: TensorHead) -> tuple[str, str] | None:
        """(name of the dense weight, name of the part) of a tensor that is a part of a quantised matrix, else None."""
        return None

    def shape_of(self, weight: str, parts: Mapping[str, TensorHead], stored: StoredWeights) -> tuple[int, int]:
        """(outputs, width) of the matrix whose parts these are. Raises CorruptCheckpoint naming a tensor that is
        missing, superfluous or misshapen."""
        raise UnsupportedModel(f"{self.name} weights are not kept as a checkpoint stores them")

    def cut(self, share: Share, parts: Mapping[str, TensorHead]) -> dict[str, Share | None]:
        """Which part of each tensor makes that share of the matrix. One that is not named is read whole, one that is
        None not at all. Raises UnsupportedModel where a rank's part does not divide into the format's groups."""
        raise UnsupportedModel(
            f"{self.name} weights are not divided among ranks; choose --quantization none, or --tensor-parallel-size 1"
        )

    def dense(self, parts: Mapping[str, Tensor], stored: StoredWeights) -> Tensor:
        """The matrix, [outputs, width] float32, from the parts as they were read."""
        raise UnsupportedModel(f"{self.name} weights are not kept as a checkpoint stores them")

    def packed(self, parts: Mapping[str, Tensor], stored: StoredWeights, dtype: torch.dtype) -> dict[str, Tensor]:
        """The parts as `empty` lays them out, if none spans several rows."""
        raise UnsupportedModel(f"{self.name} weights are not kept as a checkpoint stores them")

    def fill(self, place: Packed, parts: Mapping[str, Tensor], stored: StoredWeights, dtype: torch.dtype) -> None:
        """Write a matrix that was read into its place."""
        for name, part in self.packed(parts, stored, dtype).items():
            place.parts[name].copy_(part)

    def empty(
        self, outputs: int, width: int, dtype: torch.dtype, device: torch.device, cuts: tuple[int, ...] = ()
    ) -> Packed:
        """A matrix without content, for formats that are kept as stored.

        cuts: rows where the modules that share it begin.
        """
        raise UnsupportedModel(f"{self.name} weights are not kept as a checkpoint stores them")

    def fill_randomly(self, packed: Packed, spread: float) -> None:
        """Random weights with this standard deviation, for measuring."""
        raise UnsupportedModel(f"{self.name} weights are not kept as a checkpoint stores them")

    # How layers multiply by it

    def quantised(self, kernels: Kernels, parameter: nn.Parameter) -> Linear:
        """The product by a dense weight, in this format. It takes the weight over and may leave `parameter` empty."""
        from backend.quantization.linear import DenseLinear

        return DenseLinear(kernels, parameter)

    def linear(self, kernels: Kernels, packed: Packed) -> Linear:
        """The product by a matrix that is kept as stored."""
        raise UnsupportedModel(f"{self.name} weights are not kept as a checkpoint stores them")

    def experts(self, kernels: Kernels, routing: Routing, gate_up: nn.Parameter, down: nn.Parameter) -> Experts:
        """The products of a mixture of experts by dense weights, [experts, 2 * inner, width] and [experts, width,
        inner]: in the model's dtype, unless this format has grouped products of its own."""
        from backend.quantization.experts import Experts

        return Experts(kernels, routing, gate_up, down)

    def stored_experts(self, kernels: Kernels, routing: Routing, gate_up: Packed, down: Packed) -> Experts:
        """The same by weights that are kept as stored, those of all experts one below another (`groups_stored`)."""
        raise UnsupportedModel(f"experts in {self.name} are not kept as a checkpoint stores them")

    def expert_bytes(self, outputs: int, width: int, element_size: int) -> int:
        """Bytes of one expert's matrix on the card."""
        return outputs * width * element_size

    # What it costs

    def matrix_bytes(self, outputs: int, width: int, element_size: int) -> int:
        """On the card. element_size: bytes of the model's dtype."""
        return outputs * width * element_size

    def bytes_read(self, element_size: int, rows: int) -> float:
        """Bytes that a product of so many rows moves for each weight."""
        return element_size

    def operand_bytes(self, element_size: int) -> int:
        """Bytes of a number that tensor cores multiply in products of many rows: twice the bytes take twice the
        time."""
        return element_size

    def activation_bytes(self, width: int) -> int:
        """For a token, beside the model's dtype."""
        return 0

    def scratch_bytes(self, outputs: int, width: int, element_size: int) -> int:
        """That a product of many rows takes while it runs."""
        return 0
