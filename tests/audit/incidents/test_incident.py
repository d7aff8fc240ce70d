"""Incidents on a real log: what is frozen, what is due, what is on record."""

import pytest

from audit.errors import AuditError, HeldError
from audit.events.private_value import Private
from audit.incidents.incident import cases, close, notify, open_incident, update
from audit.law.deadlines import load_clocks
from audit.private.deletion import holds_of
from audit.private.erasure import erase
from tests.audit.conftest import Home, accepted, completed

AWARE = "2026-03-01T09:30:00.000Z"
ALICE = "alice@example.com"


async def test_an_incident_runs_from_opening_to_closing_and_every_step_is_on_record(home: Home) -> None:
    async with home.context() as context:
        await context.record(accepted("a"))
        known = await open_incident(context, "acme", laws=["gdpr", "dora"], aware_at=AWARE, actor="cli")
        await update(context, "acme", known, classified_at="2026-03-01T10:00:00.000Z", severity="major")
        await notify(context, "acme", known, clock="gdpr.authority", authority="CNIL")
        with context.reading() as reader:
            (case,) = cases(reader, "acme")
        await close(context, "acme", known, reason="resolved")
        with pytest.raises(AuditError, match="was closed"):
            await update(context, "acme", known, severity="minor")
        with context.reading() as reader:
            (closed,) = cases(reader, "acme")
    due = {one.clock.name: one.due for one in case.deadlines(load_clocks())}
    assert due["gdpr.authority"] == "2026-03-04T09:30:00.000Z"
    assert due["dora.initial"] == "2026-03-01T14:00:00.000Z"
    assert set(case.met) == {"gdpr.authority"}
    assert (case.closed, case.severity, case.laws) == (None, "major", ("gdpr", "dora"))
    assert closed.closed is not None
    assert [kind for kind in home.types("acme") if kind.startswith(("incident", "legal"))] == [
        "legal_hold.placed",
        "incident.opened",
        "incident.updated",
        "incident.notified",
        "incident.closed",
    ]
    assert home.verify().ok


async def test_what_an_incident_concerns_is_kept_until_it_is_released(home: Home) -> None:
    async with home.context() as context:
        await context.record(accepted("a"), Private({"input": "x"}, ALICE))
        known = await open_incident(context, "acme", laws=["ai_act"], ai_system_id="cv-screening")
        with pytest.raises(HeldError):
            await erase(context, "acme", subject=ALICE)
        await close(context, "acme", known, reason="resolved", release=True)
        await erase(context, "acme", subject=ALICE)


async def test_only_the_records_of_its_period_are_frozen(home: Home) -> None:
    async with home.context(clock=iter_clock(1_770_000_000)) as context:
        for number in range(4):
            await context.record(accepted(f"r{number}"))
            await context.record(completed(f"r{number}"))
        stamps = [event["ts"] for event in home.events("acme")]
        await open_incident(context, "acme", laws=["gdpr"], since=stamps[2], until=stamps[5])
        (hold,) = await context.with_values(lambda side: holds_of(side, "acme"))
        with pytest.raises(AuditError, match="no record in that period"):
            await open_incident(context, "acme", laws=["gdpr"], since="1999", until="2000")
        await open_incident(context, "acme", laws=["gdpr"], since="1999", until="2000", freeze=False)
    assert (hold.first, hold.last, hold.reason) == (2, 4, "incident")


def iter_clock(start: float):
    """A clock that goes on by a second each time it is asked."""
    moments = iter(range(1_000_000))
    return lambda: start + next(moments)


async def test_an_unknown_incident_is_said_to_be_unknown(home: Home) -> None:
    async with home.context() as context:
        await context.record(accepted("a"))
        with pytest.raises(AuditError, match="has no incident"):
            await notify(context, "acme", context.new_id(), clock="gdpr.authority", authority="CNIL")


async def test_a_step_of_a_known_incident_reads_no_record(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    def unwanted(*_: object) -> None:
        raise AssertionError("the log is read")

    async with home.context() as context:
        known = await open_incident(context, "acme", laws=["gdpr"])
        with context.reading() as reader:
            (case,) = cases(reader, "acme")
        monkeypatch.setattr("audit.incidents.incident.case_of", unwanted)
        await notify(context, "acme", known, clock="gdpr.authority", authority="CNIL", known=case)
        await close(context, "acme", known, reason="resolved", known=case)
        with context.reading() as reader:
            (closed,) = cases(reader, "acme")
    assert closed.closed is not None and set(closed.met) == {"gdpr.authority"}
