"""Records that go unsigned: within a tree, at its end, and what explains it."""

import pytest

from audit.events.stamp import Stamp, rfc3339
from audit.verification.signing_delay import UNSIGNED_S, Boots, Outage, SigningDelays, milliseconds

START = milliseconds("2026-03-01T09:30:00.000Z")
ONE, TWO = "01a22457-e05c-7000-8000-000000000001", "01a22457-e05c-7000-8000-000000000002"
KNOWN = Boots(frozenset({ONE, TWO}), {}, ())


def stamp(second: float, boot: str = ONE) -> Stamp:
    return Stamp(event_id=boot, ts=rfc3339(START + round(second * 1000)), gateway_node="gw-1", boot_id=boot)


def taken(*seconds: float) -> SigningDelays:
    delays = SigningDelays()
    for seq, second in enumerate(seconds):
        delays.take(seq, stamp(second))
    return delays


@pytest.mark.parametrize(
    ("seconds", "late"),
    [
        ((0, 1), False),
        ((0, 100, 200, 300, 360), False),
        (tuple(range(0, 500, 10)), True),
        ((0, 7200), False),  # one jump of the clock: the machine was suspended
        ((0, 1, 7200, 7201), False),
        ((0, 3600, 7200), True),  # records an hour apart, of which none was signed
        ((7200, 0, 1), False),  # a clock that went back
    ],
)
def test_records_of_one_boot_are_signed_within_the_bound(seconds: tuple[float, ...], late: bool) -> None:
    assert bool(taken(*seconds).signed()) == late


def test_what_a_crash_left_is_signed_at_the_next_start_however_late() -> None:
    delays = taken(0, 1)
    delays.take(2, stamp(86_400, TWO))
    delays.take(3, stamp(86_401, TWO))
    assert delays.signed() == []


def test_each_checkpoint_begins_anew() -> None:
    delays = SigningDelays()
    for seq in range(100):
        delays.take(seq, stamp(seq * 60))
        assert delays.signed() == []


@pytest.mark.parametrize(("age", "found"), [(UNSIGNED_S, False), (UNSIGNED_S + 1, True), (-UNSIGNED_S - 1, True)])
def test_the_end_of_a_tree_may_be_unsigned_for_the_bound_and_no_longer(age: int, found: bool) -> None:
    assert bool(list(taken(0).unsigned(KNOWN, START + age * 1000))) == found


def test_after_a_boot_closed_the_log_nothing_of_it_is_unsigned() -> None:
    boots = Boots(frozenset({ONE}), {ONE: START}, ())
    assert list(taken(0, 1).unsigned(boots, START + 1999)) == [], "it may be signing just now"
    ((seq, why),) = taken(0, 1).unsigned(boots, START + 2000)
    assert (seq, "closed the log at 2026-03-01T09:30:00.000Z" in why) == (0, True)


def test_a_boot_that_nothing_announces_is_named() -> None:
    ((seq, why),) = taken(0).unsigned(Boots(frozenset({TWO}), {}, ()), START)
    assert (seq, ONE in why) == (0, True)


@pytest.mark.parametrize(("boot", "until", "explained"), [(ONE, 1000, True), (TWO, 1000, False), (ONE, 300, False)])
def test_an_outage_explains_only_its_own_boot_and_time(boot: str, until: int, explained: bool) -> None:
    boots = Boots(frozenset({ONE}), {}, (Outage(boot, START, START + until * 1000),))
    assert boots.explains(ONE, rfc3339(START), rfc3339(START + 500_000)) == explained
