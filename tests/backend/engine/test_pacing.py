"""Prompt tokens beside decodes: what a step's costs allow, and that no prompt starves."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backend.engine.pacing import DRAIN_STEPS, LEAST, UNKNOWN_SHARE, PromptPace, StepTimer


def learned(target_ms: float, decode_ms: float, token_us: float, decodes: int = 64) -> PromptPace:
    """Of an engine whose steps take so long, after some of both kinds."""
    pace = PromptPace(target_ms / 1000)
    for _ in range(40):
        pace.observe(decodes, 0, decode_ms / 1000)
        tokens = pace.share(decodes, 0)
        pace.observe(decodes, tokens, decode_ms / 1000 + tokens * token_us / 1e6)
    return pace


@given(
    target=st.floats(1, 200),
    decode=st.floats(0.5, 100),
    token=st.floats(1, 2000),
    decodes=st.integers(1, 256),
    waiting=st.integers(0, 100_000),
)
def test_a_step_takes_its_target_or_twice_its_decodes_unless_more_wait_than_some_steps_would_drain(
    target: float, decode: float, token: float, decodes: int, waiting: int
) -> None:
    share = learned(target, decode, token, decodes).share(decodes, waiting)
    least = max(LEAST, -(-waiting // DRAIN_STEPS))
    assert share >= least
    if share > least:
        assert decode + share * token / 1000 <= max(target, 2 * decode) * 1.02


@given(st.lists(st.tuples(st.integers(1, 256), st.integers(0, 8192), st.floats(0, 10)), max_size=40), st.data())
def test_whatever_was_measured_prompts_move_and_more_that_wait_never_get_less(
    steps: list[tuple[int, int, float]], data: st.DataObject
) -> None:
    pace = PromptPace(0.01)
    for step in steps:
        pace.observe(*step)
    decodes = data.draw(st.integers(0, 256))
    shares = [pace.share(decodes, waiting) for waiting in (0, 1, 63, 1000, 8191, 100_000)]
    assert all(share >= LEAST for share in shares)
    assert all(fewer <= more for fewer, more in pairwise(shares))


def test_without_decodes_there_is_no_limit() -> None:
    assert learned(1, 10, 1000).share(0, 8192) == 8192


def test_before_a_step_of_both_was_measured_the_share_is_moderate() -> None:
    pace = PromptPace(0.01)
    assert pace.share(8, 0) == UNKNOWN_SHARE
    pace.observe(8, 512, 0.02)  # without a step of decodes alone nobody knows what the prompt's part of it was
    assert pace.share(8, 0) == UNKNOWN_SHARE


def test_one_step_that_hung_changes_the_share_little_and_a_lasting_change_is_followed() -> None:
    pace = learned(12, 6, 20)
    before = pace.share(64, 0)
    pace.observe(64, before, 30.0)
    assert before / 2 <= pace.share(64, 0) < before
    for _ in range(60):
        pace.observe(64, 0, 0.006)
        pace.observe(64, 256, 0.006 + 256 * 40e-6)
    assert pace.share(64, 0) == 128


def test_steps_of_another_batch_size_are_judged_by_the_nearest_that_was_measured() -> None:
    pace = PromptPace(0.01)
    assert pace.decode_s(5) is None
    pace.observe(4, 0, 0.004)
    pace.observe(200, 0, 0.02)
    assert pace.decode_s(7) == pace.decode_s(1) == 0.004
    assert pace.decode_s(100) == pace.decode_s(256) == 0.02


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def timed(pace: PromptPace) -> tuple[StepTimer, Clock]:
    clock = Clock()
    return StepTimer(pace, clock), clock


def test_of_steps_launched_ahead_only_the_time_behind_the_one_before_counts() -> None:
    pace = PromptPace(0.01)
    timer, clock = timed(pace)
    timer.launch(8, 0)
    timer.launch(8, 0)
    for clock.now in (0.005, 0.010):
        timer.end()
    assert pace.decode_s(8) == pytest.approx(0.005)


def test_an_idle_hour_between_two_steps_is_no_part_of_the_second() -> None:
    pace = PromptPace(0.01)
    timer, clock = timed(pace)
    for start in (0.0, 3600.0):
        clock.now = start
        timer.launch(8, 0)
        clock.now = start + 0.005
        timer.end()
    assert pace.decode_s(8) == pytest.approx(0.005)


def test_a_step_behind_one_without_decodes_teaches_nothing_for_that_ones_end_was_not_awaited() -> None:
    pace = PromptPace(0.01)
    timer, clock = timed(pace)
    timer.launch(0, 4096)
    timer.launch(8, 0)
    clock.now = 0.001
    timer.end()
    clock.now = 0.2
    timer.end()
    assert pace.decode_s(8) is None


def test_an_end_without_a_launch_and_a_timer_without_a_pace_do_nothing() -> None:
    timer, _ = timed(PromptPace(0.01))
    timer.end()
    without = StepTimer(None)
    without.launch(3, 4)
    without.end()
    assert without.pace is None
