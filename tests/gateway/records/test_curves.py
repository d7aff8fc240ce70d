"""Steps of time and classes of times."""

import itertools
import random

import pytest

from gateway.records.curves import CLASSES_A_DECADE, LAST_CLASS, PERIODS, class_of, quantile, steps_of


@pytest.mark.parametrize(
    ("ms", "number"), [(0, 0), (1, 0), (1.01, 1), (10, 10), (10.1, 11), (100, 20), (1000, 30), (1001, 31), (1e12, 80)]
)
def test_a_time_is_in_the_class_whose_bound_is_not_below_it(ms, number):
    assert class_of(ms) == number


def test_each_class_holds_times_up_to_its_bound_and_above_the_one_before():
    for ms in (*range(1, 3000), 10**6, 10**7 + 1):
        number = class_of(ms)
        assert ms <= 10 ** (number / CLASSES_A_DECADE) * (1 + 1e-12) and 0 <= number <= LAST_CLASS
        assert number == 0 or ms > 10 ** ((number - 1) / CLASSES_A_DECADE)


@pytest.mark.parametrize("seed", range(5))
def test_a_quantile_of_classes_is_within_a_class_of_that_of_the_times(seed):
    chance = random.Random(seed)
    times = sorted(chance.lognormvariate(6, 1.5) for _ in range(chance.randrange(1, 400)))
    classes = {}
    for each in times:
        classes[class_of(each)] = classes.get(class_of(each), 0) + 1
    for share in (0.5, 0.95, 1):
        true = times[max(0, -(-len(times) * share // 1) - 1).__int__()]
        found = quantile(classes, share)
        assert abs(class_of(found) - class_of(true)) <= 1, (found, true)


def test_without_times_there_is_no_quantile():
    assert quantile({}, 0.5) is None
    assert quantile({3: 0}, 0.5) is None


def test_a_moment_is_in_one_step_of_each_period_that_still_shows_it():
    now = 1_800_000_123.0
    assert list(steps_of(now, now)) == [(60, 1_800_000_120), (600, 1_800_000_000), (3600, 1_800_000_000)]
    assert [step for step, _ in steps_of(now - 2 * 3600, now)] == [600, 3600]
    assert [step for step, _ in steps_of(now - 2 * 86400, now)] == [3600]
    assert list(steps_of(now - 9 * 86400, now)) == []


@pytest.mark.parametrize("name", PERIODS)
def test_the_points_of_a_period_touch_and_the_last_is_running(name):
    period, now = PERIODS[name], 1_800_000_123.0
    begins = period.begins(now)
    assert len(begins) == period.points
    assert {after - before for before, after in itertools.pairwise(begins)} == {period.step_s}
    assert begins[-1] <= now < begins[-1] + period.step_s
    assert begins[0] > now - period.kept_s, "what is shown is kept"
    assert period.points * period.step_s == {"1h": 3600, "24h": 86400, "7d": 7 * 86400}[name]
