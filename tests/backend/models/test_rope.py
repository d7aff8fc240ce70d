"""What of RoPE the parity with transformers does not show."""

from typing import Any

import pytest

from backend.errors import CorruptCheckpoint
from backend.models.rope import LongRope, PerFrequency, Unscaled, Yarn, from_hugging_face, yarn_magnitude

CONTEXT = {"max_position_embeddings": 256}


def test_factors_that_are_not_one_for_each_angle_are_corrupt() -> None:
    with pytest.raises(CorruptCheckpoint, match="3 RoPE factors for 4 angles"):
        PerFrequency((1.0, 2.0, 3.0)).frequencies(10_000.0, 8, 64)


def test_factors_of_one_change_nothing() -> None:
    plain = Unscaled().frequencies(10_000.0, 8, 64)
    assert PerFrequency((1.0,) * 4).frequencies(10_000.0, 8, 64) == plain
    assert Yarn(1.0, 64, 1.0).frequencies(10_000.0, 8, 64) == plain


def test_longrope_chooses_by_the_context_that_is_served() -> None:
    rope = LongRope((1.0,) * 4, (2.0,) * 4, 64, 1.0)
    short, long = rope.frequencies(10_000.0, 8, 64), rope.frequencies(10_000.0, 8, 65)
    assert [s / 2 for s in short] == long


def test_a_context_that_is_not_stretched_keeps_its_magnitude() -> None:
    assert yarn_magnitude(1.0) == yarn_magnitude(0.5) == 1.0


@pytest.mark.parametrize(
    "rope",
    [
        {"rope_type": "linear"},
        {"rope_type": "llama3", "factor": 8.0},
        {"rope_type": "longrope", "factor": 2.0, "short_factor": [1.0]},
    ],
)
def test_a_scaling_that_is_not_whole_says_what_is_missing(rope: dict[str, Any]) -> None:
    with pytest.raises(KeyError):
        from_hugging_face({**CONTEXT, "rope_scaling": rope})


@pytest.mark.parametrize("factor", ["four", []])
def test_a_factor_that_is_no_number_is_refused(factor: Any) -> None:
    with pytest.raises((TypeError, ValueError)):
        from_hugging_face({**CONTEXT, "rope_scaling": {"rope_type": "linear", "factor": factor or None}})
