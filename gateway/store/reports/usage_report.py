"""What was used and what it cost: the ledger's sums by day, or its rows. All raise DatabaseUnavailable."""

from collections.abc import Iterator, Sequence
from datetime import date
from typing import Any, Literal, get_args

from pydantic import BaseModel, ConfigDict
from sqlalchemy import Select, func, select

from gateway.database.database import Database
from gateway.database.errors import InvalidValue
from gateway.database.tables.usage import DailySumRow, LedgerRow
from gateway.limits.limit_kinds import KINDS
from gateway.records.prices import NANO
from gateway.store import lookup
from gateway.store.reports.energy import energy

Dimension = Literal["tenant", "project", "key", "model", "region", "backend", "day"]
DIMENSIONS: tuple[Dimension, ...] = get_args(Dimension)

_L: Any = LedgerRow.__table__  # type: ignore[attr-defined]  # set by SQLModel's metaclass
_SUM: Any = DailySumRow.__table__  # type: ignore[attr-defined]
_COLUMNS: dict[Dimension, Any] = {name: _SUM.c["key_id" if name == "key" else name] for name in DIMENSIONS}
_FIGURES = (
    "requests", "completed", "aborted", "refused", "estimated", "unpriced", "tokens_in", "tokens_cached", "tokens_out",
    "backend_ms", "nano_eur", "priced_tokens", "measured", "energy_mj", "measured_tokens",
)  # fmt: skip
_ROWS_AT_ONCE = 1000


class Usage(BaseModel):
    """Calls that are over, of one group; what it was not grouped by is None.

    `nano_eur` is exact, `eur` and `eur_per_million_tokens` are for reading; all three leave out `unpriced`, calls of
    models that had no price. `refused`: accepted calls that a backend, or a policy that changed meanwhile, answered
    with 4xx; `aborted`: those that broke off for another reason. `estimated`: calls that were cut, whose tokens are an
    estimate. Energy as in `gateway.store.reports.energy.Energy`.
    """

    model_config = ConfigDict(frozen=True)

    tenant: str | None = None
    project: str | None = None
    key: str | None = None
    model: str | None = None
    region: str | None = None
    backend: str | None = None
    day: str | None = None
    requests: int
    completed: int
    aborted: int
    refused: int = 0
    estimated: int
    unpriced: int
    tokens_in: int
    tokens_cached: int
    tokens_out: int
    backend_seconds: float
    nano_eur: int
    eur: float
    eur_per_million_tokens: float | None
    measured: int = 0
    energy_kwh: float | None = None
    joules_per_1000_tokens: float | None = None


class LedgerEntry(BaseModel):
    """One call that is over. `price`: the version it was counted by, 0 for the configuration's, None for none.
    `energy_mj`: millijoules, None where its backend did not measure."""

    model_config = ConfigDict(frozen=True)

    day: str
    tenant: str
    project: str
    key: str
    request_id: str
    model: str
    region: str
    backend: str
    outcome: str
    tokens_in: int
    tokens_cached: int
    tokens_out: int
    estimated: bool
    backend_seconds: float
    price: int | None
    nano_eur: int | None
    energy_mj: int | None = None


class Span(BaseModel):
    """Days (UTC) of the outcomes, both included; None for no end."""

    model_config = ConfigDict(frozen=True)

    since: date | None = None
    until: date | None = None


EVER = Span()


def usage(
    database: Database, *, tenant: str | None = None, by: Sequence[Dimension] = (), span: Span = EVER
) -> list[Usage]:
    """One line a group that has calls, in the order of the groups; one line in all without `by`.

    `tenant` None: of all. Raises NotFound for a tenant that is not there.
    """
    groups = [_COLUMNS[name] for name in dict.fromkeys(by)]
    sums = [func.sum(_SUM.c[name]) for name in _FIGURES]
    query = _narrowed(_SUM, select(*groups, *sums), tenant, span).group_by(*groups).order_by(*groups)
    with database.read() as session:
        if tenant is not None:
            lookup.tenant(session, tenant)
        rows = session.connection().execute(query).all()
    names = list(dict.fromkeys(by))
    return [_usage(dict(zip(names, row, strict=False)), row[len(names) :]) for row in rows if row[len(names)]]


