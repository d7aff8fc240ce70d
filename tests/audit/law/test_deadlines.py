import json
import os
from datetime import UTC, date, datetime
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from audit.errors import AuditError
from audit.law.deadlines import Calendar, Deadline, as_rows, deadlines, load_clocks

AWARE = "2026-03-01T09:30:00.000Z"


def due(laws: list[str], moments: dict[str, str], met: dict[str, str] | None = None, severity: str | None = None):
    return {one.clock.name: one.due for one in deadlines(load_clocks(), laws, moments, met or {}, severity)}


def test_every_built_in_clock_names_its_article_who_is_told_and_a_figure_or_that_there_is_none() -> None:
    table = load_clocks()
    assert table.laws == {"gdpr", "dora", "nis2", "ai_act"}
    assert all(clock.article and clock.tells for clock in table.clocks)
    assert all(bool(clock.hours or clock.months) is not clock.without_undue_delay for clock in table.clocks)


def test_a_data_breach_is_notified_within_72_hours_of_knowing() -> None:
    found = due(["gdpr"], {"aware": AWARE})
    assert found == {"gdpr.controller": None, "gdpr.authority": "2026-03-04T09:30:00.000Z"}


def test_a_duty_without_a_figure_runs_from_its_moment_until_it_is_met() -> None:
    def states(moments: dict[str, str], met: dict[str, str], severity: str | None = None) -> dict[str, str]:
        found = deadlines(load_clocks(), ["gdpr"], moments, met, severity)
        return {one.clock.name: one.state("2027-01-01") for one in found}

    assert states({}, {})["gdpr.controller"] == "not running"
    assert states({"aware": AWARE}, {})["gdpr.controller"] == "running"
    assert states({"aware": AWARE}, {"gdpr.controller": AWARE})["gdpr.controller"] == "met"
    assert "gdpr.subjects" not in states({"aware": AWARE}, {})
    assert states({"aware": AWARE}, {}, "high_risk")["gdpr.subjects"] == "running"
    row = as_rows(deadlines(load_clocks(), ["gdpr"], {"aware": AWARE}, {}), AWARE)[0]
    assert (row["limit"], row["due"], row["applies_from"]) == ("without undue delay", None, "2018-05-25")


def test_a_clock_does_not_run_before_its_moment_is_on_record() -> None:
    assert due(["gdpr"], {})["gdpr.authority"] is None
    assert due(["gdpr"], {"classified": AWARE})["gdpr.authority"] is None


def test_dora_asks_for_four_hours_after_classification_but_a_day_after_knowing_at_the_latest() -> None:
    early = due(["dora"], {"aware": AWARE, "classified": "2026-03-01T10:00:00.000Z"})
    assert early["dora.initial"] == "2026-03-01T14:00:00.000Z"
    late = due(["dora"], {"aware": AWARE, "classified": "2026-03-02T09:00:00.000Z"})
    assert late["dora.initial"] == "2026-03-02T09:30:00.000Z"
    assert late["dora.intermediate"] == "2026-03-05T09:30:00.000Z"
    assert due(["dora"], {"aware": AWARE})["dora.initial"] == "2026-03-02T09:30:00.000Z"


@pytest.mark.parametrize(
    ("classified", "expected"),
    [
        ("2026-11-25T07:00:00.000Z", "2026-11-25T11:00:00.000Z"),
        ("2026-11-26T07:59:59.000Z", "2026-11-26T08:00:00.000Z"),
        ("2026-11-26T08:00:00.000Z", "2026-11-26T08:00:00.000Z"),
        ("2026-11-26T08:00:00.001Z", "2026-11-26T12:00:00.001Z"),
        ("2026-11-28T20:30:00.000Z", "2026-11-29T00:30:00.000Z"),
    ],
)
def test_an_incident_classified_after_a_day_has_four_hours_from_then_on(classified: str, expected: str) -> None:
    """RTS 2025/301 Art. 5(2)."""
    found = due(["dora"], {"aware": "2026-11-25T08:00:00.000Z", "classified": classified})
    assert found["dora.initial"] == expected


def dora(calendar: dict[str, object], classified: str, met: dict[str, str] | None = None) -> dict[str, Deadline]:
    table = load_clocks().model_copy(update={"calendar": Calendar.model_validate(calendar)})
    moments = {"aware": classified, "classified": classified}
    return {one.clock.name: one for one in deadlines(table, ["dora"], moments, met or {})}


