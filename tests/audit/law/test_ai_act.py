"""The extract of one AI system among others."""

from contextlib import closing
from typing import Any

from audit.events.event import ModelChanged
from audit.events.incident import Incident, Oversight
from audit.events.privacy import RetentionRun
from audit.law.ai_act import Summary, extract
from tests.audit.conftest import Home, accepted, completed

SYSTEM = "cv-screening"
ID = "01a21faa-0c27-76a6-b43d-f0713b4b3c3e"


async def test_an_extract_holds_all_of_one_system_and_nothing_of_others(home: Home) -> None:
    async with await home.open() as log:
        await log.append(accepted("a", ai_system_id=SYSTEM, risk_class="high"))
        await log.append(accepted("x", ai_system_id="chat"))
        await log.append(accepted("y"))
        await log.append(completed("x"))
        await log.append(completed("a"))
        await log.append(accepted("b", ai_system_id=SYSTEM))
        change = {"tenant": "acme", "actor": "cli", "model": "smol", "what": "weights"}
        await log.append(ModelChanged.model_validate(change | {"ai_system_id": SYSTEM, "substantial": True}))
        await log.append(ModelChanged.model_validate(change | {"ai_system_id": "chat"}))
        stop = {"type": "oversight.stopped", "tenant": "acme", "actor": "cli", "reason": "bias"}
        await log.append(Oversight.model_validate(stop | {"ai_system_id": SYSTEM}))
        incident = {"tenant": "acme", "incident_id": ID, "actor": "cli"}
        opened = incident | {"type": "incident.opened", "ai_system_id": SYSTEM}
        await log.append(Incident.model_validate(opened))
        await log.append(Incident.model_validate(incident | {"type": "incident.closed", "reason": "resolved"}))
    written: list[tuple[int, dict[str, Any]]] = []
    with closing(home.reader()) as reader:
        found = extract(reader, "acme", SYSTEM, write=lambda seq, event: written.append((seq, event)))
        none = extract(reader, "acme", "unknown")
    assert [seq for seq, _ in written] == [0, 4, 5, 6, 8, 9, 10]
    assert [event["type"] for _, event in written][:2] == ["inference.accepted", "inference.completed"]
    assert found.events["inference.accepted"] == 2
    assert (found.open_calls, dict(found.changes), dict(found.risk_classes)) == (1, {"weights": 1}, {"high": 1})
    assert found.guardrail_hits == {"iban": 2, "email": 4}
    assert found.floor_met is None
    assert (none.events, none.first, none.floor_met) == ({}, None, None)


def test_the_floor_of_six_months_is_met_broken_or_not_yet_reached() -> None:
    told = {"first": "2026-01-01T00:00:00.000Z", "last": "2026-03-01T00:00:00.000Z"}
    assert Summary("acme", SYSTEM, **told).floor_met is None
    assert Summary("acme", SYSTEM, **told, expired=1).floor_met is False
    assert Summary("acme", SYSTEM, first=told["first"], last="2026-07-04T00:00:00.000Z", expired=1).floor_met is True
    assert Summary("acme", SYSTEM).as_json()["floor_days"] == 184


async def test_a_change_of_what_serves_the_tenant_is_of_each_of_its_systems(home: Home) -> None:
    async with await home.open() as log:
        change = {"tenant": "acme", "actor": "cli", "model": "smol", "what": "deployed", "backend_id": "acme-1"}
        await log.append(ModelChanged.model_validate(change))
        await log.append(accepted("a", ai_system_id=SYSTEM))
    with closing(home.reader()) as reader:
        assert extract(reader, "acme", SYSTEM).changes == {"deployed": 1}


async def test_records_that_expired_are_told_of(home: Home) -> None:
    async with await home.open() as log:
        await log.append(accepted("a", ai_system_id=SYSTEM))
        run = {"tenant": "acme", "run_id": ID, "due": 0, "deleted": 0, "held": 0, "orphans": 0, "expired_records": 7}
        await log.append(RetentionRun.model_validate(run))
    with closing(home.reader()) as reader:
        assert extract(reader, "acme", SYSTEM).expired == 7
