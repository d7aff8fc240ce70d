"""GPTQ checkpoints (Frantar et al. 2023), as AutoGPTQ, GPTQModel and transformers write them.

``x.qweight`` int32 [width / 8, outputs], a word of which holds eight neighbouring columns; ``x.qzeros`` int32
[groups, outputs / 8], a word of which holds eight neighbouring outputs; ``x.scales`` float16 [groups, outputs];
``x.g_idx`` int32 [width], the group of each column. Files of the first version hold each zero less one. A weight is
``(number - zero) * scale``. Columns that were quantised in order of their activations (desc_act) have groups all over
the matrix, which the kernels do not read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from backend.errors import CorruptCheckpoint, UnsupportedModel
from backend.quantization.format import StoredWeights, TensorHead
from backend.quantization.int4 import GROUP, PLACES, Int4, require_shape, require_shapes

if TYPE_CHECKING:
    from torch import Tensor

    from backend.parallel.shard import Share

VERSIONS = {"gptq": 1, "gptq_v2": 0}  # what is added to a stored zero


@dataclass(frozen=True)
class GptqWeights(StoredWeights):
    """zero_offset: what is added to a stored zero."""

    zero_offset: int = 1


class Gptq(Int4):
    name = "gptq"
    summary = "4 bits a weight in groups of 128, of a GPTQ checkpoint without desc_act"
    methods = ("gptq",)

    def stored(self, declared: Mapping[str, Any]) -> StoredWeights:
        bits, group = declared.get("bits"), declared.get("group_size")
        if bits != 4 or group != GROUP:
            raise UnsupportedModel(
                f"gptq weights of {bits} bits in groups of {group}; only 4 bits in groups of {GROUP} are read"
            )
        if declared.get("desc_act"):
            raise UnsupportedModel("gptq weights with desc_act are not read; quantise with desc_act: false")
        for name in ("lm_head", "dynamic"):
            if declared.get(name):
                raise UnsupportedModel(f"gptq weights with {name} are not read; quantise without it")
        version = declared.get("checkpoint_format", "gptq")
        if version not in VERSIONS:
            raise UnsupportedModel(f"gptq weights in the layout {version!r}; only {', '.join(VERSIONS)} are read")
        listed = declared.get("modules_in_block_to_quantize") or ()
        only = tuple(module for group in listed for module in ([group] if isinstance(group, str) else group))
        return GptqWeights(self, only=only, zero_offset=VERSIONS[version])

    def shape_of(self, weight: str, parts: Mapping[str, TensorHead], stored: StoredWeights) -> tuple[int, int]:
        require_shapes(weight, parts, ("qweight", "qzeros", "scales"))
        packed, outputs = parts["qweight"].shape if len(parts["qweight"].shape) == 2 else (0, 0)
        width = packed * PLACES
        groups = width // GROUP
        if width % GROUP or outputs % PLACES or not width or not outputs:
            raise CorruptCheckpoint(
                f"tensor {parts['qweight'].name} is {list(parts['qweight'].shape)}; expected a multiple of "
                f"{GROUP // PLACES} rows and of {PLACES} columns"
            )
        require_shape(parts["qzeros"], (groups, outputs // PLACES))
        require_shape(parts["scales"], (groups, outputs))
        if "g_idx" in parts:
            require_shape(parts["g_idx"], (width,))
        return outputs, width

    def cut(self, share: Share, parts: Mapping[str, TensorHead]) -> dict[str, Share | None]:
        turned = share.transposed()
        found: dict[str, Share | None] = {
            "qweight": turned.in_groups(parts["qweight"].shape, PLACES),
            "qzeros": turned.in_groups(parts["qzeros"].shape, GROUP, PLACES),
            "scales": turned.in_groups(parts["scales"].shape, GROUP),
        }
        return found | ({"g_idx": turned.rows_of(parts["g_idx"].shape)} if "g_idx" in parts else {})

    def numbers(self, parts: Mapping[str, Tensor]) -> Tensor:
        """Raises UnsupportedModel if groups of columns are not neighbours."""
        import torch

        words = parts["qweight"]
        numbers = torch.stack([(words >> (4 * place)) & 0xF for place in range(PLACES)], 1)
        width = len(words) * PLACES
        index = parts.get("g_idx")
        if index is not None and not torch.equal(  # of a rank's part, groups count from another than the first
            index.long() - index[0], torch.arange(width, device=index.device) // GROUP
        ):
            raise UnsupportedModel("gptq weights whose g_idx reorders columns (desc_act) are not read")
        return numbers.view(width, -1).t()

    def zeros(self, parts: Mapping[str, Tensor], stored: StoredWeights) -> Tensor:
        import torch

        words = parts["qzeros"]
        numbers = torch.stack([(words >> (4 * place)) & 0xF for place in range(PLACES)], 2).flatten(1)
        offset = stored.zero_offset if isinstance(stored, GptqWeights) else 1
        return ((numbers + offset) & 0xF).t()  # a zero of 0 was stored as -1


GPTQ = Gptq()
