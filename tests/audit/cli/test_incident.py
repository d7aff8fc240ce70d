"""Incidents, breaches and extracts as they are typed."""

import asyncio
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from audit.cli.app import app
from audit.events.private_value import Private
from audit.incidents.incident import open_incident
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
    assert "severity significant" in run(data, "incident", "update", "acme", known, "--severity", "significant").stdout
    assert run(data, "incident", "close", "acme", known, "--release").exit_code == 0
    assert "closed since" in run(data, "incident", "list", "acme").stdout
    assert "No incident" in run(data, "incident", "list", "acme", "--open").stdout
    assert run(data, "incident", "create", "acme", "--severity", "risk").exit_code == 0
    assert len(said(run(data, "incident", "list", "acme", "--open", "--json"))["incidents"]) == 1
    assert "No incident" in run(data, "incident", "list", "globex").stdout
    assert "legal_hold.released" in home.types("acme")


def test_an_incident_has_a_severity_that_one_of_its_laws_knows(data: Path, home: Home) -> None:
    opened = said(run(data, "incident", "create", "acme", "--law", "dora", "--severity", "major", "--json"))
    (incident,) = opened["incidents"]
    known = incident["incident_id"]
    assert incident["severity"] == "major" and len(incident["deadlines"]) == 3
    for words, why in (
        (("--severity", "critical"), "'critical' is no severity under"),
        (("--severity", "MAJOR"), "'MAJOR' is no severity under"),
        (("--severity", "high_risk"), "'high_risk' is no severity under dora; name one of not_major, major"),
        (("--law", "hammurabi"), "no clock is known of hammurabi"),
        ((), "nothing is changed; give"),
    ):
        refused = run(data, "incident", "update", "acme", known, *words)
        assert refused.exit_code == 2 and why in refused.stderr, refused.output
    words = ("incident", "update", "acme", known, "--law", "gdpr", "--severity", "high_risk", "--json")
    (incident,) = said(run(data, *words))["incidents"]
    assert "gdpr.subjects" in [one["clock"] for one in incident["deadlines"]]
    words = ("incident", "update", "acme", known, "--severity", "not_major", "--json")
    (incident,) = said(run(data, *words))["incidents"]
    assert {one["clock"] for one in incident["deadlines"]} == {"gdpr.controller", "gdpr.authority"}
    assert [event.get("severity") for event in home.events("acme") if "incident" in event["type"]] == [
        "major", "high_risk", "not_major",
    ]  # fmt: skip


def test_an_earlier_record_with_a_severity_of_ones_own_stays_readable(data: Path, home: Home) -> None:
    async def as_earlier_versions_did() -> None:
        async with home.context() as context:
            await open_incident(context, "acme", laws=["dora"], severity="sev1")

    asyncio.run(as_earlier_versions_did())
    (incident,) = said(run(data, "incident", "list", "acme", "--json"))["incidents"]
    assert incident["severity"] == "sev1" and len(incident["deadlines"]) == 3
    assert "severity sev1" in run(data, "incident", "list", "acme").stdout


