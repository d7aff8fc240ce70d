"""What the sequencer does when the store fails it: nothing is acknowledged, nothing is lost, and it gets well again."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from audit.errors import AuditUnavailable, EventRejected, StoreError, StoreFull
from audit.events.event import AuthFailed
from audit.log.receipt import Receipt
from audit.log.sequencer import Append, QueueLimits, Sequencer
from tests.audit.conftest import Faults, Home, accepted, completed, eventually

ON_BOTH_STORES = True


async def test_a_failed_commit_fails_its_batch_and_all_that_follow_until_the_log_is_well(
    home: Home, faults: Faults
) -> None:
    async with await home.open(open_store=faults.open) as log:
        await log.append(accepted("before"))
        faults.fail(StoreError("disk I/O error"))
        results = await asyncio.gather(*(log.append(accepted()) for _ in range(10)), return_exceptions=True)
        assert {type(result) for result in results} == {AuditUnavailable}
        assert len(set(map(id, results))) == 10
        with pytest.raises(AuditUnavailable, match="disk I/O error"):
            await log.append(accepted())
        faults.mend()
        await eventually(lambda: log.trouble is None)
        await log.append(completed("before"))
        await log.append(accepted("after"))
        await log.append(completed("after"))
    assert home.types("acme") == ["inference.accepted", "inference.completed"] * 2
    restored = [event for event in home.events("_system") if event["type"] == "system.audit_restored"]
    assert [event["refused"] for event in restored] == [11]
    assert faults.opened >= 2
    assert home.verify().ok


async def test_a_commit_of_unknown_result_is_not_acknowledged_and_its_call_is_closed(
    home: Home, faults: Faults
) -> None:
    async with await home.open(open_store=faults.open) as log:
        faults.after = True
        faults.fail(StoreError("fsync failed"))
        with pytest.raises(AuditUnavailable, match="fsync failed"):
            await log.append(accepted("r1"))
        faults.mend()
        await eventually(lambda: log.trouble is None)
        with pytest.raises(EventRejected):
            await log.append(completed("r1"))
    assert [(event["type"], event.get("reason")) for event in home.events("acme")] == [
        ("inference.accepted", None),
        ("inference.aborted", "unrecorded"),
    ]


async def test_an_outcome_that_was_turned_away_is_closed_when_the_log_is_well(home: Home, faults: Faults) -> None:
    async with await home.open(open_store=faults.open) as log:
        await log.append(accepted("r1"))
        await log.append(accepted("r2"))
        faults.fail(StoreError("disk I/O error"))
        for request in ("r1", "r2"):  # the first fails with the commit, the second finds the log failed
            with pytest.raises(AuditUnavailable):
                await log.append(completed(request))
        faults.mend()
        await eventually(lambda: log.trouble is None)
    aborted = [event for event in home.events("acme") if event["type"] == "inference.aborted"]
    assert [(event["request_id"], event["reason"]) for event in aborted] == [("r1", "unrecorded"), ("r2", "unrecorded")]
    assert home.verify().ok


async def test_a_defect_in_a_store_fails_closed_like_a_broken_disk(home: Home, faults: Faults) -> None:
    async with await home.open(open_store=faults.open) as log:

        def defect() -> StoreError | None:
            raise RuntimeError("a bug with a prompt in its message")

        faults.check = defect
        with pytest.raises(AuditUnavailable) as caught:
            await log.append(accepted())
        assert "prompt" not in str(caught.value)
        faults.mend()
        await eventually(lambda: log.trouble is None)
        await log.append(accepted())


async def test_on_a_full_disk_running_calls_are_closed_and_new_ones_refused(home: Home, faults: Faults) -> None:
    reserve = home.path.with_suffix(".reserve")
    full = True

    async with await home.open(open_store=faults.open) as log:
        await log.append(accepted("r1"))
        await log.append(accepted("r2"))
        faults.check = lambda: StoreFull("database or disk is full") if full and reserve.exists() else None
        results = await asyncio.gather(
            log.append(accepted("r3")),
            log.append(completed("r1")),
            log.append(AuthFailed(reason="unknown_key")),
            return_exceptions=True,
        )
        assert [type(result) for result in results] == [AuditUnavailable, Receipt, AuditUnavailable]
        with pytest.raises(AuditUnavailable, match="full"):
            await log.append(accepted("r4"))
        with pytest.raises(AuditUnavailable, match="full"):
            await log.probe()
        await log.append(completed("r2"))
        full = False
        await eventually(lambda: log.trouble is None)
        assert reserve.exists()
        await log.append(accepted("r5"))
        await log.append(completed("r5"))
    assert home.types("acme").count("inference.accepted") == 3
    assert "system.audit_degraded" in home.types("_system")
    assert "system.audit_restored" in home.types("_system")
    assert home.verify().ok


async def test_when_the_reserve_is_used_up_too_everything_is_refused(home: Home, faults: Faults) -> None:
    async with await home.open(open_store=faults.open) as log:
        await log.append(accepted("r1"))
        faults.fail(StoreFull("database or disk is full"))
        with pytest.raises(AuditUnavailable):
            await log.append(accepted("r2"))
        with pytest.raises(AuditUnavailable):
            await log.append(completed("r1"))
        await eventually(lambda: faults.opened >= 4)  # it goes on trying, and goes on failing
        assert log.trouble is not None
        faults.mend()
        await eventually(lambda: log.trouble is None)
    assert home.types("acme") == ["inference.accepted", "inference.aborted"]
    assert home.types("_system").count("system.audit_restored") == 1


# --- batches ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def batches(monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[int, int]]:
    """Submits so many appends, and so many more while the batch is held open; says how many are in it, and how often it
    was."""
    nothing: Any = None
    limits = QueueLimits(batch=6, linger_s=7.0)
    sequencer = Sequencer(nothing, nothing, nothing, limits, deliver=nothing, grown=nothing)

    def collected(first: int, later: int = 0) -> tuple[int, int]:
        held: list[float] = []

        def sleep(seconds: float) -> None:
            held.append(seconds)
            submit(later)

        monkeypatch.setattr("audit.log.sequencer.time.sleep", sleep)
        submit(first)
        appends, checkpoints, goes_on = sequencer._collect()
        assert (checkpoints, goes_on, set(held) <= {7.0}) == ([], True, True)
        return len(appends), len(held)

    def submit(number: int) -> None:
        for _ in range(number):
            sequencer.submit(Append(accepted()))

    return collected


def test_a_lone_append_is_committed_at_once_and_a_batch_of_two_is_held_open_once(
    batches: Callable[..., tuple[int, int]],
) -> None:
    assert batches(1, 1) == (1, 0)
    assert batches(2, 3) == (5, 1)


def test_the_next_lone_append_after_a_batch_of_two_waits_for_company_and_the_one_after_it_does_not(
    batches: Callable[..., tuple[int, int]],
) -> None:
    assert batches(2) == (2, 1)
    assert batches(1) == (1, 1)
    assert batches(1, 1) == (1, 0)


def test_a_full_batch_is_not_held_open_and_what_is_left_is_the_next(batches: Callable[..., tuple[int, int]]) -> None:
    assert batches(8) == (6, 0)
    assert batches(0) == (2, 1)
