from typing import get_args

import pytest
from pydantic import BaseModel, ValidationError

import audit.events.event as events
from audit.events.base import Event, Step
from audit.events.event import AdminChanged, AuthFailed, Decision, InferenceAborted, InferenceDenied, Redaction
from audit.events.leaf import EVENT_CLASSES
from tests.audit.conftest import accepted


def test_every_event_class_can_be_read_back() -> None:
    public = {
        member
        for name, member in vars(events).items()
        if isinstance(member, type) and issubclass(member, Event) and member is not Event and not name.startswith("_")
    }
    assert public == set(EVENT_CLASSES)


def test_types_are_names_of_the_taxonomy_and_each_has_one_class() -> None:
    names = [kind for cls in EVENT_CLASSES for kind in get_args(cls.model_fields["type"].annotation)]
    assert len(set(names)) == len(names)
    assert {name.partition(".")[0] for name in names} == {
        "inference",
        "routing",
        "request",
        "auth",
        "admin",
        "legal_hold",
        "erasure",
        "retention",
        "dsar",
        "content",
        "response",
        "log",
        "checkpoint",
        "model",
        "backend",
        "file",
        "batch",
        "oversight",
        "incident",
        "authority_request",
        "system",
    }


def test_only_the_steps_of_a_call_depend_on_one_another() -> None:
    steps = {cls.__name__: cls.step for cls in EVENT_CLASSES if cls.step is not Step.NONE}
    assert steps == {
        "InferenceAccepted": Step.OPENS,
        "RoutingDecision": Step.WITHIN,
        "InferenceCompleted": Step.CLOSES,
        "InferenceAborted": Step.CLOSES,
    }
    for cls in EVENT_CLASSES:
        if cls.step is not Step.NONE:
            assert cls.model_fields["request_id"].is_required()


@pytest.mark.parametrize("cls", EVENT_CLASSES, ids=lambda cls: cls.__name__)
def test_no_event_has_a_field_for_a_float_or_for_anything_at_all(cls: type[BaseModel]) -> None:
    schema = str(cls.model_json_schema())
    assert "'number'" not in schema
    assert "'additionalProperties': True" not in schema


def test_events_are_frozen() -> None:
    with pytest.raises(ValidationError):
        accepted().tenant = "globex"  # type: ignore[misc]


@pytest.mark.parametrize(
    "changed",
    [
        {"prompt": "free text"},
        {"tenant": "Acme"},
        {"tenant": "a/b"},
        {"tenant": "acme\n"},
        {"tenant": ""},
        {"request_id": ""},
        {"request_id": "x" * 257},
        {"inference_country": "fr"},
        {"inference_country": "EUR"},
        {"policy_hash": "A" * 64},
        {"policy_version": 3},
        {"policy_version": ""},
        {"stream": 1},
        {"endpoint": "/v1/chat/completions?q=words of a prompt"},
        {"transfer_basis": ""},
        {"decision": Decision(outcome="deny")},
        {"decision": {"outcome": "perhaps"}},
        {"redaction": {"engine_version": "1", "counts_by_type": {"IBAN FR76": 1}}},
        {"redaction": {"engine_version": "1", "counts_by_type": {"iban": -1}}},
    ],
    ids=str,
)
def test_an_intent_with_a_value_out_of_its_range_cannot_be_made(changed: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        accepted(**changed)


def test_a_refusal_cannot_carry_an_allowing_decision() -> None:
    fields = {
        "tenant": "acme",
        "request_id": "r",
        "key_id": "k",
        "project": "p",
        "endpoint": "/v1/completions",
        "stream": False,
        "model_requested": "m",
        "status": 403,
    }
    InferenceDenied.model_validate(fields | {"decision": Decision(outcome="deny")})
    with pytest.raises(ValidationError, match="only a refused call"):
        InferenceDenied.model_validate(fields | {"decision": Decision(outcome="allow")})


@pytest.mark.parametrize("actor", ["Ada Lovelace", "ada@example.com", "key:", "user:ada", ""])
def test_a_person_cannot_be_named_as_an_actor(actor: str) -> None:
    with pytest.raises(ValidationError):
        AdminChanged(type="admin.key.created", tenant="acme", actor=actor, target="k1", epoch=1)


@pytest.mark.parametrize("reason", ["The user said hello", "", "UPPER", "x" * 65, "new\nline"])
def test_a_reason_is_a_code_and_never_words(reason: str) -> None:
    with pytest.raises(ValidationError):
        InferenceAborted(tenant="acme", request_id="r", reason=reason)
    with pytest.raises(ValidationError):
        AuthFailed(reason=reason)


def test_redaction_counts_need_no_profile() -> None:
    assert Redaction(engine_version="1", counts_by_type={}).model_dump(exclude_none=True) == {
        "engine_version": "1",
        "counts_by_type": {},
    }
