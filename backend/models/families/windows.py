"""Which layers attend to a sliding window only, and how wide it is (Beltagy et al. 2020; Jiang et al. 2023)."""

from collections.abc import Mapping
from typing import Any

from backend.errors import UnsupportedModel

FULL, SLIDING = "full_attention", "sliding_attention"


def in_every_layer(config: Mapping[str, Any]) -> tuple[int | None, ...]:
    """Mistral's: all layers alike."""
    width = config.get("sliding_window")
    return () if width is None else (int(width),) * int(config["num_hidden_layers"])


def by_layer(config: Mapping[str, Any]) -> tuple[int | None, ...]:
    """Qwen's: where ``use_sliding_window`` is on, in the layers that ``layer_types`` names, or from
    ``max_window_layers`` on. Raises UnsupportedModel for a layer that is neither full nor sliding."""
    kinds = _named(config)
    if not config.get("use_sliding_window", False) or config.get("sliding_window") is None:
        return ()
    if kinds is None:
        first = int(config["max_window_layers"])
        kinds = [SLIDING if layer >= first else FULL for layer in range(int(config["num_hidden_layers"]))]
    return of_kinds(config, kinds)


def kinds(config: Mapping[str, Any], every: int) -> list[str]:
    """Gemma's: of each layer, as ``layer_types`` says, or else full in each `every`-th and sliding between them. Raises
    UnsupportedModel like `by_layer`."""
    layers = range(1, int(config["num_hidden_layers"]) + 1)
    return _named(config) or [SLIDING if layer % every else FULL for layer in layers]


def of_kinds(config: Mapping[str, Any], kinds: list[str]) -> tuple[int | None, ...]:
    width = config.get("sliding_window")
    return () if width is None else tuple(int(width) if kind == SLIDING else None for kind in kinds)


def _named(config: Mapping[str, Any]) -> list[str] | None:
    named = config.get("layer_types")
    if named is not None and (strange := set(named) - {FULL, SLIDING}):
        raise UnsupportedModel(f"layers of {', '.join(sorted(map(str, strange)))}; only full and sliding are computed")
    return named
