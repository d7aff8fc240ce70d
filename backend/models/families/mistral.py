"""Mistral 7B and Nemo (Jiang et al. 2023): Llama with, in the first release, a sliding window."""

from collections.abc import Mapping
from typing import Any

from backend.models.families import windows
from backend.models.families.family import Family, Traits


def traits(config: Mapping[str, Any]) -> Traits:
    return Traits(windows=windows.in_every_layer(config))


FAMILY = Family(
    architecture="MistralForCausalLM",
    models="Mistral 7B 0.1 to 0.3, Nemo, Small; Zephyr",
    features="sliding window in every layer, where config.json has one",
    traits=traits,
)
