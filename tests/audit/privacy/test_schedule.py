import pytest

from audit.errors import AuditError
from audit.privacy.schedule import DAY_MS, Due, Schedule

NOW = 1_800_000_000_000


def over(schedule: Schedule, *events: tuple[dict[str, object], float]) -> tuple[list[int], int]:
    """The seqs due of events that are so many days old."""
    finder = Due(schedule, NOW)
    found = [
        at
        for seq, (event, days) in enumerate(events)
        for group in finder.take(seq, event, NOW - int(days * DAY_MS))
        for at in group
    ]
    return sorted(found), finder.floored


def call(request: str, **more: object) -> dict[str, object]:
    return {"type": "inference.accepted", "request_id": request, **more}


def end(request: str) -> dict[str, object]:
    return {"type": "inference.completed", "request_id": request}


def test_a_call_goes_as_a_whole_when_its_outcome_is_over_its_time() -> None:
    assert over(Schedule(), (call("a"), 366), (end("a"), 364)) == ([], 0)
    assert over(Schedule(), (call("a"), 367), (end("a"), 365)) == ([0, 1], 0)


def test_a_call_that_still_runs_is_never_deleted() -> None:
    assert over(Schedule(), (call("a"), 5000)) == ([], 0)


def test_the_class_that_the_policy_wrote_into_the_record_decides() -> None:
    assert over(Schedule(), (call("a", retention_class="metadata_30d"), 31), (end("a"), 30)) == ([0, 1], 0)
    assert over(Schedule(), (call("a", retention_class="metadata_730d"), 400), (end("a"), 400)) == ([], 0)


def test_a_ceiling_cuts_what_a_policy_asks_for() -> None:
    long = call("a", retention_class="metadata_730d")
    assert over(Schedule(ceiling=90), (long, 91), (end("a"), 90)) == ([0, 1], 0)


@pytest.mark.parametrize("schedule", [Schedule(ceiling=30), Schedule(inference=30)])
def test_the_floor_of_high_risk_systems_wins_over_a_lower_setting_and_is_counted(schedule: Schedule) -> None:
    risky = call("a", risk_class="high")
    assert over(schedule, (risky, 183), (end("a"), 183)) == ([], 1)
    assert over(schedule, (risky, 185), (end("a"), 184)) == ([0, 1], 1)


@pytest.mark.parametrize(
    ("kind", "days"),
    [
        ("inference.denied", 365),
        ("admin.key.created", 730),
        ("log.read", 730),
        ("system.start", 730),
        ("auth.failed", 730),
        ("admin.policy.activated", 3653),
        ("incident.opened", 3653),
        ("oversight.stopped", 3653),
    ],
)
def test_each_class_has_its_period(kind: str, days: int) -> None:
    assert over(Schedule(), ({"type": kind}, days - 1)) == ([], 0)
    assert over(Schedule(), ({"type": kind}, days)) == ([0], 0)


@pytest.mark.parametrize("kind", ["retention.run", "erasure.completed", "log.key_rotated", "checkpoint.anchored"])
def test_what_proves_deletions_and_keys_is_never_deleted(kind: str) -> None:
    assert over(Schedule(), ({"type": kind}, 9999)) == ([], 0)


@pytest.mark.parametrize("wrong", [{"security": 364}, {"governance": 30}, {"inference": 0}, {"ceiling": 0}])
def test_a_schedule_below_its_floor_is_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(AuditError):
        Schedule(**wrong)
