"""Demand that one gateway reports: counted while calls run or wait, and not a moment longer."""

import pytest

from regions.fleet.demand import NOTHING, DemandTracker


def test_a_call_that_waits_is_counted_while_it_does():
    tracker = DemandTracker()
    with tracker.waiting("acme", "small", frozenset({"eu-fr-par"})):
        (report,) = tracker.reports()
        assert (report.demand.parked, report.demand.regions) == (1, frozenset({"eu-fr-par"}))
    assert [report.demand for report in tracker.reports()] == [NOTHING]
    assert tracker.reports() == []


def test_a_call_is_not_counted_after_its_wait_could_not_begin():
    def broken():
        raise RuntimeError("the reconciler has ended")

    tracker = DemandTracker()
    tracker.when_waiting(broken)
    with pytest.raises(RuntimeError), tracker.waiting("acme", "small", frozenset({"eu-fr-par"})):
        pytest.fail("it waits")
    assert [report.demand for report in tracker.reports()] == [NOTHING]
