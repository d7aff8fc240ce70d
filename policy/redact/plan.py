"""What is looked for and what is done when it is found, each way."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal, get_args

Label = Literal["email", "iban", "card", "phone", "ip", "secret", "national_id"]
Action = Literal["tag", "hash", "pseudonymise", "mask", "block"]
OutputAction = Literal["tag", "hash", "mask", "block"]

LABELS: tuple[Label, ...] = get_args(Label)

# How little leaves: `tag` only counts; `hash` still joins calls of one tenant; a pseudonym joins within one request;
# a mask joins nothing; `block` sends nothing.
STRICTNESS: Mapping[str, int] = MappingProxyType({action: rank for rank, action in enumerate(get_args(Action))})


@dataclass(frozen=True, slots=True)
class RedactionPlan:
    """Label to action for prompts (``input``) and answers (``output``); a label that is absent is left alone."""

    input: Mapping[Label, Action] = field(default_factory=dict)
    output: Mapping[Label, OutputAction] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "input", MappingProxyType(dict(self.input)))
        object.__setattr__(self, "output", MappingProxyType(dict(self.output)))

    @property
    def is_empty(self) -> bool:
        return not self.input and not self.output
