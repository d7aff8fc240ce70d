from hypothesis import given
from hypothesis import strategies as st

from regions.fleet.autoscaler import DOWN_S, FULL, STEP_S, UP_S, Sample, desired, trimmed
from regions.fleet.deployment import Scale

SCALE = Scale(min_replicas=0, max_replicas=8, idle_s=300, ttft_ms=1000, calls_each=4)
NOW = 10_000.0


def seen(*calls, replicas=2, every=1.0, **more):
    """Samples with so many calls, the last of them now."""
    return [Sample(NOW - every * (len(calls) - 1 - n), replicas, count, **more) for n, count in enumerate(calls)]


scales = st.builds(
    lambda low, more, idle, each: Scale(min_replicas=low, max_replicas=low + more, idle_s=idle, calls_each=each),
    st.integers(0, 5),
    st.integers(1, 10),
    st.integers(1, 600),
    st.integers(1, 32),
)
one_sample = st.builds(
    Sample,
    st.floats(NOW - 900, NOW),
    st.integers(0, 12),
    st.integers(0, 300),
    st.integers(0, 300),
    st.floats(0, 1),
    st.none() | st.floats(0, 60_000),
    st.integers(0, 4),
)
histories = st.lists(one_sample, max_size=40).map(lambda found: sorted(found, key=lambda sample: sample.at))


@given(scales, st.integers(0, 20), histories)
def test_it_stays_between_least_and_most(scale, replicas, samples):
    assert scale.min_replicas <= desired(scale, replicas, samples, NOW) <= scale.max_replicas


@given(scales, st.integers(0, 20), histories)
def test_what_was_trimmed_away_is_never_missed(scale, replicas, samples):
    assert desired(scale, replicas, trimmed(samples, NOW), NOW) == desired(scale, replicas, samples, NOW)


@given(scales, st.integers(1, 20), histories, st.integers(1, 300))
def test_it_is_never_zero_while_anything_runs_or_waits(scale, replicas, samples, calls):
    assert desired(scale, replicas, [*samples, Sample(NOW, replicas, calls)], NOW) >= 1


@given(scales, st.integers(0, 15), histories, st.integers(0, 200), st.integers(1, 100))
def test_more_calls_never_ask_for_fewer_replicas(scale, replicas, samples, calls, more):
    few = desired(scale, replicas, [*samples, Sample(NOW, replicas, calls)], NOW)
    assert desired(scale, replicas, [*samples, Sample(NOW, replicas, calls + more)], NOW) >= few


@given(scales, st.integers(0, 15), histories)
def test_downwards_it_goes_one_at_a_time_but_for_idleness_and_the_bound(scale, replicas, samples):
    wanted = desired(scale, replicas, samples, NOW)
    idle = wanted == scale.min_replicas
    assert wanted >= min(replicas - 1, scale.max_replicas) or idle


def test_the_first_waiting_call_starts_the_first_replica():
    assert desired(SCALE, 0, [Sample(NOW, 0, 1, 1)], NOW) == 1


def test_a_burst_is_met_at_once():
    assert desired(SCALE, 1, seen(1, 1, 20, replicas=1), NOW) == 5


def test_a_burst_that_grows_less_is_still_what_it_was():
    assert desired(SCALE, 1, seen(80, 80, 1, replicas=1), NOW) == 8
    assert desired(SCALE, 1, seen(80, 80, 20, replicas=1), NOW) == 8


def test_a_clump_of_calls_is_no_burst():
    assert desired(SCALE, 2, seen(*[6] * 6, 12), NOW) == 2, "half more than there is a place for, for a moment"
    assert desired(SCALE, 2, seen(*[12] * int(UP_S + 1)), NOW) == 3, "and for seconds"


def test_what_was_not_seen_for_a_whole_window_is_no_reason_to_shrink():
    lull = [2] * int(DOWN_S)
    assert desired(SCALE, 5, seen(*lull, replicas=5), NOW) == 5
    assert desired(SCALE, 5, seen(2, *lull, replicas=5), NOW) == 4


def test_downwards_the_average_of_the_window_counts_and_not_its_peak():
    quiet = [2] * int(DOWN_S)
    assert desired(SCALE, 3, seen(12, *quiet, replicas=3), NOW) == 2
    assert desired(SCALE, 3, seen(*[12] * 50, *quiet[:11], replicas=3), NOW) == 3


def test_a_moment_in_which_calls_waited_holds_what_there_is_for_a_window():
    samples = seen(*[2] * int(DOWN_S + 1), replicas=3)
    for pressed in ({"waiting": 4}, {"kv_use": FULL}, {"waiting": 1, "ttft_ms": 1001.0}):
        before = [samples[0], samples[1]._replace(**pressed), *samples[2:]]
        assert desired(SCALE, 3, before, NOW) == 3, pressed
    assert desired(SCALE, 3, samples, NOW) == 2


def test_after_the_window_one_goes_and_not_all():
    assert desired(SCALE, 5, seen(*[2] * 61, replicas=5), NOW) == 4


def test_after_a_step_down_the_next_waits():
    history = [Sample(NOW - DOWN_S + n, 5 if n < DOWN_S - STEP_S / 2 else 4, 2) for n in range(int(DOWN_S) + 1)]
    assert desired(SCALE, 4, history, NOW) == 4


def test_it_sleeps_once_it_was_idle_for_so_long_and_not_before():
    busy, idle = Sample(NOW - 299, 1, 1), [Sample(NOW - n, 1, 0) for n in range(60, -1, -1)]
    assert desired(SCALE, 1, [busy, *idle], NOW) == 1
    assert desired(SCALE, 1, [busy._replace(at=NOW - 300), *idle], NOW) == 0


def test_a_leader_that_just_began_does_not_take_what_it_has_not_seen_for_idle():
    assert desired(SCALE, 1, seen(0, 0, 0, replicas=1), NOW) == 1


def test_a_full_cache_asks_for_one_more():
    assert desired(SCALE, 2, seen(5, kv_use=FULL), NOW) == 3


def test_late_first_tokens_ask_for_more_only_where_calls_wait():
    assert desired(SCALE, 2, seen(5, ttft_ms=1500.0, waiting=2), NOW) == 3
    assert desired(SCALE, 2, seen(5, ttft_ms=1500.0), NOW) == 2  # the prompts are long: more replicas change nothing


def test_however_late_they_are_it_at_most_doubles():
    assert desired(SCALE, 2, seen(5, ttft_ms=60_000.0, waiting=2), NOW) == 4


@given(st.integers(1, 6), st.integers(0, 6), st.integers(1, 60), st.floats(0, 60_000))
def test_what_was_asked_for_and_is_starting_is_not_asked_for_again(up, starting, waiting, ttft_ms):
    """The longer a start takes, the more often a moment is late while it does."""
    scale = SCALE.model_copy(update={"max_replicas": 99})
    calls = min(waiting, scale.calls_each * up)
    alone = Sample(NOW, up, calls, calls, FULL, ttft_ms)
    wanted = desired(scale, up, [alone], NOW)
    more = alone._replace(replicas=up + starting, starting=starting)
    assert desired(scale, up + starting, [more], NOW) == max(wanted, up + starting)
