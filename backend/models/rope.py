"""Rotary position embedding (Su et al. 2021, RoFormer) and the ways to stretch it over a longer context.

A scaling gives the angle that each pair of a head's dimensions turns by with every position, and a magnitude that
sines and cosines are multiplied by. Names and meanings are those of transformers' ``rope_parameters``.

Two kinds depend on a sequence's length there. Here one engine has one table, as in vLLM: keys that were written stay as
they were written. So ``dynamic`` is served up to the length from which it would change anything, and ``longrope`` takes
its long factors where the context that is served is longer than the original one, its short ones elsewhere.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from backend.errors import CorruptCheckpoint, UnsupportedModel

DEFAULT_THETA = 10_000.0


class RopeScaling(Protocol):
    """`magnitude` is what cosines and sines are multiplied by."""

    @property
    def magnitude(self) -> float: ...

    def frequencies(self, theta: float, width: int, context: int) -> list[float]:
        """Radians a position, ``width // 2`` of them, for heads of `width` and sequences of up to `context` tokens."""
        ...


def plain_frequencies(theta: float, width: int) -> list[float]:
    return [theta ** (-i / width) for i in range(0, width, 2)]


@dataclass(frozen=True, slots=True)
class Unscaled:
    magnitude: float = 1.0

    def frequencies(self, theta: float, width: int, context: int) -> list[float]:
        return plain_frequencies(theta, width)


@dataclass(frozen=True, slots=True)
class Linear:
    """Position interpolation (Chen et al. 2023): every angle by `factor` smaller."""

    factor: float
    magnitude: float = 1.0

    def frequencies(self, theta: float, width: int, context: int) -> list[float]:
        return [f / self.factor for f in plain_frequencies(theta, width)]


@dataclass(frozen=True, slots=True)
class PerFrequency:
    """Divisors of their own for each angle, as GGUF writes Llama 3.1's (``rope_freqs``)."""

    divisors: tuple[float, ...]
    magnitude: float = 1.0

    def frequencies(self, theta: float, width: int, context: int) -> list[float]:
        plain = plain_frequencies(theta, width)
        if len(plain) != len(self.divisors):
            raise CorruptCheckpoint(f"{len(self.divisors)} RoPE factors for {len(plain)} angles")
        return [f / divisor for f, divisor in zip(plain, self.divisors, strict=True)]


