"""Curves of the last hour, day or week, of a tenant's calls and of its backends. All raise DatabaseUnavailable."""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict
from sqlalchemy import select

from gateway.database.database import Database
from gateway.database.tables.usage import BackendCurveRow, CallCurveRow
from gateway.records.curves import PERIODS, Period, quantile
from gateway.store import lookup

PeriodName = Literal["1h", "24h", "7d"]
SHORTEST = 0.1
"""A step that began just now counts as this share of its width, lest one call look like many."""

_CALLS: Any = CallCurveRow.__table__  # type: ignore[attr-defined]  # set by SQLModel's metaclass
_BACKENDS: Any = BackendCurveRow.__table__  # type: ignore[attr-defined]
_OUTCOMES = ("completed", "denied", "refused", "aborted")
_SUMMED = (*_OUTCOMES, "tokens_out", "first_tokens", "first_token_ms")
_LOOKED = ("looks", "running", "waiting", "kv_use", "tokens_per_s", "watts", "rated", "powered")


class CallPoint(BaseModel):
    """One step from `begin` on. `calls`: that ended or were denied; `denied`: by policy; `refused`: by a backend or a
    policy that changed meanwhile; `aborted`: for another reason. `calls_per_minute`, `tokens_per_s` (written): the
    running step by the time that passed of it. `latency_p50_ms`, `latency_p95_ms`: of completed calls, to a quarter;
    `first_token_ms`: the mean. Null: no such call."""

    model_config = ConfigDict(frozen=True)

    begin: datetime
    calls: int
    completed: int
    denied: int
    refused: int
    aborted: int
    calls_per_minute: float
    refused_per_minute: float
    tokens_per_s: float
    latency_p50_ms: float | None
    latency_p95_ms: float | None
    first_token_ms: float | None


class BackendPoint(BaseModel):
    """One step from `begin` on: means over it, added up over the backends but for `kv_use`, their mean (0 to 1).
    `running`, `waiting`: sequences. Null: no backend reported it."""

    model_config = ConfigDict(frozen=True)

    begin: datetime
    running: float | None
    waiting: float | None
    kv_use: float | None
    tokens_per_s: float | None
    watts: float | None


def call_curves(database: Database, tenant: str, period: PeriodName, now: float) -> list[CallPoint]:
    """One point a step, oldest first, the running one last. Raises NotFound for a tenant that is not there."""
    shown = PERIODS[period]
    begins = shown.begins(now)
    query = select(_CALLS.c.begin, _CALLS.c.took, *(_CALLS.c[name] for name in _SUMMED)).where(
        _CALLS.c.tenant == tenant, _CALLS.c.step_s == shown.step_s, _CALLS.c.begin >= begins[0]
    )
    sums: defaultdict[int, Counter[str]] = defaultdict(Counter)
    classes: defaultdict[int, dict[int, int]] = defaultdict(dict)
    with database.read() as session:
        lookup.tenant(session, tenant)
        for begin, took, *figures in session.connection().execute(query):
            sums[begin].update(dict(zip(_SUMMED, figures, strict=True)))
            if took >= 0:
                classes[begin][took] = figures[0]
    return [_call_point(begin, sums[begin], classes[begin], _passed(shown, begin, now)) for begin in begins]


def _passed(period: Period, begin: int, now: float) -> float:
    """Seconds of the step that are over."""
    return min(float(period.step_s), max(now - begin, period.step_s * SHORTEST))


def _call_point(begin: int, sums: Mapping[str, int], classes: dict[int, int], seconds: float) -> CallPoint:
    calls = sum(sums[name] for name in _OUTCOMES)
    firsts = sums["first_tokens"]
    return CallPoint(
        begin=datetime.fromtimestamp(begin, UTC),
        calls=calls,
        **{name: sums[name] for name in _OUTCOMES},
        calls_per_minute=round(calls * 60 / seconds, 3),
        refused_per_minute=round((sums["denied"] + sums["refused"]) * 60 / seconds, 3),
        tokens_per_s=round(sums["tokens_out"] / seconds, 3),
        latency_p50_ms=_rounded(quantile(classes, 0.5)),
        latency_p95_ms=_rounded(quantile(classes, 0.95)),
        first_token_ms=_rounded(sums["first_token_ms"] / firsts if firsts else None),
    )


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 3)


def backend_curves(database: Database, tenant: str, period: PeriodName, now: float) -> list[BackendPoint]:
    """As `call_curves`, of what the tenant's backends told."""
    shown = PERIODS[period]
    begins = shown.begins(now)
    query = select(_BACKENDS.c.begin, *(_BACKENDS.c[name] for name in _LOOKED)).where(
        _BACKENDS.c.tenant == tenant, _BACKENDS.c.step_s == shown.step_s, _BACKENDS.c.begin >= begins[0]
    )
    found: defaultdict[int, list[Mapping[str, float]]] = defaultdict(list)
    with database.read() as session:
        lookup.tenant(session, tenant)
        for begin, *figures in session.connection().execute(query):
            found[begin].append(dict(zip(_LOOKED, figures, strict=True)))
    return [_backend_point(begin, found[begin]) for begin in begins]


def _backend_point(begin: int, backends: Sequence[Mapping[str, float]]) -> BackendPoint:
    def means(name: str, over: str) -> list[float]:
        return [each[name] / each[over] for each in backends if each[over]]

    def added(name: str, over: str = "looks") -> float | None:
        found = means(name, over)
        return _rounded(sum(found)) if found else None

    use = means("kv_use", "looks")
    return BackendPoint(
        begin=datetime.fromtimestamp(begin, UTC),
        running=added("running"),
        waiting=added("waiting"),
        kv_use=_rounded(sum(use) / len(use)) if use else None,
        tokens_per_s=added("tokens_per_s", "rated"),
        watts=added("watts", "powered"),
    )
