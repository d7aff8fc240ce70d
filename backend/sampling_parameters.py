"""Numbers of a request that say how its tokens are drawn: range, neutral value, who may recommend it.

The wire model, a checkpoint's recommendations and the translation of a request for the engine derive from these
declarations. What a parameter does to logits that depend on nothing but themselves is an object in
`engine.core.logit_effects`; penalties, which look at tokens, and truncation are kernels. Does not import torch.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import Field


@dataclass(frozen=True, slots=True)
class SamplingParameter:
    """One number.

    Attributes:
        name: of the wire field and of the engine's.
        neutral: what a request has that sets none, unless its checkpoint recommends another.
        at_least, above, at_most: its range; None for no bound.
        recommended: may be recommended by a checkpoint's ``generation_config.json``.
        whole: an integer.
        lowest: a smaller value, which the wire allows, counts as this.
    """

    name: str
    neutral: float
    at_least: float | None = None
    above: float | None = None
    at_most: float | None = None
    recommended: bool = False
    whole: bool = False
    lowest: float | None = None

    def field(self) -> Any:
        """The field of the wire model, None by default."""
        return Field(None, ge=self.at_least, gt=self.above, le=self.at_most)

    def allows(self, value: float) -> bool:
        return (
            (self.at_least is None or value >= self.at_least)
            and (self.above is None or value > self.above)
            and (self.at_most is None or value <= self.at_most)
        )

    @property
    def range(self) -> str:
        """In words."""
        low = f"above {self.above:g}" if self.above is not None else f"from {self.at_least:g}"
        return low if self.at_most is None else f"{low} to {self.at_most:g}"

    def value(self, asked: float | None, recommended: float | None) -> float:
        """What the engine is given."""
        given = next((x for x in (asked, recommended) if x is not None), self.neutral)
        return given if self.lowest is None else max(self.lowest, given)


PARAMETERS = (
    SamplingParameter("temperature", 1.0, at_least=0, at_most=2, recommended=True),
    SamplingParameter("top_p", 1.0, above=0, at_most=1, recommended=True),
    SamplingParameter("top_k", 0, at_least=-1, recommended=True, whole=True, lowest=0),  # -1 is vLLM's word for all
    SamplingParameter("min_p", 0.0, at_least=0, at_most=1, recommended=True),
    SamplingParameter("presence_penalty", 0.0, at_least=-2, at_most=2),
    SamplingParameter("frequency_penalty", 0.0, at_least=-2, at_most=2),
    SamplingParameter("repetition_penalty", 1.0, above=0, at_most=100, recommended=True),
)
BY_NAME: Mapping[str, SamplingParameter] = {parameter.name: parameter for parameter in PARAMETERS}


def field(name: str) -> Any:
    """The wire model's field of that parameter."""
    return BY_NAME[name].field()


def values(request: object, defaults: object) -> dict[str, Any]:
    """All parameters of a request by name, as the engine takes them.

    request, defaults: have the parameters as attributes, None where they set none; ``defaults`` the recommended ones.
    """
    return {p.name: p.value(getattr(request, p.name), getattr(defaults, p.name, None)) for p in PARAMETERS}