def entries(database: Database, *, tenant: str | None = None, span: Span = EVER) -> Iterator[LedgerEntry]:
    """Every call that is over, by day, tenant and request. Raises NotFound as `usage` does, before the first."""
    if tenant is not None:
        with database.read() as session:
            lookup.tenant(session, tenant)
    return _entries(database, tenant, span)


def _entries(database: Database, tenant: str | None, span: Span) -> Iterator[LedgerEntry]:
    place = ("", "", "")
    order = (_L.c.day, _L.c.tenant, _L.c.request_id)
    while True:
        after = _closed(select(_L), tenant, span).where(
            (order[0] > place[0])
            | ((order[0] == place[0]) & (order[1] > place[1]))
            | ((order[0] == place[0]) & (order[1] == place[1]) & (order[2] > place[2]))
        )
        with database.read() as session:  # page by page, so that a long export holds no transaction open
            rows = session.connection().execute(after.order_by(*order).limit(_ROWS_AT_ONCE)).mappings().all()
        for row in rows:
            yield LedgerEntry(
                **{name: row[name] for name in LedgerEntry.model_fields if name in row},
                key=row["key_id"],
                backend_seconds=row["backend_ms"] / 1000,
            )
        if len(rows) < _ROWS_AT_ONCE:
            return
        place = rows[-1]["day"], rows[-1]["tenant"], rows[-1]["request_id"]


def calls(database: Database, *, tenant: str | None = None, span: Span = EVER) -> int:
    """How many `entries` there are."""
    with database.read() as session:
        return int(
            session.connection().execute(_closed(select(func.count()).select_from(_L), tenant, span)).scalar_one()
        )


def spent(database: Database, today: date) -> dict[str, float]:
    """What was used of every budget in the day and the month of `today`, by bucket: what its bucket begins with."""
    found: dict[str, float] = {}
    for span, since in (("day", today), ("month", today.replace(day=1))):
        budgets = [kind for kind in KINDS if kind.quota(0).name == span]
        for line in usage(database, by=("tenant", "project", "key"), span=Span(since=since)) if budgets else ():
            used = {
                "requests": float(line.requests),
                "tokens": float(line.tokens_in + line.tokens_out),
                "money": line.nano_eur / NANO,
            }
            for place in (
                f"{line.tenant}",
                f"{line.tenant}/{line.project}",
                f"{line.tenant}/{line.project}/{line.key}",
            ):
                for kind in budgets:
                    bucket = f"{place}:{kind.bucket}"
                    found[bucket] = found.get(bucket, 0.0) + used[kind.measure]
    return found


def dimensions(written: str) -> tuple[Dimension, ...]:
    """From ``tenant,model``. Raises Invalid."""
    names = tuple(name.strip() for name in written.split(",") if name.strip())
    for name in names:
        if name not in DIMENSIONS:
            raise InvalidValue(f"usage cannot be grouped by {name[:40]!r}; name one of {', '.join(DIMENSIONS)}")
    return names  # type: ignore[return-value]  # just checked


def _closed(query: Select[Any], tenant: str | None, span: Span) -> Select[Any]:
    return _narrowed(_L, query.where(_L.c.day.is_not(None)), tenant, span)


def _narrowed(table: Any, query: Select[Any], tenant: str | None, span: Span) -> Select[Any]:
    if tenant is not None:
        query = query.where(table.c.tenant == tenant)
    if span.since is not None:
        query = query.where(table.c.day >= span.since.isoformat())
    if span.until is not None:
        query = query.where(table.c.day <= span.until.isoformat())
    return query


def _usage(group: dict[str, Any], sums: Sequence[Any]) -> Usage:
    requests, completed, aborted, refused, estimated, unpriced, t_in, cached, t_out, ms, nano, priced, *measured = (
        int(each or 0) for each in sums
    )
    return Usage(
        **group,
        requests=requests,
        completed=completed,
        aborted=aborted,
        refused=refused,
        estimated=estimated,
        unpriced=unpriced,
        tokens_in=t_in,
        tokens_cached=cached,
        tokens_out=t_out,
        backend_seconds=ms / 1000,
        nano_eur=nano,
        eur=nano / NANO,
        eur_per_million_tokens=nano / NANO / priced * 1e6 if priced else None,
        **energy(*measured)._asdict(),
    )
