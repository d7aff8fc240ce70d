import re
from pathlib import Path
from typing import get_args

import pytest
from pydantic import BaseModel

from audit.events.event import Decision, Reason, Redaction
from audit.events.leaf import EVENT_CLASSES
from audit.events.stamp import Stamp
from audit.private.certificate import Certificate, Recipient

DOCUMENT = (Path(__file__).parent.parent.parent / "docs/audit-format.md").read_text(encoding="utf-8")
SAID = set(re.findall(r"`([a-z0-9_.]+)`", DOCUMENT))
MODELS: list[type[BaseModel]] = [*EVENT_CLASSES, Stamp, Decision, Reason, Redaction, Certificate, Recipient]


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.__name__)
def test_every_field_of_a_leaf_is_in_the_format_document(model: type[BaseModel]) -> None:
    assert set(model.model_fields) <= SAID


def types_of(model: type[BaseModel]) -> tuple[str, ...]:
    return get_args(model.model_fields["type"].annotation)


def test_every_event_type_has_its_place_in_the_format_document() -> None:
    assert {kind for cls in EVENT_CLASSES for kind in types_of(cls)} <= SAID


def test_the_format_document_names_no_event_that_cannot_occur() -> None:
    types = {kind for cls in EVENT_CLASSES for kind in types_of(cls)}
    named = {
        name
        for name in SAID
        if re.fullmatch(
            r"(inference|routing|request|auth|admin|legal_hold|erasure|retention|dsar|content|incident|oversight|model"
            r"|authority_request|system)\.[a-z_.]+|log\.(read|exported|key_[a-z]+)|checkpoint\.[a-z_]+"
            r"|backend\.(key_[a-z]+|attested|attestation_refused)|batch\.[a-z]+|file\.(stored|read|deleted)|response\.[a-z]+",
            name,
        )
    }
    assert named == types
