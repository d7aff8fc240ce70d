"""Requests of persons: their ends, what may answer them, and that the person is in no record."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import get_args

import pytest

from audit.errors import AuditError
from audit.events.private_value import Private
from audit.incidents.known_cases import known_requests
from audit.incidents.subject_requests import ACTS, ARTICLES, Matter, extend, matter_of, matters, receive, settle
from audit.privacy.retention import run
from audit.privacy.rights import answer, rectify, restrict
from audit.private.audit_context import AuditContext
from audit.private.erasure import erase
from tests.audit.conftest import Home, accepted
from tests.audit.incidents.test_known_cases import Counted

ON_BOTH_STORES = True
ALICE, BOB = "alice@example.com", "bob@example.com"
RECEIVED = "2026-03-01T09:30:00.000Z"
NOW = 1_772_500_000  # 3 March 2026
DAY = 86_400


class Time:
    """A clock that stands until it is moved."""

    now = float(NOW)

    def __call__(self) -> float:
        return self.now


@asynccontextmanager
async def at(home: Home, time: Time) -> AsyncIterator[AuditContext]:
    async with home.context(clock=time) as context:
        yield replace(context, clock=time)


def known(context: AuditContext, matter_id: str) -> Matter:
    with context.reading() as reader:
        return matter_of(reader, "acme", matter_id)


async def test_a_request_is_due_in_a_month_extended_once_and_answered_by_an_act_on_record(home: Home) -> None:
    async with at(home, Time()) as context:
        await context.record(accepted("a"), Private({"input": "x"}, ALICE))
        made = await receive(context, "acme", right="access", subject=ALICE, received_at=RECEIVED, actor="cli")
        assert known(context, made).due_at == "2026-04-01T09:30:00.000Z"
        await extend(context, known(context, made), reason="complexity")
        extended = known(context, made)
        assert (extended.due_at, extended.extension_reason) == ("2026-06-01T09:30:00.000Z", "complexity")
        await answer(context, "acme", ALICE)
        ((act, _, kind),) = known(context, made).candidates
        assert kind == "dsar.answered"
        await settle(context, known(context, made), outcome="answered", act_seq=act)
        closed = known(context, made)
        assert (closed.outcome, closed.act_seq, closed.state("2027")) == ("answered", act, "met")
        for step in (extend(context, closed, reason="complexity"), settle(context, closed, outcome="withdrawn")):
            with pytest.raises(AuditError, match="was closed at"):
                await step
    assert [kind for kind in home.types("acme") if kind.startswith("dsar")] == [
        "dsar.received",
        "dsar.extended",
        "dsar.answered",
        "dsar.closed",
    ]
    assert home.verify().ok


@pytest.mark.parametrize(
    ("received", "due"),
    [
        ("2026-01-31T00:00:00.000Z", "2026-02-28T00:00:00.000Z"),
        ("2024-01-31T23:59:59.999Z", "2024-02-29T23:59:59.999Z"),
        ("2025-12-15T12:00:00.000Z", "2026-01-15T12:00:00.000Z"),
    ],
)
async def test_a_month_without_such_a_day_ends_with_its_last(home: Home, received: str, due: str) -> None:
    async with at(home, Time()) as context:
        made = await receive(context, "acme", right="erasure", subject=ALICE, received_at=received)
        matter = known(context, made)
    assert matter.due_at == due
    assert matter.state(due) == "running" and matter.state("9") == "overdue"


async def test_the_person_is_committed_to_and_named_in_no_record(home: Home) -> None:
    async with at(home, Time()) as context:
        made = await receive(context, "acme", right="objection", subject=ALICE)
        seq = known(context, made).records[0]
        with context.reading() as reader:
            (payload,) = (leaf.payload for leaf in reader.leaves("acme", seq, seq + 1))
        assert ALICE.encode() not in payload and b'"subject":"' in payload
        package = await answer(context, "acme", ALICE)
        assert [one["values"]["subject"]["value"] for one in package["records"]] == [ALICE]


async def test_the_identifier_of_the_person_is_deleted_three_years_after_the_end(home: Home) -> None:
    time = Time()
    async with at(home, time) as context:
        await receive(context, "acme", right="access", subject=ALICE, received_at=RECEIVED)
        for days, left in ((3 * 365, 1), (3 * 365 + 40, 0)):
            time.now = NOW + days * DAY
            await run(context, "acme")
            assert await context.with_values(lambda side: len(list(side.kept("acme")))) == left


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"right": "marriage"}, "'marriage' is no right of a person; name one of access"),
        ({"right": "access", "received_at": "2026-03-03T12:00:00.000Z"}, "in the future"),
    ],
)
async def test_what_cannot_be_received_leaves_no_record(home: Home, fields: dict[str, str], why: str) -> None:
    async with at(home, Time()) as context:
        with pytest.raises(AuditError, match=why):
            await receive(context, "acme", subject=ALICE, **fields)
        await context.record(accepted("a"))
        with context.reading() as reader:
            assert matters(reader, "acme") == []


async def test_an_extension_after_the_first_month_for_another_reason_or_again_is_refused(home: Home) -> None:
    time = Time()
    async with at(home, time) as context:
        first = await receive(context, "acme", right="access", subject=ALICE, received_at=RECEIVED)
        with pytest.raises(AuditError, match="extends no request; GDPR 12\\(3\\) knows"):
            await extend(context, known(context, first), reason="holidays")
        await extend(context, known(context, first), reason="number_of_requests")
        with pytest.raises(AuditError, match="was extended at"):
            await extend(context, known(context, first), reason="complexity")
        late = await receive(context, "acme", right="access", subject=ALICE, received_at=RECEIVED)
        time.now += 30 * DAY
        with pytest.raises(AuditError, match="within it"):
            await extend(context, known(context, late), reason="complexity")
        assert known(context, late).extended is None


@pytest.mark.parametrize(
    ("ending", "why"),
    [
        ({"outcome": "forgotten"}, "is no outcome of a request"),
        ({"outcome": "answered"}, "give the record's number"),
        ({"outcome": "withdrawn", "act_seq": 0}, "give the record's number"),
        ({"outcome": "refused"}, "GDPR 12\\(4\\)"),
        (
            {"outcome": "answered", "act_seq": 0},
            "record 0 answers no request of access; name a record of dsar.answered",
        ),
        ({"outcome": "answered", "act_seq": 999}, "record 999 answers no request of access"),
    ],
)
async def test_a_request_ends_only_as_the_law_knows_it(home: Home, ending: dict[str, str], why: str) -> None:
    async with at(home, Time()) as context:
        made = await receive(context, "acme", right="access", subject=ALICE, received_at=RECEIVED)
        with pytest.raises(AuditError, match=why):
            await settle(context, known(context, made), **ending)
        assert known(context, made).closed is None


async def test_an_act_for_another_person_answers_nothing(home: Home) -> None:
    async with at(home, Time()) as context:
        mine = (await context.record(accepted("a"), Private({"output": "x"}, ALICE))).seq
        his = (await context.record(accepted("b"), Private({"output": "y"}, BOB))).seq
        acts = {
            "access": (lambda who, seq: answer(context, "acme", who)),
            "restriction": (lambda who, seq: restrict(context, "acme", who)),
            "rectification": (lambda who, seq: rectify(context, "acme", seq, "output", "z")),
            "erasure": (lambda who, seq: erase(context, "acme", subject=who)),
        }
        for right, act in acts.items():
            made = await receive(context, "acme", right=right, subject=ALICE, received_at=RECEIVED)
            await act(BOB, his)
            await act(ALICE, mine)
            (of_bob, *_), (of_alice, *_) = known(context, made).candidates
            with pytest.raises(AuditError, match="another person"):
                await settle(context, known(context, made), outcome="answered", act_seq=of_bob)
            await settle(context, known(context, made), outcome="answered", act_seq=of_alice)
            assert known(context, made).act_seq == of_alice


async def test_a_request_of_another_tenant_is_unknown(home: Home) -> None:
    async with at(home, Time()) as context:
        made = await receive(context, "globex", right="access", subject=ALICE)
        with pytest.raises(AuditError, match="has no request"):
            known(context, made)


async def test_what_is_known_of_requests_is_what_the_whole_log_says_and_each_record_is_read_once(home: Home) -> None:
    kept = known_requests()
    async with at(home, Time()) as context:
        first = await receive(context, "acme", right="access", subject=ALICE, received_at=RECEIVED)
        for step in range(3):
            with context.reading() as reader:
                counted = Counted(reader)
                assert kept.of(counted, "acme") == matters(reader, "acme")
                assert kept.of(counted, "globex") == []
                assert counted.read == [] or step < 2, "nothing is new at last"
            if step == 0:
                await answer(context, "acme", ALICE)
                await extend(context, known(context, first), reason="complexity")


def test_every_right_has_its_article_and_the_admin_api_knows_the_same() -> None:
    from gateway.admin.record.rights import Right

    assert set(ACTS) == set(ARTICLES) == set(get_args(Right))
