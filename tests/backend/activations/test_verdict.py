"""Distances become verdicts by the limits of the dtype that the backend computes in."""

import pytest

from backend.activations.verdict import LIMITS, SAME_MODEL, limits_of, verdict_of


@pytest.mark.parametrize("dtype", LIMITS)
def test_a_distance_is_a_match_up_to_its_limit_and_another_model_beyond_the_other(dtype: str) -> None:
    match, same_model = limits_of(dtype)
    assert 0 < match < same_model == SAME_MODEL
    for steps, expected in (
        (0.0, "matched"), (match, "matched"), (match + 0.01, "other_quantisation"),
        (same_model, "other_quantisation"), (same_model + 0.01, "other_model"), (128.0, "other_model"),
    ):  # fmt: skip
        assert verdict_of(dtype, steps) == expected


def test_the_limit_of_float32_does_not_let_bfloat16_pass() -> None:
    assert verdict_of("float32", 1.5) == "other_quantisation"
    assert verdict_of("bfloat16", 1.5) == "matched"
