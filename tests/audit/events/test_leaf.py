import json
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from audit.errors import CanonicalError, EventRejected
from audit.events.base import Event
from audit.events.canonical import canonicalize
from audit.events.event import AdminChanged, Decision, Reason, SystemSelftest
from audit.events.leaf import MAX_LEAF_SIZE, decode_leaf, encode_leaf
from audit.events.stamp import Stamper, uuid7
from tests.audit.conftest import accepted, completed

STAMPER = Stamper("gw-1", uuid7(0), time.time)


@pytest.mark.parametrize(
    "event",
    [
        accepted("r1"),
        completed("r1"),
        SystemSelftest(),
        AdminChanged(type="admin.key.revoked", tenant="acme", actor="cli", target="k1", epoch=3),
    ],
    ids=lambda event: event.type,
)
def test_an_event_is_read_back_as_it_was_recorded(event: object) -> None:
    payload = encode_leaf(event, STAMPER.fields())
    leaf = decode_leaf(payload)
    assert leaf.event == event
    assert leaf.stamp.gateway_node == "gw-1"
    assert leaf.stamp.boot_id == STAMPER.boot


@settings(deadline=None)
@given(st.text(min_size=1, max_size=256), st.text(max_size=300).map(lambda text: text or "-"))
def test_any_words_in_a_reason_survive_the_canonical_form(model: str, because: str) -> None:
    decision = Decision(outcome="allow", reasons=(Reason(rule="r", because=because),))
    event = accepted("r1", model_requested=model, decision=decision)
    assert decode_leaf(encode_leaf(event, STAMPER.fields())).event == event


def test_absent_fields_are_left_out() -> None:
    record = json.loads(encode_leaf(completed("r1"), STAMPER.fields()))
    assert None not in record.values()
    assert "ttft_ms" not in record


def test_a_leaf_larger_than_the_limit_is_refused_naming_its_size() -> None:
    reasons = tuple(Reason(rule="r", because="x" * 512) for _ in range(40))
    with pytest.raises(EventRejected, match=f"more than {MAX_LEAF_SIZE}"):
        encode_leaf(accepted(decision=Decision(outcome="allow", reasons=reasons)), STAMPER.fields())
    with pytest.raises(EventRejected, match=f"more than {MAX_LEAF_SIZE}"):
        decode_leaf(b'"' + b"x" * MAX_LEAF_SIZE + b'"')


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"v": 2}, "v"),
        ({"ts": "2026-01-01T00:00:00Z"}, "ts"),
        ({"event_id": "not-a-uuid"}, "event_id"),
        ({"event_id": "00000000-0000-4000-8000-000000000000"}, "event_id"),
        ({"boot_id": None}, "boot_id"),
        ({"gateway_node": "GW 1"}, "gateway_node"),
        ({"type": "inference.imagined"}, "union_tag_invalid"),
        ({"tenant": "No Tenant"}, "tenant"),
        ({"extra": 1}, "extra"),
        ({"tokens_in": -1}, "tokens_in"),
    ],
    ids=str,
)
def test_a_record_that_breaks_the_schema_is_refused_naming_the_field(change: dict[str, object], named: str) -> None:
    record = json.loads(encode_leaf(completed("r1"), STAMPER.fields())) | change
    with pytest.raises(EventRejected, match=named):
        decode_leaf(canonicalize({name: value for name, value in record.items() if value is not None}))


class Imagined(SystemSelftest):
    """A subclass that a caller made up: it would be recorded and never read back."""

    note: str = "anything"


@pytest.mark.parametrize("event", [Imagined(), Event(type="inference.imagined", tenant="acme")])
def test_an_event_of_a_class_of_its_own_is_refused(event: Event) -> None:
    with pytest.raises(EventRejected, match="is not an event of this format"):
        encode_leaf(event, STAMPER.fields())


@pytest.mark.parametrize("payload", [b"[]", b"1", b"null", b'"text"'], ids=repr)
def test_json_that_is_no_object_is_no_record(payload: bytes) -> None:
    with pytest.raises(EventRejected):
        decode_leaf(payload)


def test_a_record_out_of_canonical_form_is_refused() -> None:
    payload = encode_leaf(completed("r1"), STAMPER.fields())
    with pytest.raises(CanonicalError):
        decode_leaf(payload.replace(b":", b": ", 1))


def test_the_refusal_of_a_record_does_not_repeat_what_is_in_it() -> None:
    record = json.loads(encode_leaf(completed("r1"), STAMPER.fields())) | {"finish_reason": "My Secret Words"}
    with pytest.raises(EventRejected) as caught:
        decode_leaf(canonicalize(record))
    assert "Secret" not in str(caught.value)
