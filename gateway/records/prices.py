"""What tokens cost a tenant: versions of a model's price, each valid from an instant, in integers.

A price is kept in micro-euros a million tokens and a cost in nano-euros, so that sums are exact in any order.
"""

from bisect import bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

MICRO, NANO = 10**6, 10**9
MAX_COST = 2**53 - 1
"""Nano-euros, 9 million euros a call: what is beyond is counted as this, so that no sum leaves the integers."""


@dataclass(frozen=True, slots=True)
class Price:
    """Micro-euros a million tokens, from `valid_from` (seconds since 1970) on; `number` counts a model's versions.

    `cached`: of prompt tokens that the backend had computed before. `batch_discount`: percent off for lines of batches.
    `share`: percent of the amounts that is charged.
    """

    model: str
    number: int
    valid_from: float
    input: int
    output: int
    cached: int
    batch_discount: int = 0
    share: int = 100

    def in_batch(self) -> "Price":
        """The price of a line of a batch."""
        return replace(self, share=100 - self.batch_discount)

    def cost(self, prompt: int, answer: int, cached: int = 0) -> int:
        """Nano-euros, rounded half up. `cached` are some of the `prompt` tokens."""
        pico = (prompt - cached) * self.input + cached * self.cached + answer * self.output
        return min((pico * self.share + 50_000) // 100_000, MAX_COST)


class PriceBook:
    """All prices there are, by model."""

    def __init__(self, prices: Iterable[Price] = ()) -> None:
        self._versions: dict[str, list[Price]] = {}
        for price in sorted(prices, key=lambda price: (price.valid_from, price.number)):
            self._versions.setdefault(price.model, []).append(price)

    def at(self, model: str, instant: float) -> Price | None:
        """The version in force at `instant`; None where there is none."""
        versions = self._versions.get(model, ())
        place = bisect_right(versions, instant, key=lambda price: price.valid_from)
        return versions[place - 1] if place else None


def configured(prices: Mapping[str, tuple[float, float]], discounts: Mapping[str, int] | None = None) -> list[Price]:
    """Of a gateway's configuration, (input, output) in euros a million tokens: in force, as version 0, where the store
    has no price. `discounts`: percent off for lines of batches, by model."""
    off = discounts or {}
    return [
        Price(model, 0, 0.0, round(input_ * MICRO), round(output * MICRO), round(input_ * MICRO), off.get(model, 0))
        for model, (input_, output) in prices.items()
    ]