def test_a_table_of_ones_own_brings_its_severities(data: Path, tmp_path: Path) -> None:
    clock = {"name": "own.report", "law": "own", "article": "Own 1", "tells": "board", "from": "aware", "hours": 1}
    level = {"name": "grave", "law": "own", "article": "Own 2", "means": "grave", "spares": []}
    table = tmp_path / "clocks.json"
    table.write_text(json.dumps({"severities": [level], "clocks": [clock, clock | {"name": "own.x", "severity": "x"}]}))
    words = ("incident", "create", "acme", "--law", "own", "--clocks", table)
    for severity in ("grave", "x"):
        assert run(data, *words, "--severity", severity).exit_code == 0
    assert "name one of grave, x" in run(data, *words, "--severity", "major").stderr
    table.write_text(json.dumps({"severities": [level | {"spares": ["own.none"]}], "clocks": [clock]}))
    assert "spares a clock that there is not" in run(data, *words).stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--law hammurabi", "no clock is known of hammurabi; name one of"),
        ("--aware yesterday", "no moment; write"),
        ("--aware 2026-03-01T09:30:00", "no time zone; write"),
        ("--aware 2026-02-30T09:30:00Z", "no moment; write"),
        ("--aware 0001-01-01T00:00:00+14:00", "no moment; write"),
        ("--aware 9999-12-31T23:59:59-12:00", "no moment; write"),
        ("--aware 2999-03-01T09:30:00+02:00", "is in the future"),
        ("--classified 2999-03-01T09:30:00Z", "is in the future"),
        ("--aware 2026-03-01T09:30:00Z --classified 2026-03-01T09:29:59Z", "is before the moment of awareness"),
        # the same digits in two zones: classified an hour before
        (
            "--aware 2026-03-29T01:30:00+01:00 --classified 2026-03-29T01:30:00+02:00",
            "is before the moment of awareness",
        ),
        ("--aware 2026-03-01T09:30:00Z --since 2026-03-02", "is before the incident began"),
        ("--classified 2026-03-01T09:30:00Z --since 2026-03-01T10", "is before the incident began"),
        ("--since 2999", "cannot begin in the future"),
        ("--since 2026-03-02 --until 2026-03-01", "would end"),
        ("--since 2026-03-02 --until 2026-03-02", "would end"),
        ("--since x", "no moment; write"),
        ("--since 2026-13", "no moment; write"),
        ("--until 2026-02-29", "no moment; write"),
        ("--since 2026-03-01T24", "no moment; write"),
    ],
)
def test_what_makes_no_sense_opens_no_incident(data: Path, home: Home, words: str, said: str) -> None:
    result = run(data, "incident", "create", "acme", *words.split())
    mistaken = "; write" in said or "; name one" in said  # a malformed value; others are refused for what they say
    assert result.exit_code == (2 if mistaken else 1), result.output
    assert said in result.output, result.output
    assert not {"incident.opened", "legal_hold.placed"} & set(home.types("acme"))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--aware 2999-01-01T00:00:00Z", "is in the future"),
        ("--aware 2026-03-01T11:00:00Z", "is before the moment of awareness"),
        ("--classified 2026-03-01T08:00:00Z", "is before the moment of awareness"),
    ],
)
def test_new_facts_of_an_incident_must_fit_those_that_are_on_record(
    data: Path, home: Home, words: str, said: str
) -> None:
    times = ("--aware", "2026-03-01T09:00:00Z", "--classified", "2026-03-01T10:00:00Z")
    opened = run(data, "incident", "create", "acme", "--law", "dora", *times, "--json")
    known = json.loads(opened.stdout)["incidents"][0]["incident_id"]
    result = run(data, "incident", "update", "acme", known, *words.split())
    assert result.exit_code == 1
    assert said in result.output, result.output
    assert "incident.updated" not in home.types("acme")


def test_an_incident_that_is_known_was_detected_by_then(data: Path) -> None:
    opened = said(run(data, "incident", "create", "acme", "--aware", "2026-03-01T09:00:00Z", "--json"))
    assert opened["incidents"][0]["moments"]["detected"] == "2026-03-01T09:00:00.000Z"


def test_a_notification_is_of_a_clock_that_runs(data: Path, home: Home) -> None:
    opened = said(run(data, "incident", "create", "acme", "--law", "gdpr", "--json"))
    known = opened["incidents"][0]["incident_id"]
    words = ("incident", "notify", "acme", known, "--clock", "dora.initial", "--authority", "BaFin")
    result = run(data, *words)
    assert result.exit_code == 1
    assert "is under gdpr, of which dora.initial is no clock" in result.output, result.output
    assert run(data, "incident", "update", "acme", known, "--law", "dora").exit_code == 0
    assert run(data, *words).exit_code == 0


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
    assert "No hold is in force" in run(data, "hold", "list", "acme").stdout
