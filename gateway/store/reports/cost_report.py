"""What the time of backends costs, together with what was done in it: uptime and the ledger, by deployment and day.

Cost per million tokens is ``hourly / (tokens/s * 3600 / 1e6)``, with the tokens of all the time that replicas were up:
an hour that stood idle makes the others dearer. All raise DatabaseUnavailable, and NotFound for an unknown tenant.
"""

from collections.abc import Sequence
from typing import Any, Literal, get_args

from pydantic import BaseModel, ConfigDict
from sqlalchemy import Select, func, select

from gateway.database.database import Database
from gateway.database.errors import InvalidValue
from gateway.database.tables.fleet import UptimeRow
from gateway.database.tables.usage import DailySumRow
from gateway.records.prices import MICRO, NANO
from gateway.store import lookup
from gateway.store.reports.energy import energy
from gateway.store.reports.usage_report import EVER, Span

CostDimension = Literal["tenant", "deployment", "model", "region", "gpu", "replica", "day"]
COST_DIMENSIONS: tuple[CostDimension, ...] = get_args(CostDimension)

_UP: Any = UptimeRow.__table__  # type: ignore[attr-defined]  # set by SQLModel's metaclass
_SUM: Any = DailySumRow.__table__  # type: ignore[attr-defined]
_HOUR_MS = 3_600_000
_DONE = ("requests", "tokens_in", "tokens_out", "nano_eur", "measured", "energy_mj", "measured_tokens")


class Cost(BaseModel):
    """Replicas' time of one group; what it was not grouped by is None. `idle_share`: of the time up without a call.

    `nano_eur` is exact. `token_eur`: what the same calls come to by their models' prices for tokens. Energy as in
    `gateway.store.reports.energy.Energy`.
    """

    model_config = ConfigDict(frozen=True)

    tenant: str | None = None
    deployment: str | None = None
    model: str | None = None
    region: str | None = None
    gpu: str | None = None
    replica: str | None = None
    day: str | None = None
    up_seconds: float
    busy_seconds: float
    idle_share: float
    nano_eur: int
    eur: float
    requests: int
    tokens_in: int
    tokens_out: int
    tokens_per_second: float
    eur_per_million_tokens: float | None
    token_eur: float
    measured: int = 0
    energy_kwh: float | None = None
    joules_per_1000_tokens: float | None = None


def cost(
    database: Database, *, tenant: str | None = None, by: Sequence[CostDimension] = (), span: Span = EVER
) -> list[Cost]:
    """One line a group that had a replica, in the order of the groups; one without `by`. `tenant` None: of all."""
    names = tuple(dict.fromkeys(by))
    groups = [_UP.c[name] for name in names]
    price = _UP.c.micro_eur_per_hour
    time = select(*groups, price, func.sum(_UP.c.up_ms), func.sum(_UP.c.busy_ms)).group_by(*groups, price)
    calls = (
        select(_SUM.c.tenant, _SUM.c.backend, _SUM.c.day, *(func.sum(_SUM.c[name]).label(name) for name in _DONE))
        .group_by(_SUM.c.tenant, _SUM.c.backend, _SUM.c.day)
        .subquery()
    )
    same = (calls.c.backend == _UP.c.replica) & (calls.c.day == _UP.c.day) & (calls.c.tenant == _UP.c.tenant)
    sums = [func.sum(calls.c[name]) for name in _DONE]
    work = select(*groups, *sums).select_from(_UP.join(calls, same)).group_by(*groups)
    with database.read() as session:
        if tenant is not None:
            lookup.tenant(session, tenant)
        connection = session.connection()
        spent: dict[tuple[str, ...], list[int]] = {}
        for *group, micro, up, busy in connection.execute(_narrowed(time, tenant, span).order_by(*groups)):
            line = spent.setdefault(tuple(group), [0, 0, 0])
            for at, more in enumerate((int(up), int(busy), int(up) * int(micro))):
                line[at] += more
        done = {
            tuple(row[: len(names)]): [int(each or 0) for each in row[len(names) :]]
            for row in connection.execute(_narrowed(work, tenant, span))
        }
    return [
        _line(dict(zip(names, group, strict=True)), line, done.get(group, [0] * len(sums)))
        for group, line in spent.items()
    ]


def cost_dimensions(written: str) -> tuple[CostDimension, ...]:
    """From ``tenant,deployment``. Raises Invalid."""
    names = tuple(name.strip() for name in written.split(",") if name.strip())
    for name in names:
        if name not in COST_DIMENSIONS:
            raise InvalidValue(f"cost cannot be grouped by {name[:40]!r}; name one of {', '.join(COST_DIMENSIONS)}")
    return names  # type: ignore[return-value]  # just checked


def eur_per_million(eur_per_hour: float, tokens_per_second: float) -> float | None:
    """Cost of a million tokens of a backend that generates so many at that price; None if it generates none."""
    return eur_per_hour / (tokens_per_second * 3600 / 1e6) if tokens_per_second > 0 else None


def _narrowed(query: Select[Any], tenant: str | None, span: Span) -> Select[Any]:
    if tenant is not None:
        query = query.where(_UP.c.tenant == tenant)
    if span.since is not None:
        query = query.where(_UP.c.day >= span.since.isoformat())
    if span.until is not None:
        query = query.where(_UP.c.day <= span.until.isoformat())
    return query


def _line(group: dict[str, Any], spent: Sequence[int], done: Sequence[int]) -> Cost:
    up_ms, busy_ms, micro_ms = spent
    requests, tokens_in, tokens_out, token_nano, *measured = done
    nano = micro_ms * (NANO // MICRO) // _HOUR_MS
    up_s = up_ms / 1000
    rate = (tokens_in + tokens_out) / up_s if up_s else 0.0
    return Cost(
        **group,
        up_seconds=up_s,
        busy_seconds=busy_ms / 1000,
        idle_share=1 - busy_ms / up_ms if up_ms else 0.0,
        nano_eur=nano,
        eur=nano / NANO,
        requests=requests,
        tokens_in=tokens_in,
        tokens_out=tokens_out,
        tokens_per_second=rate,
        eur_per_million_tokens=eur_per_million(nano / NANO / up_s * 3600, rate) if up_s else None,
        token_eur=token_nano / NANO,
        **energy(*measured)._asdict(),
    )
