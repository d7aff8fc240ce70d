"""Queue, speed and power of backends, summed over minutes, ten minutes and hours."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from gateway.database.database import Database
from gateway.database.tables.usage import BackendCurveRow
from gateway.records.curves import steps_of
from gateway.store.log_followers.call_curves import add_rows

_CURVE: Any = BackendCurveRow.__table__  # type: ignore[attr-defined]  # set by SQLModel's metaclass


class Look(NamedTuple):
    """What one backend reports at one moment. `tokens_per_s`, `watts`: None where it does not report them."""

    tenant: str
    backend: str
    running: int
    waiting: int
    kv_use: float
    tokens_per_s: float | None
    watts: float | None


def note_looks(database: Database, looks: Sequence[Look], now: float) -> None:
    """Add what was seen at `now`, seconds since 1970. Raises DatabaseUnavailable."""
    rows = [
        {
            "tenant": each.tenant,
            "step_s": step_s,
            "begin": begin,
            "backend": each.backend,
            "looks": 1,
            "running": float(each.running),
            "waiting": float(each.waiting),
            "kv_use": each.kv_use,
            "tokens_per_s": each.tokens_per_s or 0.0,
            "watts": each.watts or 0.0,
            "rated": int(each.tokens_per_s is not None),
            "powered": int(each.watts is not None),
        }
        for each in sorted(looks, key=lambda each: (each.tenant, each.backend))
        for step_s, begin in steps_of(now, now)
    ]
    if rows:
        with database.write() as session:
            add_rows(session.connection(), _CURVE, rows)
