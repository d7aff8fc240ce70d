"""What goes on record about a call, in a real log: the intent, one outcome, and what a log that is shut means."""

import json

import pytest

from audit.keys.signer import FileSigner
from audit.log.audit_log import AuditLog
from audit.log.receipt import Receipt
from audit.storage.sqlite import SqliteReader
from gateway import errors
from gateway.request.answer.received import ReceivedAnswer
from gateway.request.recorder import Recorder
from gateway.request.stages import Accepted
from policy.reason import Reason
from tests.gateway.parts import World, exchange, parsed

SECRET = "Zeppelin"


@pytest.fixture
async def log(tmp_path):
    async with await AuditLog.open(
        tmp_path / "log.db", signer=FileSigner.open(tmp_path / "signer.key"), node="gw-1"
    ) as opened:
        yield opened


@pytest.fixture
def world():
    return World("acme/eu-fr-par/acme-1", "acme/eu-de-fra/acme-2")


@pytest.fixture
def recorder(log, world):
    return Recorder(log, world.telemetry)


@pytest.fixture
def recorded(tmp_path, log):
    """The events of a tenant, in order."""

    def read(tenant="acme"):
        reader = SqliteReader.open(tmp_path / "log.db")
        try:
            return [json.loads(leaf.payload) for leaf in reader.leaves(tenant)]
        finally:
            reader.close()

    return read


async def accepted(recorder, world, asked, name="acme-1", attempt=0):
    """`asked` after its seventh step: on record for the backend called `name`."""
    asked.routed = world.routed(asked.parsed, name, attempt)
    asked.decision = asked.routed.redacted.allowed
    asked.accepted = await recorder.accepted(asked.routed, asked.accepted)
    return asked


async def test_an_intent_says_what_is_called_where_and_by_whose_rules(recorder, recorded, world):
    secret = {"model": "small", "messages": [{"role": "user", "content": SECRET}]}
    asked = await accepted(recorder, world, exchange(secret))
    (event,) = recorded()
    assert event["type"] == "inference.accepted"
    assert (event["request_id"], event["key_id"], event["project"]) == ("req-1", "7GA3GXAA", "main")
    assert (event["backend_id"], event["region"], event["inference_country"]) == ("acme-1", "eu-fr-par", "FR")
    assert (event["policy_id"], event["policy_version"]) == ("test-default", "1")
    assert event["art50_notice"] == "art50"
    assert event["retention_class"].startswith("metadata_")
    assert asked.accepted.intent.seq == 0
    assert SECRET not in json.dumps(event)


async def test_another_attempt_is_a_step_of_the_same_call(recorder, recorded, world):
    asked = await accepted(recorder, world, exchange())
    first = asked.accepted
    await accepted(recorder, world, asked, "acme-2", attempt=1)
    assert asked.accepted.intent is first.intent
    assert [event["type"] for event in recorded()] == ["inference.accepted", "routing.decision"]
    assert (recorded()[1]["region"], recorded()[1]["fallback_index"]) == ("eu-de-fra", 1)


async def test_a_call_has_one_outcome(recorder, recorded, world):
    asked = await accepted(recorder, world, exchange())
    receipt = await recorder.completed(asked.accepted, asked.received)
    await recorder.aborted(asked, "client_disconnected")
    assert [event["type"] for event in recorded()] == ["inference.accepted", "inference.completed"]
    assert str(receipt).startswith("acme/1/")


async def test_a_call_that_ends_early_is_aborted_once_and_counted(recorder, recorded, world):
    asked = await accepted(recorder, world, exchange())
    error = errors.BackendTimeout("silent")
    assert await recorder.refused(asked, error) == (error, True)
    await recorder.aborted(asked, "client_disconnected")
    assert [(event["type"], event.get("reason")) for event in recorded()][1:] == [
        ("inference.aborted", "backend_timeout")
    ]
    assert recorded()[1]["status"] == 504
    assert b'domicile_aborted_total{reason="backend_timeout",tenant="acme"} 1.0' in world.telemetry.exposition()


