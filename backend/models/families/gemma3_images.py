"""Gemma 3 from 4B on (Gemma Team 2025): its releases hold what reads images as well; only the text is served."""

from collections.abc import Mapping
from typing import Any

from backend.errors import CorruptCheckpoint
from backend.models.families import gemma3
from backend.models.families.family import GELU_TANH, Family

UNSAID = {  # of the text part, in releases that write down only what differs from 4B
    "vocab_size": 262_208, "num_attention_heads": 8, "num_key_value_heads": 4, "max_position_embeddings": 131_072,
    "query_pre_attn_scalar": 256,
}  # fmt: skip


def text_part(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """Raises CorruptCheckpoint where there is none."""
    part = config.get("text_config")
    if not isinstance(part, Mapping):
        raise CorruptCheckpoint("config.json has no text_config")
    return {name: value for name, value in part.items() if value is not None}


def _spelling(config: Mapping[str, Any]) -> Mapping[str, Any]:
    return gemma3.spelling({**UNSAID, **text_part(config)})


FAMILY = Family(
    architecture="Gemma3ForConditionalGeneration",
    models="Gemma 3 4B, 12B, 27B: text in, text out",
    features="as Gemma 3; what reads images is passed over",
    traits=gemma3.traits,
    spelling=_spelling,
    activation=GELU_TANH,
)
