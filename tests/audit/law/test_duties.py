"""The table of duties: dated, sourced, and the same wherever it is used."""

import json
from datetime import date, timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from typer.testing import CliRunner

import audit
from audit.cli.ai_act import duties_on
from audit.cli.app import app
from audit.law.deadlines import load_clocks
from audit.law.duties import Duties, load_duties
from audit.registers.mapping_document import mapping_document

ROOT = Path(audit.__file__).parents[1]
DAYS = st.dates(date(2024, 1, 1), date(2029, 12, 31))


def starts(duty_id: str, day: date) -> list[tuple[str, str]]:
    duty = load_duties().find(duty_id)
    assert duty is not None
    return [(one.scope, str(one.start)) for one in duty.dates(day)]


@pytest.mark.parametrize("duty_id", ["ai-act-12", "ai-act-19", "ai-act-26-6", "ai-act-73"])
def test_high_risk_duties_have_the_dates_of_the_amendment_since_it_is_in_force(duty_id: str) -> None:
    before = [("Annex III", "2026-08-02"), ("Annex I", "2027-08-02")]
    after = [("Annex III", "2027-12-02"), ("Annex I", "2028-08-02")]
    assert starts(duty_id, date(2026, 7, 26)) == before
    assert starts(duty_id, date(2026, 7, 27)) == after


def test_marking_of_output_came_for_new_systems_first() -> None:
    assert [start for _, start in starts("ai-act-50-2", date(2026, 11, 29))] == ["2026-08-02", "2026-12-02"]


@pytest.mark.parametrize(
    ("day", "provision", "scope", "applies"),
    [
        ("2026-11-29", "50(1)", "", True),
        ("2026-12-01", "50(2)", "systems on the market before 2 August 2026", False),
        ("2026-12-02", "50(2)", "systems on the market before 2 August 2026", True),
        ("2026-11-29", "12(1)", "Annex III", False),
        ("2027-12-01", "12(1)", "Annex III", False),
        ("2027-12-02", "12(1)", "Annex III", True),
        ("2027-12-02", "12(1)", "Annex I", False),
        ("2025-02-01", "4", "", False),
        ("2025-02-02", "4", "", True),
    ],
)
def test_a_duty_applies_from_its_day_on(day: str, provision: str, scope: str, applies: bool) -> None:
    told = duties_on(date.fromisoformat(day))["duties"]
    (line,) = [one for one in told if (one["provision"], one["scope"]) == (provision, scope)]
    assert line["applies"] is applies


@given(DAYS, DAYS)
def test_what_applies_under_one_state_of_the_law_goes_on_applying(one: date, other: date) -> None:
    first, later = sorted((one, other))
    amended = date(2026, 7, 27)
    if first < amended <= later:
        return
    for duty in load_duties().duties:
        assert duty.applies_on(later) or not duty.applies_on(first)


def test_every_clock_names_a_duty_of_the_table() -> None:
    assert {clock.duty for clock in load_clocks().clocks} <= {duty.id for duty in load_duties().duties}


def test_what_was_not_read_is_marked_and_every_source_says_what_was() -> None:
    duties = load_duties()
    assert {duty.read for duty in duties.duties} == {"text", "summary", "not read"}
    assert all(source.read and source.where.startswith("https://") for source in duties.sources.values())
    assert not [
        duty.id for duty in duties.duties if duty.read == "text" and duties.sources[duty.source].read == "not read"
    ]


def test_laws_have_dates_and_drafts_have_none() -> None:
    duties = load_duties()
    for duty in duties.duties:
        binding = duties.sources[duty.source].binding
        assert bool(duty.applies) or binding != "law", duty.id
        assert not duty.applies or binding != "draft", duty.id


def test_the_page_of_the_documentation_is_made_of_the_table() -> None:
    assert (ROOT / "docs/control-mapping.md").read_text(encoding="utf-8") == mapping_document()


@pytest.mark.parametrize("change", ["twice", "source"])
def test_a_table_that_contradicts_itself_is_refused(change: str) -> None:
    known = load_duties().model_dump(mode="json", by_alias=True)
    known["duties"] = known["duties"][:1] * 2 if change == "twice" else [known["duties"][0] | {"source": "x"}]
    with pytest.raises(ValidationError):
        Duties.model_validate(known)


def test_the_command_tells_the_duties_of_a_day_without_a_data_folder(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["ai-act", "--as-of", "2026-12-03", "--data", str(tmp_path), "--json"])
    told = json.loads(done.stdout)
    assert (done.exit_code, told["as_of"]) == (0, "2026-12-03")
    assert "not in this table" in told["warning"] and told["duties"]
    shown = CliRunner().invoke(app, ["ai-act", "--as-of", "2026-11-29"])
    assert shown.exit_code == 0 and "26(6)" in shown.stdout and "NOTE" not in shown.stdout


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ([], "--as-of"),
        (["--as-of", "tomorrow"], "is no day"),
        (["--as-of", "2026-02-30"], "is no day"),
        (["--as-of", "20261203"], "is no day"),
        (["--as-of", "2026-W49-4"], "is no day"),
        (["--as-of", ""], "is no day"),
        (["acme"], "name both"),
        (["--system", "x", "--as-of", "2026-12-03"], "name both"),
    ],
)
def test_a_question_that_names_too_little_is_refused_with_what_is_missing(words: list[str], says: str) -> None:
    done = CliRunner().invoke(app, ["ai-act", *words])
    assert done.exit_code != 0 and says in done.stdout + done.stderr


def test_days_of_the_table_itself_are_not_in_the_future() -> None:
    assert load_duties().as_of <= date.today() + timedelta(days=1)


def test_before_it_entered_into_force_the_ai_act_was_not_the_law() -> None:
    for day, lines in (("1900-01-01", False), ("2024-07-31", False), ("2024-08-01", True)):
        told = duties_on(date.fromisoformat(day))
        assert bool(told["duties"]) is lines, day
        assert ("entered into force on 2024-08-01" in told["warning"]) is not lines, day
        assert not any(one["applies"] for one in told["duties"]), "nothing of it applied on these days"


def test_every_duty_is_not_yet_the_day_before_its_date_and_applies_on_it() -> None:
    for duty in load_duties().of("ai-act"):
        for one in duty.dates(load_duties().as_of):
            if not one.is_law(one.start - timedelta(days=1)):
                continue
            states = [
                {(line["provision"], line["scope"]): line["applies"] for line in duties_on(day)["duties"]}
                for day in (one.start - timedelta(days=1), one.start)
            ]
            assert [state.get((duty.provision, one.scope)) for state in states] == [False, True], (duty.id, one)
