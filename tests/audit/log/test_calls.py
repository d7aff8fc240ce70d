"""Calls of models, read back from a real log."""

import pytest

from audit.events.event import Decision, InferenceAborted, InferenceDenied, Reason
from audit.events.private_value import Private
from audit.log.calls import CallFilter, call, calls, summary
from tests.audit.conftest import accepted, completed

ON_BOTH_STORES = True
ANY = CallFilter()


def denied(request_id):
    call = accepted(request_id).model_dump()
    known = {name: value for name, value in call.items() if name in InferenceDenied.model_fields}
    reason = Reason(rule="residency.process_in", because="US is not in the EEA", article="GDPR 44")
    decision = Decision(outcome="deny", reasons=(reason,))
    return InferenceDenied.model_validate({**known, "type": "inference.denied", "status": 403, "decision": decision})


@pytest.fixture
async def reader(home):
    """Five calls of acme: answered, refused, broken off, of another project, and one that runs; one of globex."""
    async with await home.open() as log:
        await log.append(accepted("a"))
        await log.append(completed("a"))
        await log.append(denied("b"))
        await log.append(accepted("c"))
        await log.append(InferenceAborted(tenant="acme", request_id="c", reason="cancelled", latency_ms=30, ttft_ms=8))
        await log.append(accepted("d", project="shop", region="eu-de-fra", inference_country="DE"))
        await log.append(completed("d"))
        await log.append(accepted("e", tenant="globex"))
        await log.append(accepted("f"))
        reader = home.reader()
        yield reader
        reader.close()


def found(page):
    return [line.request_id for line in page.calls]


async def test_the_newest_calls_come_first_each_with_its_outcome(reader):
    page = calls(reader, "acme", ANY)
    assert [(line.request_id, line.outcome) for line in page.calls] == [
        ("f", "running"), ("d", "completed"), ("c", "aborted"), ("b", "denied"), ("a", "completed"),
    ]  # fmt: skip
    assert page.before is None
    first = page.calls[-1]
    assert (first.tokens_in, first.tokens_out, first.status, first.masked, first.seq) == (9, 12, 200, 3, 0)
    assert [line.rule for line in page.calls] == [None, None, "cancelled", "residency.process_in", None]


async def test_pages_repeat_and_skip_nothing_and_know_outcomes_from_beyond_them(reader):
    seen, before = [], None
    for _ in range(10):
        page = calls(reader, "acme", ANY, before=before, limit=2)
        seen += page.calls
        before = page.before
        if before is None:
            break
    assert [(line.request_id, line.outcome) for line in seen] == [
        ("f", "running"), ("d", "completed"), ("c", "aborted"), ("b", "denied"), ("a", "completed"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("wanted", "requests"),
    [
        (CallFilter(outcome="denied"), ["b"]),
        (CallFilter(outcome="running"), ["f"]),
        (CallFilter(project="shop"), ["d"]),
        (CallFilter(region="eu-de-fra"), ["d"]),
        (CallFilter(model="none"), []),
        (CallFilter(request_id="c"), ["c"]),
        (CallFilter(since="2999"), []),
        (CallFilter(until="2000"), []),
        (CallFilter(since="2000", until="2999", outcome="completed"), ["d", "a"]),
    ],
)
async def test_only_what_is_asked_for_is_found(reader, wanted, requests):
    assert found(calls(reader, "acme", wanted)) == requests


@pytest.mark.parametrize("name", ['a "quoted" \\ one', "größer/groß", 'x","type":"inference.denied', "tab\tbed"])
async def test_names_with_marks_of_json_are_found_as_they_are(home, name):
    """The bytes of records are looked at before they are parsed."""
    async with await home.open() as log:
        await log.append(accepted(name, model_requested=name, project=name))
        await log.append(completed(name))
        await log.append(accepted("other"))
        reader = home.reader()
        for wanted in (
            CallFilter(request_id=name),
            CallFilter(model=name),
            CallFilter(project=name, outcome="completed"),
        ):
            assert found(calls(reader, "acme", wanted)) == [name]
        assert found(calls(reader, "acme", CallFilter(outcome="denied"))) == []
        assert found(calls(reader, "acme", CallFilter(outcome="running"))) == ["other"]
        reader.close()


async def test_another_tenants_calls_are_not_among_them(reader):
    assert found(calls(reader, "globex", ANY)) == ["e"]
    assert found(calls(reader, "nobody", ANY)) == []


async def test_a_call_has_all_of_its_records_and_no_others(reader):
    assert [(seq, event["type"]) for seq, event in call(reader, "acme", 3)] == [
        (3, "inference.accepted"),
        (4, "inference.aborted"),
    ]
    assert len(call(reader, "acme", 2)) == 1
    assert call(reader, "acme", 1) == []
    assert call(reader, "acme", 99) == []


async def test_the_summary_counts_the_newest_records(reader):
    whole = summary(reader, "acme")
    assert (whole.calls, whole.outcomes) == (5, {"completed": 2, "denied": 1, "aborted": 1, "running": 1})
    assert whole.rules == {"residency.process_in": 1, "cancelled": 1}
    assert sum(whole.places.values()) == 4 and len(whole.places) == 2
    assert (whole.latency_p50_ms, whole.ttft_p95_ms) == (30, 8)
    assert summary(reader, "acme", newest=1).calls == 1
    assert summary(reader, "nobody").calls == 0


async def test_places_tell_where_data_is_stored_from_where_it_was_computed(home):
    async with await home.open() as log:
        await log.append(accepted("a", inference_country="FR", storage_country="DE"))
        await log.append(accepted("b", inference_country="FR", storage_country="FR"))
        reader = home.reader()
        places = summary(reader, "acme").places
        reader.close()
    assert {place[1:3]: count for place, count in places.items()} == {("FR", "DE"): 1, ("FR", "FR"): 1}


async def test_a_call_is_found_by_the_commitment_in_either_of_its_records_and_by_no_other(home):
    async with home.context() as context:
        await context.record(accepted("a"), Private({}, "alice"))
        await context.record(completed("a"))
        await context.record(accepted("b"))
        await context.record(completed("b"), Private({"output": "x"}, "alice"))
        await context.record(accepted("c"), Private({}, "bob"))
        with context.reading() as reader:
            commits = {
                event["request_id"]: event["commits"]["subject"] for event in home.events("acme") if "commits" in event
            }
            for name, commitment in commits.items():
                assert found(calls(reader, "acme", CallFilter(subject=commitment))) == [name]
            assert len(set(commits.values())) == 3, "commitments are salted"
            assert found(calls(reader, "acme", CallFilter(subject="0" * 64))) == []
            assert found(calls(reader, "acme", CallFilter(subject=commits["a"], outcome="denied"))) == []
