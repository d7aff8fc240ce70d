"""Parser of the ``quantization_config`` of compressed-tensors and ModelOpt, for all formats.

compressed-tensors (vllm-project/compressed-tensors 0.20) names in ``config_groups`` how weights and activations of
which modules are quantised, and in ``ignore`` the modules that are not. ModelOpt (NVIDIA) names its algorithm in
``quant_algo``, in config.json or, older, in hf_quant_config.json under ``quantization``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from backend.errors import UnsupportedModel
from backend.quantization.format import Quantization, StoredWeights

METHOD, MODELOPT = "compressed-tensors", "modelopt"
CLASSES = ("Linear", "LinearBase")  # targets that stand for every module


@dataclass(frozen=True, slots=True)
class Scheme:
    """Format of the weights: "float" or "int", bits, "tensor", "channel", "group" or "block", columns of a group, shape
    of a block; whether they are without zero points. activation: "float" or "int", None where they are not
    quantised."""

    type: str
    bits: int
    strategy: str
    group: int | None
    block: tuple[int, ...] | None
    symmetric: bool
    activation: str | None


def scheme_of(declared: Mapping[str, Any]) -> Scheme:
    """The scheme of every quantised module. Raises UnsupportedModel naming what no format reads."""
    _require_plain(declared)
    groups = list((declared.get("config_groups") or {}).values())
    schemes = {_scheme(group) for group in groups}
    if len(schemes) != 1:
        raise UnsupportedModel(f"compressed-tensors weights of {len(schemes)} schemes; one for all is read")
    return schemes.pop()


def _require_plain(declared: Mapping[str, Any]) -> None:
    sparsity = (declared.get("sparsity_config") or {}).get("format", "dense")
    if sparsity != "dense":
        raise UnsupportedModel(f"sparse weights ({sparsity}) are not read; export them without sparsity compression")
    if (declared.get("transform_config") or {}).get("config_groups"):
        raise UnsupportedModel("weights with transforms of activations (transform_config) are not read")


def _scheme(group: Mapping[str, Any]) -> Scheme:
    weights, inputs = group.get("weights") or {}, group.get("input_activations")
    if group.get("output_activations"):
        raise UnsupportedModel("compressed-tensors with quantised output activations is not read")
    if inputs and not inputs.get("symmetric", True):
        raise UnsupportedModel("activations with zero points are not computed; quantise them with symmetric: true")
    order = weights.get("actorder")
    if order and str(order).lower() not in ("weight", "static"):
        raise UnsupportedModel(f"weights with actorder {order!r} are not read; quantise with actorder: static")
    block = weights.get("block_structure")
    return Scheme(
        type=str(weights.get("type", "int")),
        bits=int(weights.get("num_bits", 8)),
        strategy=str(weights.get("strategy")),
        group=weights.get("group_size"),
        block=tuple(block) if isinstance(block, list | tuple) else None,
        symmetric=bool(weights.get("symmetric", True)),
        activation=str(inputs.get("type", "int")) if inputs else None,
    )


def stored_as(format: Quantization, declared: Mapping[str, Any]) -> StoredWeights:
    """With the modules that `declared` ignores, and those that it targets where it does not target all."""
    targets = [target for group in declared["config_groups"].values() for target in group.get("targets") or CLASSES]
    every = any(target in CLASSES for target in targets)
    return StoredWeights(format, tuple(declared.get("ignore") or ()), () if every else tuple(targets))


def algorithm_of(declared: Mapping[str, Any]) -> str:
    """ModelOpt's, in capitals."""
    return str(_modelopt(declared).get("quant_algo")).upper()


def stored_by_modelopt(format: Quantization, declared: Mapping[str, Any]) -> StoredWeights:
    said = _modelopt(declared)
    return StoredWeights(format, tuple(said.get("ignore") or said.get("exclude_modules") or ()))


def _modelopt(declared: Mapping[str, Any]) -> Mapping[str, Any]:
    found = declared.get("quantization", declared)
    return found if isinstance(found, Mapping) else {}


def described(declared: Mapping[str, Any]) -> str:
    """What form of weights that is, for a refusal."""
    if declared.get("quant_method") == MODELOPT:
        return algorithm_of(declared)
    if declared.get("quant_method") != METHOD:
        return f"blocks of {declared['weight_block_size']}" if "weight_block_size" in declared else ""
    kinds = []
    for group in (declared.get("config_groups") or {}).values():
        weights, inputs = group.get("weights") or {}, group.get("input_activations") or {}
        strategy = weights.get("strategy")
        words = [weights.get("type"), weights.get("num_bits"), strategy and f"by {strategy}", weights.get("group_size")]
        kinds.append(" ".join(str(word) for word in words if word is not None))
        kinds += [f"activations {inputs['type']} {inputs.get('num_bits')}"] if inputs.get("type") else []
    return ", ".join(filter(None, [declared.get("format"), *kinds]))
