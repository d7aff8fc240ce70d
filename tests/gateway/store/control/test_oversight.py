"""Stopping: of a system or of a project, on record, once; and never of something that is not there."""

import pytest

from gateway.database.errors import Invalid, NotFound
from gateway.store.changes import read_changes
from gateway.store.oversight import stops_in
from tests.gateway.conftest import ACTIVITY

ON_BOTH_DATABASES = True


@pytest.fixture
def screening(acme):
    """acme with two projects of one AI system, beside one of none."""
    for project in ("cv-web", "cv-batch"):
        acme.create_project("acme", project, **{**ACTIVITY, "ai_system_id": "cv-screening"})
    return acme


def test_a_stop_says_what_by_whom_and_since_when_and_a_resume_until_when(screening, database, events):
    stopped = screening.stop("acme", ai_system_id="cv-screening", reason="wrong_answers")
    assert (stopped.ai_system_id, stopped.project, stopped.reason) == ("cv-screening", None, "wrong_answers")
    assert stopped.stopped_by == "cli:test" and stopped.resumed_at is None
    assert (events[-1].action, events[-1].target) == ("oversight.stopped", "cv-screening")
    assert events[-1].detail == {"reason": "wrong_answers", "ai_system_id": "cv-screening"}
    resumed = screening.resume("acme", ai_system_id="cv-screening", reason="corrected")
    assert resumed.resumed_at is not None and resumed.resumed_by == "cli:test"
    assert events[-1].action == "oversight.resumed"
    assert events[-1].before == stopped.digest() and events[-1].after == resumed.digest()
    assert stops_in(database, "acme") == [resumed]


def test_a_project_is_stopped_alone_and_its_system_is_named(screening, events):
    assert screening.stop("acme", project="cv-web", reason="bias").project == "cv-web"
    assert events[-1].project == "cv-web" and events[-1].detail["ai_system_id"] == "cv-screening"
    screening.stop("acme", project="support", reason="bias")
    assert events[-1].detail == {"reason": "bias"}


def test_stopping_or_resuming_twice_changes_nothing(screening, events):
    first = screening.stop("acme", project="support", reason="bias")
    told = len(events)
    assert screening.stop("acme", project="support", reason="other") == first
    assert len(events) == told
    over = screening.resume("acme", project="support", reason="corrected")
    assert screening.resume("acme", project="support", reason="again") == over
    assert len(events) == told + 1
    again = screening.stop("acme", project="support", reason="once_more")
    assert again.resumed_at is None and again.reason == "once_more"


@pytest.mark.parametrize(
    "what",
    [
        {"ai_system_id": "cv-screenign"},
        {"project": "no-such"},
        {"project": "cv-web", "ai_system_id": "cv-screening"},
        {},
    ],
)
def test_nothing_is_stopped_that_is_not_there_or_not_one_thing(screening, events, what):
    told = len(events)
    with pytest.raises((NotFound, Invalid)):
        screening.stop("acme", reason="bias", **what)
    with pytest.raises(NotFound):
        screening.stop("globex", project="cv-web", reason="bias")
    with pytest.raises(NotFound, match="never stopped"):
        screening.resume("acme", project="cv-web", reason="corrected")
    assert len(events) == told


@pytest.mark.parametrize("reason", ["", "He said it was bad", "x" * 65, "Bias"])
def test_a_reason_is_a_code(screening, reason):
    with pytest.raises(Invalid, match="code"):
        screening.stop("acme", project="support", reason=reason)
    with pytest.raises(Invalid, match="code"):
        screening.resume("acme", project="support", reason=reason)


def test_gateways_read_what_changed_since_they_last_looked(screening, database):
    screening.stop("acme", ai_system_id="cv-screening", reason="bias")
    with database.read() as session:
        changes = read_changes(session, "demo", 0)
        assert list(changes.stops) == [("acme", "", "cv-screening")]
        assert not read_changes(session, "demo", changes.epoch).stops
    screening.resume("acme", ai_system_id="cv-screening", reason="corrected")
    with database.read() as session:
        (stop,) = read_changes(session, "demo", changes.epoch).stops.values()
    assert stop.resumed_at is not None


def test_what_cannot_be_recorded_is_not_stopped(screening, database, monkeypatch):
    def full(event):
        raise RuntimeError("the log is full")

    monkeypatch.setattr(screening, "_on_event", full)
    with pytest.raises(RuntimeError):
        screening.stop("acme", project="support", reason="bias")
    assert stops_in(database, "acme") == []