@pytest.mark.parametrize(
    ("error", "rule"),
    [
        (
            errors.PolicyDenied([Reason("residency.process_in", "us-1", "computes in US", "GDPR 44")]),
            "residency.process_in",
        ),
        (errors.RedactionRefused("holds a secret", code="redaction_blocked"), "redaction.blocked"),
        (errors.RedactionRefused("cannot be inspected"), "redaction.refused"),
    ],
)
async def test_a_refusal_by_the_rules_is_on_record_with_its_reason(recorder, recorded, error, rule):
    assert await recorder.refused(exchange(), error) == (error, True)
    (event,) = recorded()
    assert (event["type"], event["status"]) == ("inference.denied", error.http_status)
    assert event["decision"]["reasons"][0]["rule"] == rule


@pytest.mark.parametrize("error", [errors.ModelNotFound("m"), errors.LimitReached("m"), errors.BackendUnavailable("m")])
async def test_a_call_that_came_to_nothing_for_other_reasons_has_no_record_of_its_own(recorder, recorded, error):
    assert await recorder.refused(exchange(), error) == (error, False)
    assert recorded() == []


async def test_without_a_log_nothing_is_accepted_completed_or_refused_in_its_own_words(recorder, log, world):
    asked, other = await accepted(recorder, world, exchange()), exchange(request_id="req-2")
    await log.close()
    with pytest.raises(errors.AuditUnavailable) as shut:
        await accepted(recorder, world, other)
    assert shut.value.headers() == [(b"retry-after", b"5")]
    with pytest.raises(errors.AuditUnavailable):
        await recorder.completed(asked.accepted, asked.received)
    assert asked.received.closed, "the log closes it itself, as unrecorded, once it is well again"
    denied, stands = await recorder.refused(other, errors.PolicyDenied([Reason("r", None, "b")]))
    assert isinstance(denied, errors.AuditUnavailable)
    assert not stands


async def test_an_outcome_that_cannot_be_recorded_is_logged_without_content_and_raises_nothing(
    recorder, log, world, caplog
):
    asked = await accepted(recorder, world, exchange())
    await log.close()
    await recorder.aborted(asked, "client_disconnected")
    assert "req-1: its outcome could not be recorded yet" in caplog.text


async def test_what_the_log_refuses_is_an_error_of_ours_and_says_nothing_of_it(recorder, world):
    routed = world.routed(parsed())
    never = Accepted(routed.request, routed, Receipt("acme", 0, bytes(32)))
    with pytest.raises(errors.InternalError) as refused:
        await recorder.completed(never, ReceivedAnswer())
    assert refused.value.message == "The call could not be recorded, so it was not processed; try again later"


async def test_a_flood_of_wrong_keys_is_one_event_of_each_kind_with_its_count(recorder, recorded, log):
    for _ in range(50):
        recorder.auth_failed("unknown")
        recorder.auth_failed("revoked")
    await recorder.close()
    failed = [event for event in recorded("_system") if event["type"] == "auth.failed"]
    assert sorted((event["reason"], event["count"]) for event in failed) == [("revoked", 50), ("unknown", 50)]
    assert {event["endpoint"] for event in failed} == {"/admin/v1"}


@pytest.mark.parametrize(
    ("messages", "calls"),
    [
        ([{"tool_calls": [{"id": "a"}, {"id": "b"}]}], 2),
        (
            [{"tool_calls": [{"index": 0, "id": "a"}]}, {"tool_calls": [{"index": 0, "function": {"arguments": "{"}}]}],
            1,
        ),
        ([{"content": "no"}, None, {"tool_calls": None}, {"tool_calls": "x"}, {"tool_calls": [1, {}]}], None),
    ],
)
async def test_tool_calls_are_counted_once_each_and_never_shown(recorder, recorded, world, messages, calls):
    asked = await accepted(recorder, world, exchange())
    for message in messages:
        asked.received.count_tool_calls(message)
    await recorder.completed(asked.accepted, asked.received)
    assert recorded()[-1].get("tool_calls_count") == calls
