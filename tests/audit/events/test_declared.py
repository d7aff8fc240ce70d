"""Everything that is known of an event type follows from its declaration; what is written from it is up to date."""

import json
from pathlib import Path
from typing import Any

import pytest

from audit.events import event_types as written
from audit.events.declared import CLASS_OF, KEPT, event_types, reference
from audit.events.event_types import ACCESS_TYPES, OCSF_CLASSES

ROOT = Path(__file__).parents[3]
DOCUMENT = ROOT / "docs/audit-format.md"
BEGIN, END = "<!-- types: written by `python -m tests.audit.events.test_declared` -->", "<!-- end of types -->"
RECORDED: dict[str, Any] = json.loads((ROOT / "tests/vectors/events/types.json").read_text(encoding="utf-8"))
"""As the code of 29 November 2026 had it, before types declared it themselves."""


def with_types(page: str) -> str:
    """The page with the table of all types as the code has it."""
    head, rest = page.split(BEGIN)
    return f"{head}{BEGIN}\n{reference()}\n{END}{rest.split(END)[1]}"


def test_the_module_for_the_verifier_is_the_one_that_the_declarations_give() -> None:
    now = Path(written.__file__).read_text(encoding="utf-8")
    assert now == event_types(), "run: python -m audit.events.declared"


def test_the_table_of_the_documentation_is_the_one_that_the_declarations_give() -> None:
    page = DOCUMENT.read_text(encoding="utf-8")
    assert with_types(page) == page, "run: PYTHONPATH=. python -m tests.audit.events.test_declared"


@pytest.mark.parametrize("kind", RECORDED)
def test_a_type_is_exported_listed_and_kept_as_it_was(kind: str) -> None:
    declared = {"ocsf": list(OCSF_CLASSES[kind]), "access": kind in ACCESS_TYPES, "kept": KEPT[kind].value}
    assert declared == RECORDED[kind]


def test_every_type_belongs_to_one_class() -> None:
    assert sum(len(cls.types()) for cls in set(CLASS_OF.values())) == len(CLASS_OF) == len(OCSF_CLASSES)
    assert set(CLASS_OF) > ACCESS_TYPES


if __name__ == "__main__":
    DOCUMENT.write_text(with_types(DOCUMENT.read_text(encoding="utf-8")), encoding="utf-8")
