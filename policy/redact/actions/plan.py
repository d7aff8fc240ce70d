"""Redaction plans: which labels are searched for and which action is applied, for prompts and for answers."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal, TypeVar, get_args

from policy.redact.ids.kinds import IDS, same_numbers
from policy.redact.labels import PERSON
from policy.redact.payment.card_details import EXPIRY, VERIFICATION

Label = str
Action = Literal["tag", "hash", "pseudonymise", "mask", "block"]
OutputAction = Literal["tag", "hash", "mask", "block"]

LABELS: tuple[Label, ...] = (
    "secret", "email", "iban", "card", "vat", "imei", "national_id", "phone", "mac", "ip", "date_of_birth",
    "bic", "plate", "address",
)  # fmt: skip
# A stream would have to buffer several words for an address or a plate, and every word for a BIC.
OUTPUT_LABELS: tuple[Label, ...] = tuple(label for label in LABELS if label not in ("bic", "plate", "address"))
INPUT_LABELS: tuple[Label, ...] = (*LABELS, PERSON)
"""Names of persons are searched for in prompts only, and require the extra `ner`."""
KINDS: tuple[Label, ...] = (
    *(f"national_id.{kind}" for kind in IDS),
    *(f"card.{kind}" for kind in (VERIFICATION, EXPIRY)),
)
"""Labels with a kind of id or a card detail. A policy may name these, or their first part for all of them."""

# Strictness by what leaves the gateway: `tag` only counts; `hash` links calls of one tenant; a pseudonym links values
# within one request; a mask links nothing; `block` sends nothing.
STRICTNESS: Mapping[str, int] = MappingProxyType({action: rank for rank, action in enumerate(get_args(Action))})

A = TypeVar("A", bound=str)
_SAME: Mapping[Label, tuple[Label, ...]] = MappingProxyType(
    {f"national_id.{kind}": tuple(f"national_id.{each}" for each in same) for kind, same in same_numbers().items()}
)


def action_for(actions: Mapping[Label, A], label: Label) -> A | None:
    """Return the strictest action that applies to `label`, or None.

    Considered are the actions of its kind, of the same number under another country's kind (a text may not show which
    of them it contains), and of its first part.
    """
    if "." not in label:
        return actions.get(label)
    asked = (*_SAME.get(label, (label,)), general_label(label))
    return max((actions[each] for each in asked if each in actions), key=STRICTNESS.__getitem__, default=None)


def general_label(label: Label) -> Label:
    """Return the part of a label before the dot."""
    return label.partition(".")[0]


@dataclass(frozen=True, slots=True)
class RedactionPlan:
    """Action by label for prompts (``input``) and answers (``output``). Labels without an action are left unchanged.

    ``words`` and ``patterns``: the tenant's own, by name; findings have the label ``custom.NAME``.
    """

    input: Mapping[Label, Action] = field(default_factory=dict)
    output: Mapping[Label, OutputAction] = field(default_factory=dict)
    words: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    patterns: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("input", "output", "words", "patterns"):
            object.__setattr__(self, name, MappingProxyType(dict(getattr(self, name))))

    @property
    def is_empty(self) -> bool:
        """Whether the plan has no action, for prompts or for answers."""
        return not self.input and not self.output
