"""What runs of a tenant's models now: replicas and backends with their loads, and sums of these."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

SECONDS_AN_HOUR = 3600


class Row(NamedTuple):
    """A replica, or a backend that was registered by itself, which has no deployment. `load` as the admin API's
    backend-loads tell it, None while gateways do not call it."""

    name: str
    deployment: str | None
    state: str
    role: str
    region: str
    card: str
    since: str | None
    reason: str | None
    load: Mapping[str, Any] | None


class Sums(NamedTuple):
    """Over rows. `first_token_ms`: the slowest. `eur_per_hour`: of replicas that hold a card. None: not known."""

    tokens_per_s: float | None
    running: int
    waiting: int
    first_token_ms: float | None
    watts: float | None
    eur_per_hour: float

    @property
    def eur_per_million(self) -> float | None:
        """Of written tokens at the speed of now."""
        if not self.tokens_per_s or not self.eur_per_hour:
            return None
        return self.eur_per_hour / (self.tokens_per_s * SECONDS_AN_HOUR / 1e6)


HOLD_CARDS = frozenset({"starting", "ready", "draining"})


def rows_of(
    deployments: Iterable[Mapping[str, Any]],
    backends: Iterable[Mapping[str, Any]],
    loads: Mapping[str, Mapping[str, Any]],
) -> list[Row]:
    """deployments: with their `replicas`. Those of deployments come first."""
    rows = [
        Row(
            each["id"],
            one["id"],
            each["state"],
            each["role"],
            each["region"],
            each["gpu"],
            each["created_at"],
            each["reason"],
            loads.get(each["id"]),
        )
        for one in deployments
        for each in one["replicas"]
    ]
    known = {row.name for row in rows}
    for each in backends:
        if each["id"] not in known and each["revoked_at"] is None:
            load = loads.get(each["id"])
            state = "ready" if load is None or load["available"] else "away"
            role = "mixed" if load is None else load["role"]
            rows.append(Row(each["id"], None, state, role, each["region"], "", each["created_at"], None, load))
    return rows


def sums_of(rows: Sequence[Row], eur_per_hour: Mapping[str, float]) -> Sums:
    """eur_per_hour: of one replica, by deployment."""
    loads = [row.load for row in rows if row.load is not None]

    def known(name: str) -> list[float]:
        return [load[name] for load in loads if load[name] is not None]

    rates, waits, watts = known("tokens_per_s"), known("first_token_ms"), known("watts")
    return Sums(
        tokens_per_s=sum(rates) if rates else None,
        running=sum(load["in_flight"] if load["running"] is None else load["running"] for load in loads),
        waiting=sum(load["waiting"] or 0 for load in loads),
        first_token_ms=max(waits, default=None),
        watts=sum(watts) if watts else None,
        eur_per_hour=sum(eur_per_hour.get(row.deployment or "", 0.0) for row in rows if row.state in HOLD_CARDS),
    )
