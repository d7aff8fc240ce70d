"""Thresholds of the distance between activations: same model, same model in another format, or another model.

The limits are measured (`python -m bench.activations`, docs/adr/0145). States are computed again in float32, so that
the distance of an honest backend is that of its own roundings: none to speak of in float32, those of bfloat16 else.
"""

from typing import Literal

LIMITS = {"float32": 0.25, "bfloat16": 3.9}
"""By the dtype that the backend computes in: mean steps of bfloat16 up to which it is a match."""
SAME_MODEL = 24.0
"""Up to which it is the same model, or a near relative of it, in another form."""


def limits_of(dtype: str) -> tuple[float, float]:
    return LIMITS[dtype], SAME_MODEL


def verdict_of(dtype: str, steps: float) -> Literal["matched", "other_quantisation", "other_model"]:
    """steps: `Distance.steps`, of a chunk or of the mean of several."""
    match, same_model = limits_of(dtype)
    if steps <= match:
        return "matched"
    return "other_quantisation" if steps <= same_model else "other_model"
