"""What a distance says of the model: up to which it is a match, and up to which the same model in another form.

The limits are measured (`python -m bench.activations`, docs/adr/0145). They depend on the form that the states are
computed again in: float32 against float32 differs by the order of sums alone, bfloat16 by its roundings too.
"""

from typing import Literal

LIMITS = {"float32": (0.25, 24.0), "bfloat16": (4.0, 24.0)}
"""By dtype: mean steps of bfloat16 up to which it is a match, and up to which another quantisation."""


def limits_of(dtype: str) -> tuple[float, float]:
    return LIMITS[dtype]


def verdict_of(dtype: str, steps: float) -> Literal["matched", "other_quantisation", "other_model"]:
    """steps: `Distance.steps`, of a chunk or of the mean of several."""
    match, same_model = limits_of(dtype)
    if steps <= match:
        return "matched"
    return "other_quantisation" if steps <= same_model else "other_model"
