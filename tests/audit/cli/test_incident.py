"""Incidents, breaches and extracts as they are typed."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from audit.cli.app import app
from audit.events.private_value import Private
from tests.audit.conftest import Home, accepted, completed

SHELL = CliRunner()
ALICE = "alice@example.com"


@pytest.fixture
async def data(home: Home) -> Path:
    async with home.context() as context:
        await context.record(accepted("a", ai_system_id="cv"), Private({"input": "x"}, ALICE))
        await context.record(completed("a"))
        await context.record(accepted("g", "globex"))
    return home.path.parent.parent


def run(data: Path, *words: object) -> Result:
    line = [*map(str, words), "--data", str(data)]
    return SHELL.invoke(app, line, terminal_width=200, color=False)


def said(result: Result) -> dict[str, object]:
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_an_incident_from_the_command_line(data: Path, home: Home) -> None:
    words = ("incident", "create", "acme", "--law", "gdpr", "--law", "nis2")
    opened = said(run(data, *words, "--aware", "2026-03-01T10:30:00+01:00", "--json"))
    (incident,) = opened["incidents"]
    assert incident["moments"]["aware"] == "2026-03-01T09:30:00.000Z"
    by_clock = {one["clock"]: one for one in incident["deadlines"]}
    assert by_clock["gdpr.authority"] | {"state": ""} == {
        "clock": "gdpr.authority",
        "article": "GDPR 33(1)",
        "tells": "supervisory authority",
        "since": "2026-03-01T09:30:00.000Z",
        "due": "2026-03-04T09:30:00.000Z",
        "limit": "",
        "due_if_weekend_rule_applies": None,
        "met": None,
        "state": "",
        "applies_from": "2018-05-25",
    }
    assert by_clock["gdpr.controller"]["limit"] == "without undue delay"
    known = incident["incident_id"]
    told = run(data, "incident", "notify", "acme", known, "--clock", "nis2.final", "--authority", "BSI")
    assert told.exit_code == 0, told.output
    assert "overdue" in told.stdout and "NIS2 23(4)(a)" in told.stdout
    wrong = run(data, "incident", "notify", "acme", known, "--clock", "no.such", "--authority", "BSI")
    assert wrong.exit_code == 2
    assert run(data, "incident", "update", "acme", known, "--severity", "major").exit_code == 0
    assert run(data, "incident", "close", "acme", known, "--release").exit_code == 0
    assert "closed since" in run(data, "incident", "list", "acme").stdout
    assert "No incident" in run(data, "incident", "list", "globex").stdout
    assert "legal_hold.released" in home.types("acme")


@pytest.mark.parametrize(
    "words", [("--law", "hammurabi"), ("--aware", "yesterday"), ("--aware", "2026-03-01T09:30:00"), ("--since", "x")]
)
def test_what_makes_no_sense_opens_no_incident(data: Path, home: Home, words: tuple[str, ...]) -> None:
    assert run(data, "incident", "create", "acme", *words).exit_code == 2
    assert "incident.opened" not in home.types("acme")


def test_a_breach_is_counted_and_the_question_is_on_record_first(data: Path, home: Home, tmp_path: Path) -> None:
    text = tmp_path / "draft.txt"
    answer = said(run(data, "breach", "--backend", "acme-1", "--output", text, "--json"))
    assert [(one["tenant"], one["calls"], one["subjects"]) for one in answer["tenants"]] == [
        ("acme", 1, 1),
        ("globex", 1, 0),
    ]
    assert "(b) Data protection officer" in text.read_text(encoding="utf-8")
    assert home.events("acme")[-1]["reason"] == "breach_impact"
    assert "Example SAS (FR)" in run(data, "breach", "acme").stdout
    assert run(data, "breach", "--since", "March").exit_code == 2


def test_the_log_of_an_ai_system_is_handed_over(data: Path, home: Home, tmp_path: Path) -> None:
    lines = tmp_path / "log.jsonl"
    words = ("ai-act", "acme", "--system", "cv")
    found = said(run(data, *words, "--output", lines, "--json"))
    assert found["events"] == {"inference.accepted": 1, "inference.completed": 1}
    assert [json.loads(line)["seq"] for line in lines.read_text().splitlines()] == [0, 1]
    assert run(data, *words, "--output", lines).exit_code == 1  # never written over
    assert "floor met: unknown yet" in run(data, *words).stdout
    assert home.types("acme")[-1] == "log.read"


def test_who_looked_at_the_log_is_in_the_log(data: Path, home: Home) -> None:
    assert run(data, "show", "acme", "--limit", "1").exit_code == 0
    last = home.events("acme")[-1]
    assert (last["type"], last["first"], last["end"], last["actor"]) == ("log.read", 1, 2, "cli")
    before = len(home.events("acme"))
    copy = SHELL.invoke(app, ["show", "--log", str(home.path)])
    assert copy.exit_code == 0
    assert len(home.events("acme")) == before


def test_releasing_the_hold_of_an_open_incident_warns_and_that_of_a_closed_one_does_not(data: Path) -> None:
    words = ("incident", "create", "acme", "--law", "ai_act", "--json")
    (first,) = said(run(data, *words))["incidents"]
    (second,) = said(run(data, *words))["incidents"]
    run(data, "incident", "close", "acme", second["incident_id"])
    released = run(data, "hold", "release", "acme", first["hold_ids"][0])
    assert released.exit_code == 0
    assert f"WARNING: incident {first['incident_id']} is still open" in released.stderr
    again = run(data, "hold", "release", "acme", second["hold_ids"][0], "--json")
    assert (said(again)["open_incidents"], again.stderr) == ([], "")
    assert "No hold stands" in run(data, "hold", "list", "acme").stdout
