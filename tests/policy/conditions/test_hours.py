from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policy.conditions.hours import DAYS, Window, next_minute, parse_minute, parse_zone
from policy.decision.decision import decide
from policy.document.document import load_document
from policy.errors import PolicyDocumentError
from tests.policy.conftest import TENANT

OFFICE = TENANT + 'hours: {days: [mon, tue, wed, thu, fri], from: "07:00", until: "19:00", zone: Europe/Berlin}\n'


def window(first="07:00", end="19:00", zone="Europe/Berlin", days=range(5)):
    return Window(frozenset(days), parse_minute(first), parse_minute(end), parse_zone(zone))


@pytest.mark.parametrize(
    ("at", "holds"),
    [
        ("2026-11-27T06:00:00", True),  # Friday, seven in Berlin in winter
        ("2026-11-27T05:59:59", False),
        ("2026-07-03T05:00:00", True),  # seven in Berlin in summer
        ("2026-07-03T17:00:00", False),
        ("2026-11-27T17:59:59", True),
        ("2026-11-27T18:00:00", False),
        ("2026-11-28T12:00:00", False),  # Saturday
    ],
)
def test_a_window_follows_the_clock_of_its_zone(at, holds):
    assert window().holds(datetime.fromisoformat(at).replace(tzinfo=UTC)) is holds


def test_a_window_past_midnight_belongs_to_the_day_on_which_it_began():
    night = window("22:00", "06:00", "UTC", days=[4])  # Friday night
    friday = datetime(2026, 11, 27, tzinfo=UTC)
    assert not night.holds(friday + timedelta(hours=5))
    assert night.holds(friday + timedelta(hours=22)) and night.holds(friday + timedelta(hours=29, minutes=59))
    assert not night.holds(friday + timedelta(hours=30)) and not night.holds(friday + timedelta(hours=46))


def test_a_request_outside_the_hours_is_refused_and_inside_it_is_not(build, request_facts):
    policy = build(OFFICE)
    inside = decide(policy, request_facts(at=datetime(2026, 11, 27, 12, tzinfo=UTC)))
    outside = decide(policy, request_facts(at=datetime(2026, 11, 27, 22, tzinfo=UTC)))
    assert inside.allowed and inside.holds_until == datetime(2026, 11, 27, 12, 1, tzinfo=UTC)
    assert [str(reason) for reason in outside.reasons] == [
        "policy answers on mon, tue, wed, thu, fri 07:00-19:00 Europe/Berlin only [hours]"
    ]


def test_the_windows_of_all_levels_must_be_open(build, request_facts):
    project = 'policy: shop\nversion: 1\nhours: {from: "12:00", zone: UTC}\n'
    policy = build(OFFICE, project)
    for hour, allowed in ((11, False), (12, True), (17, True), (18, False), (20, False)):
        assert decide(policy, request_facts(at=datetime(2026, 11, 27, hour, tzinfo=UTC))).allowed is allowed


@pytest.mark.parametrize(
    ("hours", "message"),
    [
        ('{from: "25:00", zone: UTC}', "'25:00' is no time of day"),
        ('{from: "7:00", zone: UTC}', "'7:00' is no time of day"),
        ('{from: "07:00", until: "07:00", zone: UTC}', "is an empty time"),
        ('{from: "24:00", zone: UTC}', "is an empty time"),
        ("{zone: Europe/Berln}", "'Europe/Berln' is no time zone"),
        ("{zone: ../../etc/passwd}", "is no time zone"),
        ("{zone: Europe}", "is no time zone"),
        ("{}", "zone: this key is missing; add it"),
        ("{zone: UTC, days: []}", "at least 1 item"),
        ("{zone: UTC, days: [Monday]}", "input should be 'mon'"),
    ],
)
def test_hours_that_are_none_are_told_with_their_line(hours, message):
    with pytest.raises(PolicyDocumentError) as error:
        load_document(f"policy: a\nversion: 1\nhours: {hours}\n")
    assert message in str(error.value) and str(error.value).startswith("line 3")


@given(
    at=st.datetimes(datetime(2024, 1, 1), datetime(2030, 1, 1)).map(lambda at: at.replace(tzinfo=UTC)),
    first=st.integers(0, 1439),
    end=st.integers(1, 1440),
    days=st.sets(st.integers(0, 6), min_size=1),
    zone=st.sampled_from(["UTC", "Europe/Berlin", "Asia/Kathmandu", "America/St_Johns"]),
)
def test_no_window_opens_or_closes_inside_a_minute(at, first, end, days, zone):
    one = Window(frozenset(days), first, end, parse_zone(zone))
    last = next_minute(at) - timedelta(microseconds=1)
    assert at <= last and one.holds(at) is one.holds(last)


def test_a_day_has_seven_names():
    assert len(DAYS) == 7
