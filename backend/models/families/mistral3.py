"""Mistral Small 3.1 and later: Mistral in a release that holds what reads images as well; only the text is served."""

from collections.abc import Mapping
from typing import Any

from backend.models.families import gemma3_images, mistral
from backend.models.families.family import Family


def _spelling(config: Mapping[str, Any]) -> Mapping[str, Any]:
    part = gemma3_images.text_part(config)
    tied = config.get("tie_word_embeddings", part.get("tie_word_embeddings", False))
    return {**part, "tie_word_embeddings": tied}


FAMILY = Family(
    architecture="Mistral3ForConditionalGeneration",
    models="Mistral Small 3.1, Magistral Small: text in, text out",
    features="as Mistral; what reads images is passed over",
    traits=mistral.traits,
    spelling=_spelling,
)