@dataclass(frozen=True, slots=True)
class Llama3:
    """Frequencies of Llama 3.1 (Meta 2024, model card): long waves by `factor` slower, short ones as they are, a ramp
    between."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_context: int
    magnitude: float = 1.0

    def frequencies(self, theta: float, width: int, context: int) -> list[float]:
        return [self._scaled(f) for f in plain_frequencies(theta, width)]

    def _scaled(self, frequency: float) -> float:
        turns = self.original_context * frequency / (2 * math.pi)
        if turns > self.high_freq_factor:
            return frequency
        if turns < self.low_freq_factor:
            return frequency / self.factor
        kept = (turns - self.low_freq_factor) / (self.high_freq_factor - self.low_freq_factor)
        return (1 - kept) * frequency / self.factor + kept * frequency


@dataclass(frozen=True, slots=True)
class Yarn:
    """YaRN (Peng et al. 2023): angles that turn often in the original context stay, those that turn seldom are
    interpolated, with a ramp over the dimensions between `beta_fast` and `beta_slow` turns."""

    factor: float
    original_context: int
    magnitude: float
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True

    def frequencies(self, theta: float, width: int, context: int) -> list[float]:
        low = self._dimension(self.beta_fast, theta, width)
        high = self._dimension(self.beta_slow, theta, width)
        if self.truncate:
            low, high = math.floor(low), math.ceil(high)
        low, high = max(low, 0), min(high, width - 1)
        if low == high:
            high += 0.001
        scaled = []
        for i, frequency in enumerate(plain_frequencies(theta, width)):
            interpolated = min(1.0, max(0.0, (i - low) / (high - low)))
            scaled.append(frequency / self.factor * interpolated + frequency * (1 - interpolated))
        return scaled

    def _dimension(self, turns: float, theta: float, width: int) -> float:
        """The pair that turns so often within the original context."""
        return width * math.log(self.original_context / (turns * 2 * math.pi)) / (2 * math.log(theta))


@dataclass(frozen=True, slots=True)
class LongRope:
    """LongRoPE (Ding et al. 2024): a divisor found for each angle, one set for short contexts and one for long."""

    short: tuple[float, ...]
    long: tuple[float, ...]
    original_context: int
    magnitude: float

    def frequencies(self, theta: float, width: int, context: int) -> list[float]:
        chosen = self.long if context > self.original_context else self.short
        return PerFrequency(chosen).frequencies(theta, width, context)


@dataclass(frozen=True, slots=True)
class Rope:
    """What a checkpoint says of its positions. ``context``: tokens beyond which it is not served."""

    theta: float
    scaling: RopeScaling
    context: int


def from_hugging_face(config: Mapping[str, Any]) -> Rope:
    """Read either spelling: transformers 5's ``rope_parameters``, or ``rope_scaling`` beside ``rope_theta``.

    Raises UnsupportedModel for a kind that is not computed; KeyError, TypeError or ValueError for what is not whole.
    """
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    theta = float(rope.get("rope_theta") or config.get("rope_theta") or DEFAULT_THETA)
    context = int(config["max_position_embeddings"])
    kind = rope.get("rope_type") or rope.get("type") or "default"
    if float(rope.get("partial_rotary_factor") or config.get("partial_rotary_factor") or 1.0) != 1.0:
        raise UnsupportedModel("RoPE over a part of each head is not computed")
    if kind not in KINDS:
        raise UnsupportedModel(f"RoPE type {kind!r} is not one of {', '.join(KINDS)}")
    scaling = KINDS[kind](rope, config, context)
    if isinstance(scaling, Yarn):  # Qwen's are stretched by one key, and max_position_embeddings stays behind
        context = max(context, int(scaling.factor * scaling.original_context))
    return Rope(theta, scaling, context)


def _linear(rope: Mapping[str, Any], _config: Mapping[str, Any], _context: int) -> RopeScaling:
    return Linear(float(rope["factor"]))


def _llama3(rope: Mapping[str, Any], _config: Mapping[str, Any], _context: int) -> RopeScaling:
    return Llama3(
        factor=float(rope["factor"]),
        low_freq_factor=float(rope["low_freq_factor"]),
        high_freq_factor=float(rope["high_freq_factor"]),
        original_context=int(rope["original_max_position_embeddings"]),
    )


def _yarn(rope: Mapping[str, Any], config: Mapping[str, Any], context: int) -> RopeScaling:
    original = _original(rope, config, context)
    factor = float(rope.get("factor") or context / original)
    return Yarn(
        factor=factor,
        original_context=original,
        magnitude=_yarn_magnitude(rope, factor),
        beta_fast=float(rope.get("beta_fast") or 32),
        beta_slow=float(rope.get("beta_slow") or 1),
        truncate=bool(rope.get("truncate", True)),
    )


def _yarn_magnitude(rope: Mapping[str, Any], factor: float) -> float:
    if rope.get("attention_factor") is not None:
        return float(rope["attention_factor"])
    if rope.get("mscale") and rope.get("mscale_all_dim"):
        return yarn_magnitude(factor, float(rope["mscale"])) / yarn_magnitude(factor, float(rope["mscale_all_dim"]))
    return yarn_magnitude(factor)


def yarn_magnitude(factor: float, weight: float = 1.0) -> float:
    """What makes up for flatter attention over more tokens (Peng et al. 2023, section 3.4)."""
    return 0.1 * weight * math.log(factor) + 1.0 if factor > 1 else 1.0


def _longrope(rope: Mapping[str, Any], config: Mapping[str, Any], context: int) -> RopeScaling:
    original = _original(rope, config, context)
    # The lengths themselves say how far it is stretched; a written factor is for files that do not have both.
    factor = float(rope.get("factor") or context / original)
    given = rope.get("attention_factor")
    magnitude = math.sqrt(1 + math.log(factor) / math.log(original)) if factor > 1 else 1.0
    return LongRope(
        short=tuple(map(float, rope["short_factor"])),
        long=tuple(map(float, rope["long_factor"])),
        original_context=original,
        magnitude=magnitude if given is None else float(given),
    )


def _original(rope: Mapping[str, Any], config: Mapping[str, Any], context: int) -> int:
    """The context that the model was trained on, before it was stretched."""
    return int(
        config.get("original_max_position_embeddings") or rope.get("original_max_position_embeddings") or context
    )


def _unscaled(_rope: Mapping[str, Any], _config: Mapping[str, Any], _context: int) -> RopeScaling:
    return Unscaled()


KINDS = {
    "default": _unscaled,
    "linear": _linear,
    "dynamic": _unscaled,  # NTK-aware scaling that begins behind max_position_embeddings
    "llama3": _llama3,
    "yarn": _yarn,
    "longrope": _longrope,
    "su": _longrope,  # its name in Phi-3's first releases
}
