"""What backends say of their models: length of context, and abilities.

Servers spell it in their own ways: vLLM and SGLang ``max_model_len``, OpenRouter ``context_length``, ``architecture``
and ``supported_parameters``, Mistral and LM Studio ``max_context_length``, Groq ``context_window``, llama.cpp
``meta.n_ctx``. Our engine says it as this gateway does.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from gateway.openai.finite_json import read
from gateway.openai.usage import MAX_TOKENS

ABILITIES: Final = (
    "chat", "completions", "embeddings", "rerank", "tools", "structured_output", "reasoning", "vision"
)  # fmt: skip
CONTEXTS: Final = ("max_model_len", "context_length", "max_context_length", "context_window")
_MISTRAL: Final = {"completion_chat": "chat", "function_calling": "tools", "vision": "vision"}
_OPENROUTER: Final = {
    "tools": "tools",
    "structured_outputs": "structured_output",
    "response_format": "structured_output",
    "reasoning": "reasoning",
    "include_reasoning": "reasoning",
}
MAX_MODELS: Final = 10_000


@dataclass(frozen=True, slots=True)
class Card:
    """`context`: tokens of prompt and answer together. `abilities`: what is known, by name. None and absent: not
    known."""

    context: int | None = None
    abilities: Mapping[str, bool] = field(default_factory=dict)


UNKNOWN: Final = Card()


class Cards:
    """By id of a backend, then by model. For one event loop."""

    def __init__(self) -> None:
        self._of: dict[str, tuple[object, Mapping[str, Card]]] = {}

    def knows(self, backend: str, as_of: object) -> bool:
        """Whether the backend was asked since it is what it is."""
        known = self._of.get(backend)
        return known is not None and known[0] is as_of

    def note(self, backend: str, as_of: object, cards: Mapping[str, Card]) -> None:
        self._of[backend] = as_of, cards

    def forget(self, living: Collection[str]) -> None:
        self._of = {name: known for name, known in self._of.items() if name in living}

    def of(self, model: str, backends: Iterable[str]) -> Card:
        """What all of `backends` that say something offer: the shortest context, and what each of them can do."""
        told = [self._of[name][1].get(model, UNKNOWN) for name in backends if name in self._of]
        contexts = [card.context for card in told if card.context is not None]
        abilities: dict[str, bool] = {}
        for card in told:
            for name, able in card.abilities.items():
                abilities[name] = abilities.get(name, True) and able
        return Card(min(contexts, default=None), abilities)


def parse_cards(raw: bytes) -> dict[str, Card]:
    """Model cards of an answer of ``/v1/models``; empty for what is none."""
    try:
        told = read(raw)["data"][:MAX_MODELS]
        return {one["id"]: _card(one) for one in told if isinstance(one["id"], str)}
    except (ValueError, KeyError, TypeError):
        return {}


def _card(one: Mapping[str, Any]) -> Card:
    meta = one.get("meta")
    found = [one.get(name) for name in CONTEXTS] + [meta.get("n_ctx") if isinstance(meta, dict) else None]
    contexts = [length for length in found if type(length) is int and 0 < length <= MAX_TOKENS]
    return Card(contexts[0] if contexts else None, _abilities(one))


def _abilities(one: Mapping[str, Any]) -> dict[str, bool]:
    said = one.get("capabilities")
    abilities: dict[str, bool] = {}
    if isinstance(said, dict):
        for name, able in said.items():
            ours = name if name in ABILITIES else _MISTRAL.get(name)
            if ours is not None and isinstance(able, bool):
                abilities[ours] = able
    parameters = one.get("supported_parameters")
    if isinstance(parameters, list):
        abilities |= {ours: False for ours in _OPENROUTER.values()} | abilities
        abilities |= {ours: True for name, ours in _OPENROUTER.items() if name in parameters}
    architecture = one.get("architecture")
    if isinstance(architecture, dict) and isinstance(inputs := architecture.get("input_modalities"), list):
        abilities["vision"] = "image" in inputs
    return abilities
