"""Weights in the model's dtype."""

from __future__ import annotations

from typing import ClassVar

from backend.quantization.format import Quantization, Speed


class NoQuantization(Quantization):
    """A checkpoint of another format is dequantised while it is loaded."""

    name = "none"
    summary = "the model's dtype, whatever the checkpoint stores"
    gpu_only = False
    batch_invariant = True
    speeds: ClassVar = {"h100": Speed(2.95e12, 2.75e12, 650e12), "h200": Speed(4.2e12, 4.0e12, 710e12)}


NONE = NoQuantization()
