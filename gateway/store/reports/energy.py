"""Energy of calls from the ledger; empty where no backend measured it.

Backends report it and nothing verifies it, so nothing is billed by it. What cards draw while no call runs is no
call's, and not in here.
"""

from typing import NamedTuple

MJ_PER_KWH = 3.6e9


class Energy(NamedTuple):
    """`measured`: calls that are in the other two, which are None without any."""

    measured: int
    energy_kwh: float | None
    joules_per_1000_tokens: float | None


NOT_MEASURED = Energy(0, None, None)


def energy(measured: int, millijoules: int, tokens: int) -> Energy:
    """Energy of so many calls that were measured, their millijoules and their tokens."""
    if not measured:
        return NOT_MEASURED
    return Energy(measured, millijoules / MJ_PER_KWH, millijoules / tokens if tokens else None)
