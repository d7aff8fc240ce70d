"""All conditions, in the order in which a document has them and refusals name them."""

from collections.abc import Mapping
from itertools import chain
from typing import Any

from policy.conditions.condition import Condition, TimeCondition
from policy.conditions.data_classes import DataClasses, SpecialCategories
from policy.conditions.hours import OpeningHours
from policy.conditions.legal_basis import LegalBases
from policy.conditions.models import Models
from policy.conditions.purposes import Purposes

CONDITIONS: tuple[Condition[Any, Any], ...] = (
    Models(),
    Purposes(),
    LegalBases(),
    DataClasses(),
    SpecialCategories(),
    OpeningHours(),
)
TIMED: tuple[TimeCondition[Any, Any], ...] = tuple(one for one in CONDITIONS if isinstance(one, TimeCondition))
FACTS: tuple[str, ...] = tuple(dict.fromkeys(chain.from_iterable(one.facts for one in CONDITIONS)))
"""Fields of a request that conditions read."""
EXPLAINED_BY: Mapping[str, str] = dict(chain.from_iterable(one.explained_by.items() for one in CONDITIONS))
"""Rules whose line in a document is that of another key."""


def form_of_document() -> dict[str, Any]:
    """By key, type and default, as `pydantic.create_model` takes them."""
    return {one.name: (one.form | None, None) for one in CONDITIONS}


def form_of_given() -> dict[str, Any]:
    """The fields by which a policy's test changes a request, as `pydantic.create_model` takes them."""
    fields = (chain(one.given.items(), one.given_of_backend.items()) for one in CONDITIONS)
    return {name: (form, None) for name, form in chain.from_iterable(fields)}


def reference() -> str:
    """The table of conditions in docs/policy-reference.md, in Markdown."""
    rows = [
        f"| `{one.name}` | {one.says} | "
        f"{', '.join(f'`{name}`' for name in (*one.given, *one.given_of_backend)) or '-'} |"
        for one in CONDITIONS
    ]
    return "\n".join(["| key | asks | in a test, `given` |", "|---|---|---|", *rows])
