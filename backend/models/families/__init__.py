"""The models that are served, a file each; ``python -m backend.models.families`` prints their table for docs/models.md.

`backend.models` and `backend.planner` may import it.
"""

from backend.errors import UnsupportedModel
from backend.models.families import (
    deepseek,
    gemma2,
    gemma3,
    gemma3_images,
    gpt_oss,
    granite,
    llama,
    mistral,
    mistral3,
    mixtral,
    olmo2,
    phi3,
    qwen2,
    qwen3,
    qwen3_moe,
    smollm3,
)
from backend.models.families.family import Family

FAMILIES: tuple[Family, ...] = (
    llama.FAMILY,
    mistral.FAMILY,
    mistral3.FAMILY,
    qwen2.FAMILY,
    qwen3.FAMILY,
    phi3.FAMILY,
    gemma2.FAMILY,
    gemma3.FAMILY,
    gemma3_images.FAMILY,
    granite.FAMILY,
    olmo2.FAMILY,
    smollm3.FAMILY,
    mixtral.FAMILY,
    qwen3_moe.FAMILY,
    gpt_oss.FAMILY,
    deepseek.V2,
    deepseek.V3,
)


def of_architecture(name: str | None) -> Family:
    """By config.json's name. Raises UnsupportedModel naming those that are served."""
    for family in FAMILIES:
        if family.architecture == name:
            return family
    served = ", ".join(sorted(family.architecture for family in FAMILIES))
    raise UnsupportedModel(f"architecture {name!r} is not one of {served}")


def of_gguf(name: str | None) -> Family:
    """By GGUF's name. Raises UnsupportedModel naming those that are read."""
    for family in FAMILIES:
        if family.gguf is not None and family.gguf == name:
            return family
    read = ", ".join(sorted(family.gguf for family in FAMILIES if family.gguf))
    raise UnsupportedModel(f"GGUF architecture {name!r} is not one of {read}")
