"""Token prices: versions of a model's price, each valid from a given time, as integers.

Prices are in micro-euros per million tokens and costs in nano-euros, so that sums are exact in any order.
"""

from bisect import bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

MICRO, NANO = 10**6, 10**9
MAX_COST = 2**53 - 1
"""Largest cost of a call in nano-euros (9 million euros). A higher cost is capped, so that sums do not overflow."""


@dataclass(frozen=True, slots=True)
class Price:
    """A price in micro-euros per million tokens, valid from `valid_from` (seconds since 1970). `number`: version.

    `cached`: price of prompt tokens from the backend's prefix cache. `batch_discount`: discount for lines of batches,
    in percent. `share`: percentage of the amounts that is charged.
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
        """Return the price of a line of a batch."""
        return replace(self, share=100 - self.batch_discount)

    def cost(self, prompt: int, answer: int, cached: int = 0) -> int:
        """Return the cost in nano-euros, rounded half up. Arguments count tokens; `cached` is part of `prompt`."""
        pico = (prompt - cached) * self.input + cached * self.cached + answer * self.output
        return min((pico * self.share + 50_000) // 100_000, MAX_COST)


class PriceBook:
    """All prices by model."""

    def __init__(self, prices: Iterable[Price] = ()) -> None:
        self._versions: dict[str, list[Price]] = {}
        for price in sorted(prices, key=lambda price: (price.valid_from, price.number)):
            self._versions.setdefault(price.model, []).append(price)

    def at(self, model: str, instant: float) -> Price | None:
        """Return the version valid at `instant` (seconds since 1970), or None."""
        versions = self._versions.get(model, ())
        place = bisect_right(versions, instant, key=lambda price: price.valid_from)
        return versions[place - 1] if place else None


def configured(prices: Mapping[str, tuple[float, float]], discounts: Mapping[str, int] | None = None) -> list[Price]:
    """Return the prices of a gateway's configuration as version 0, which applies where the store has no price.

    prices: (input, output) in euros per million tokens, by model. discounts: percent off for lines of batches, by
    model.
    """
    off = discounts or {}
    return [
        Price(model, 0, 0.0, round(input_ * MICRO), round(output * MICRO), round(input_ * MICRO), off.get(model, 0))
        for model, (input_, output) in prices.items()
    ]
