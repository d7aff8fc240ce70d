"""Objects of offered models: OpenAI's, with what vLLM, OpenRouter and Mistral add, and Ollama's."""

from datetime import datetime
from typing import Any, Final

from gateway.offers.offer import Offered

_PARAMETERS: Final = {
    "tools": ("tools", "tool_choice"),
    "structured_output": ("response_format", "structured_outputs"),
    "reasoning": ("reasoning", "include_reasoning"),
}
"""OpenRouter's ``supported_parameters``, by ability."""
_OLLAMA: Final = {
    "chat": "completion",
    "embeddings": "embedding",
    "reasoning": "thinking",
    "tools": "tools",
    "vision": "vision",
}
"""Ollama's words for abilities."""
OLLAMA_VERSION: Final = "0.12.0"
"""Version of Ollama's API, which its clients compare with what they need."""


def openai_model(offered: Offered, created: int, owner: str) -> dict[str, Any]:
    """What is not known is left out."""
    told: dict[str, Any] = {"id": offered.name, "object": "model", "created": created, "owned_by": owner}
    card, record = offered.card, offered.record
    if card.context is not None:
        told |= {name: card.context for name in ("max_model_len", "context_length", "context_window")}
    if card.abilities:
        told["capabilities"] = dict(card.abilities)
        inputs = ["text", "image"] if card.abilities.get("vision") else ["text"]
        makes_vectors = card.abilities.get("embeddings") and not card.abilities.get("chat")
        told["architecture"] = {
            "input_modalities": inputs,
            "output_modalities": ["embeddings" if makes_vectors else "text"],
        }
        able = [name for ability, names in _PARAMETERS.items() if card.abilities.get(ability) for name in names]
        told["supported_parameters"] = able
    if record is not None:
        told["root"] = offered.target
        if record.deprecated_at is not None:
            notice = {
                "deprecated_at": _instant(record.deprecated_at),
                "sunset_at": _instant(record.sunset_at),
                "replacement": record.replacement,
            }
            told["deprecation"] = {name: value for name, value in notice.items() if value is not None}
    return told


def ollama_model(offered: Offered, modified_at: str) -> dict[str, Any]:
    """Entry of ``/api/tags``. Only backends know files and sizes."""
    return {
        "name": offered.name,
        "model": offered.name,
        "modified_at": modified_at,
        "size": 0,
        "digest": "",
        "details": _details(),
    }


def ollama_shown(offered: Offered, modified_at: str) -> dict[str, Any]:
    """Answer of ``/api/show``."""
    info: dict[str, Any] = {"general.architecture": "domicile"}
    if offered.card.context is not None:
        info["domicile.context_length"] = offered.card.context
    abilities = offered.card.abilities or {"chat": True}
    return {
        "modelfile": "",
        "parameters": "",
        "template": "",
        "license": "",
        "modified_at": modified_at,
        "details": _details(),
        "model_info": info,
        "capabilities": [word for ability, word in _OLLAMA.items() if abilities.get(ability)],
    }


def _details() -> dict[str, Any]:
    return {
        "parent_model": "",
        "format": "",
        "family": "",
        "families": [],
        "parameter_size": "",
        "quantization_level": "",
    }


def _instant(at: datetime | None) -> str | None:
    return None if at is None else at.isoformat().replace("+00:00", "Z")