def test_an_end_on_a_weekend_moves_to_noon_of_the_next_working_day_of_the_entity() -> None:
    """RTS 2025/301 Art. 5(4). 2026-11-27 is a Friday."""
    friday = "2026-11-27T22:30:00.000Z"
    paris = {"zone": "Europe/Paris", "exempt": False}
    assert dora(paris, friday)["dora.initial"].due == "2026-11-30T11:00:00.000Z"
    holiday = paris | {"holidays": ["2026-11-30"]}
    assert dora(holiday, friday)["dora.initial"].due == "2026-12-01T11:00:00.000Z"
    working = dora(paris, "2026-11-27T10:00:00.000Z")["dora.initial"]
    assert (working.due, working.relieved) == ("2026-11-27T14:00:00.000Z", None)


def test_an_entity_that_may_be_exempt_is_shown_the_earlier_end_and_the_later_one() -> None:
    """RTS 2025/301 Art. 5(5): initial and intermediate reports of some entities have no relief; final ones have."""
    found = dora({}, "2026-11-27T22:30:00.000Z")["dora.initial"]
    assert (found.due, found.relieved) == ("2026-11-28T02:30:00.000Z", "2026-11-30T12:00:00.000Z")
    met = {"dora.intermediate": "2026-10-28T10:00:00.000Z"}
    final = dora({}, "2026-10-26T10:00:00.000Z", met)["dora.final"]
    assert (final.due, final.relieved) == ("2026-11-30T12:00:00.000Z", None)


def test_the_final_report_is_due_a_month_after_the_latest_intermediate_one() -> None:
    first, last = "2026-03-03T10:00:00.000Z", "2026-03-10T10:00:00.000Z"
    moments = {"aware": AWARE, "classified": AWARE}
    found = deadlines(load_clocks(), ["dora"], moments, {"dora.intermediate": first}, None, {"dora.intermediate": last})
    final = next(one for one in found if one.clock.name == "dora.final")
    assert (final.since, final.due) == (last, "2026-04-10T10:00:00.000Z")


@given(
    st.datetimes(datetime(2026, 1, 1), datetime(2027, 1, 1)), st.sampled_from(["UTC", "Europe/Paris", "Europe/Athens"])
)
def test_the_moved_end_is_never_earlier_and_always_on_a_working_day(moment: datetime, zone: str) -> None:
    calendar = Calendar(zone=zone, holidays=frozenset({date(2026, 5, 1), date(2026, 12, 25)}))
    end = calendar.working_end(moment.replace(tzinfo=UTC))
    local = end.astimezone(ZoneInfo(zone))
    assert end >= moment.replace(tzinfo=UTC)
    assert local.weekday() < 5 and local.date() not in calendar.holidays


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
    assert Deadline(load_clocks().clocks[1], due_at, due_at, met).state("2026-03-02") == state


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
        {"weekend": "sometimes"},
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


def test_a_file_may_bring_the_calendar_of_the_entity(tmp_path: Path) -> None:
    mine = tmp_path / "clocks.json"
    clock = {
        "name": "dora.x",
        "law": "dora",
        "article": "x",
        "tells": "y",
        "from": "aware",
        "hours": 1,
        "weekend": "all",
    }
    mine.write_text(json.dumps({"calendar": {"zone": "Europe/Berlin"}, "clocks": [clock]}))
    (found,) = deadlines(load_clocks(mine), ["dora"], {"aware": "2026-11-28T09:00:00.000Z"}, {})
    assert found.due == "2026-11-30T11:00:00.000Z"
    mine.write_text(json.dumps({"calendar": {"zone": "Europe/Nowhere"}, "clocks": [clock]}))
    with pytest.raises(AuditError, match="no time zone"):
        load_clocks(mine)


@pytest.mark.parametrize("kind", ["pipe", "device", "deep", "long"])
def test_a_file_of_clocks_is_read_within_bounds(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "clocks.json"
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    else:
        path.write_bytes(b"[" * (100_000 if kind == "deep" else 2 << 20))
    with pytest.raises(AuditError, match="the clocks cannot be read"):
        load_clocks(path)
