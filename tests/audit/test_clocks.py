import json
from pathlib import Path

import pytest

from audit.clocks import Deadline, deadlines, load_clocks
from audit.errors import AuditError

AWARE = "2026-03-01T09:30:00.000Z"


def due(laws: list[str], moments: dict[str, str], met: dict[str, str] | None = None, severity: str | None = None):
    return {one.clock.name: one.due for one in deadlines(load_clocks(), laws, moments, met or {}, severity)}


def test_every_built_in_clock_names_its_article_and_who_is_told() -> None:
    clocks = load_clocks()
    assert {clock.law for clock in clocks} == {"gdpr", "dora", "nis2", "ai_act"}
    assert all(clock.article and clock.tells and (clock.hours or clock.months) for clock in clocks)


def test_a_data_breach_is_notified_within_72_hours_of_knowing() -> None:
    assert due(["gdpr"], {"aware": AWARE}) == {"gdpr.authority": "2026-03-04T09:30:00.000Z"}


def test_a_clock_does_not_run_before_its_moment_is_on_record() -> None:
    assert due(["gdpr"], {}) == {"gdpr.authority": None}
    assert due(["gdpr"], {"classified": AWARE}) == {"gdpr.authority": None}


def test_dora_asks_for_four_hours_after_classification_but_a_day_after_knowing_at_the_latest() -> None:
    early = due(["dora"], {"aware": AWARE, "classified": "2026-03-01T10:00:00.000Z"})
    assert early["dora.initial"] == "2026-03-01T14:00:00.000Z"
    late = due(["dora"], {"aware": AWARE, "classified": "2026-03-02T09:00:00.000Z"})
    assert late["dora.initial"] == "2026-03-02T09:30:00.000Z"
    assert late["dora.intermediate"] == "2026-03-05T09:30:00.000Z"
    assert due(["dora"], {"aware": AWARE})["dora.initial"] == "2026-03-02T09:30:00.000Z"


def test_a_clock_that_follows_another_runs_from_when_that_was_met() -> None:
    met = {"nis2.notification": "2026-01-31T08:00:00.000Z"}
    found = due(["nis2"], {"aware": AWARE}, met)
    assert found["nis2.final"] == "2026-02-28T08:00:00.000Z"  # a month after the 31st of January
    assert due(["nis2"], {"aware": AWARE})["nis2.final"] == "2026-04-04T09:30:00.000Z"


def test_graver_ai_incidents_have_shorter_clocks_of_their_own() -> None:
    assert set(due(["ai_act"], {"aware": AWARE})) == {"ai_act.serious"}
    assert due(["ai_act"], {"aware": AWARE}, severity="widespread")["ai_act.widespread"] == "2026-03-03T09:30:00.000Z"
    assert "ai_act.death" in due(["ai_act"], {"aware": AWARE}, severity="death")


@pytest.mark.parametrize(
    ("due_at", "met", "state"),
    [
        (None, None, "not running"),
        ("2026-03-04", None, "running"),
        ("2026-03-01", None, "overdue"),
        ("2026-03-04", "2026-03-03", "met"),
        ("2026-03-01", "2026-03-03", "late"),
        (None, "2026-03-03", "met"),
    ],
)
def test_a_deadline_says_how_it_stands(due_at: str | None, met: str | None, state: str) -> None:
    assert Deadline(load_clocks()[0], due_at, met).state("2026-03-02") == state


def test_clocks_are_data_and_may_be_replaced(tmp_path: Path) -> None:
    mine = tmp_path / "clocks.json"
    clock = {"name": "gdpr.authority", "law": "gdpr", "article": "x", "tells": "y", "from": "aware", "hours": 96}
    mine.write_text(json.dumps([clock]))
    found = deadlines(load_clocks(mine), ["gdpr"], {"aware": AWARE}, {})
    assert [one.due for one in found] == ["2026-03-05T09:30:00.000Z"]


@pytest.mark.parametrize(
    "change",
    [
        {"from": "gdpr.other"},
        {"from": "whenever"},
        {"hours": -1},
        {"surprise": 1},
        {"name": "aware"},
        {"latest": {"from": "x.y", "hours": 1}},
    ],
)
def test_a_file_that_is_no_set_of_clocks_is_refused(tmp_path: Path, change: dict[str, object]) -> None:
    mine = tmp_path / "clocks.json"
    clock = {"name": "gdpr.authority", "law": "gdpr", "article": "x", "tells": "y", "from": "aware", "hours": 96}
    mine.write_text(json.dumps([clock | change]))
    with pytest.raises(AuditError, match="clock"):
        load_clocks(mine)
    with pytest.raises(AuditError, match="cannot be read"):
        load_clocks(tmp_path / "absent.json")
