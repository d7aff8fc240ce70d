"""Rows of limits, prices and usage. As in `gateway.database.tables.control`, none leaves `gateway.store`.

What is counted is no configuration: it has no epoch.
"""

from datetime import datetime
from typing import Any

from sqlalchemy import JSON, BigInteger, Double, Index, text
from sqlmodel import Field

from gateway.database.tables.control import Changed, Row, UtcDateTime


class LimitSettingRow(Changed, Row, table=True):
    """What an administrator set for a tenant (project and key ''), a project (key '') or a key. NULL: no limit.

    `others`: amounts of the kinds that have no column of their own, by field (`gateway.limits.limit_kinds`).
    """

    __tablename__ = "limit_setting"

    tenant: str = Field(primary_key=True, max_length=31, foreign_key="tenant.id")
    project: str = Field(primary_key=True, max_length=31)
    key: str = Field(primary_key=True, max_length=8)
    requests_per_minute: int | None = Field(None, sa_type=BigInteger)
    tokens_per_minute: int | None = Field(None, sa_type=BigInteger)
    concurrent_requests: int | None = Field(None, sa_type=BigInteger)
    micro_eur_per_day: int | None = Field(None, sa_type=BigInteger)
    micro_eur_per_month: int | None = Field(None, sa_type=BigInteger)
    others: dict[str, int] | None = Field(None, sa_type=JSON)


class PriceRow(Changed, Row, table=True):
    """Micro-euros a million tokens of a model, from an instant on; `batch_discount`: percent off for lines of batches.
    Never changed: there is only a next version."""

    __tablename__ = "price"

    cell: str = Field(primary_key=True, max_length=31)
    model: str = Field(primary_key=True, max_length=256)
    number: int = Field(primary_key=True)
    valid_from: datetime = Field(sa_type=UtcDateTime)
    input: int = Field(sa_type=BigInteger)
    output: int = Field(sa_type=BigInteger)
    cached: int = Field(sa_type=BigInteger)
    batch_discount: int = Field(0, sa_column_kwargs={"server_default": "0"})


class LimitBucketRow(Row, table=True):
    """What is consumed and held of one quota, as of `at`, in seconds since 1970 by the database's clock."""

    __tablename__ = "limit_bucket"

    name: str = Field(primary_key=True, max_length=128)
    level: float = Field(sa_type=Double)
    held: float = Field(sa_type=Double)
    at: float = Field(sa_type=Double)


class LimitHoldRow(Row, table=True):
    """What one running call holds, by bucket, until its lease runs out."""

    __tablename__ = "limit_hold"

    reservation: str = Field(primary_key=True, max_length=16)
    deadline: float = Field(sa_type=Double, index=True)
    amounts: dict[str, Any] = Field(sa_type=JSON)


class LedgerCursorRow(Row, table=True):
    """How far a log was read into the ledger: the next leaf of each of its trees. Tenant '': the turn to read it."""

    __tablename__ = "ledger_cursor"

    log: str = Field(primary_key=True, max_length=16)
    tenant: str = Field(primary_key=True, max_length=63)
    next_seq: int = Field(sa_type=BigInteger)


REST = "day IS NOT NULL AND summed IS NULL"
"""Condition for rows of the ledger that are over and in no sum: hardly ever any, so that their index is empty."""


class LedgerRow(Row, table=True):
    """One accepted call. `outcome` (completed, aborted, refused) and `day` (UTC, of the outcome) are NULL while it
    runs; `price` (the version's number) and `nano_eur` where its model had no price; `energy_mj` where no backend
    measured. `keep_days`: as long as its record is kept; NULL in rows of before there was a period. `batch` and `line`:
    of a call that is a line of a batch. `summed`: it is in the sums of its day; not yet where a gateway of an earlier
    version wrote it."""

    __tablename__ = "ledger"
    __table_args__ = (
        Index("ix_ledger_day_tenant", "day", "tenant"),
        Index("ix_ledger_accepted_at", "accepted_at"),
        Index("ix_ledger_batch_line", "batch", "line"),
        Index("ix_ledger_rest", "day", postgresql_where=text(REST), sqlite_where=text(REST)),
    )

    tenant: str = Field(primary_key=True, max_length=63)
    request_id: str = Field(primary_key=True, max_length=256)
    project: str = Field(max_length=256)
    key_id: str = Field(max_length=256)
    model: str = Field(max_length=256)
    region: str = Field(max_length=256)
    backend: str = Field(max_length=256)
    accepted_at: float = Field(sa_type=Double)
    outcome: str | None = Field(None, max_length=16)
    day: str | None = Field(None, max_length=10)
    tokens_in: int = Field(sa_type=BigInteger)
    tokens_cached: int = Field(sa_type=BigInteger)
    tokens_out: int = Field(sa_type=BigInteger)
    estimated: bool
    backend_ms: int = Field(sa_type=BigInteger)
    price: int | None = None
    nano_eur: int | None = Field(None, sa_type=BigInteger)
    energy_mj: int | None = Field(None, sa_type=BigInteger)
    keep_days: int | None = None
    batch: str | None = Field(None, max_length=40)
    line: int | None = None
    summed: bool | None = None


class DailySumRow(Row, table=True):
    """Calls of one day (UTC, of their outcomes) that agree in every column of the key, added up: no request, no moment
    finer than the day. `keep_days`: of the call that is kept longest. `priced_tokens` and `measured_tokens`: of calls
    that had a price, and whose backend measured."""

    __tablename__ = "daily_sum"

    tenant: str = Field(primary_key=True, max_length=63)
    day: str = Field(primary_key=True, max_length=10)
    project: str = Field(primary_key=True, max_length=256)
    key_id: str = Field(primary_key=True, max_length=256)
    model: str = Field(primary_key=True, max_length=256)
    region: str = Field(primary_key=True, max_length=256)
    backend: str = Field(primary_key=True, max_length=256)
    requests: int = Field(sa_type=BigInteger)
    completed: int = Field(sa_type=BigInteger)
    aborted: int = Field(sa_type=BigInteger)
    refused: int = Field(sa_type=BigInteger)
    estimated: int = Field(sa_type=BigInteger)
    unpriced: int = Field(sa_type=BigInteger)
    tokens_in: int = Field(sa_type=BigInteger)
    tokens_cached: int = Field(sa_type=BigInteger)
    tokens_out: int = Field(sa_type=BigInteger)
    backend_ms: int = Field(sa_type=BigInteger)
    nano_eur: int = Field(sa_type=BigInteger)
    priced_tokens: int = Field(sa_type=BigInteger)
    measured: int = Field(sa_type=BigInteger)
    energy_mj: int = Field(sa_type=BigInteger)
    measured_tokens: int = Field(sa_type=BigInteger)
    keep_days: int


class CallCurveRow(Row, table=True):
    """Calls of a tenant that ended, or were denied, within `step_s` seconds from `begin` (since 1970), by the class of
    how long they took (`gateway.records.curves`; -1 where that is not known), added up: no request, no key. Kept for
    eight days at the most. `first_token_ms`: of `first_tokens` calls, in all."""

    __tablename__ = "call_curve"
    __table_args__ = (Index("ix_call_curve_step_s_begin", "step_s", "begin"),)

    tenant: str = Field(primary_key=True, max_length=63)
    step_s: int = Field(primary_key=True, sa_column_kwargs={"autoincrement": False})
    begin: int = Field(primary_key=True, sa_type=BigInteger, sa_column_kwargs={"autoincrement": False})
    took: int = Field(primary_key=True, sa_column_kwargs={"autoincrement": False})
    completed: int = Field(sa_type=BigInteger)
    denied: int = Field(sa_type=BigInteger)
    refused: int = Field(sa_type=BigInteger)
    aborted: int = Field(sa_type=BigInteger)
    tokens_out: int = Field(sa_type=BigInteger)
    first_tokens: int = Field(sa_type=BigInteger)
    first_token_ms: int = Field(sa_type=BigInteger)


class BackendCurveRow(Row, table=True):
    """What a backend told at `looks` moments of a step, added up, by any gateway; `tokens_per_s` at `rated` and `watts`
    at `powered` of them. Kept for eight days at the most."""

    __tablename__ = "backend_curve"
    __table_args__ = (Index("ix_backend_curve_step_s_begin", "step_s", "begin"),)

    tenant: str = Field(primary_key=True, max_length=63)
    step_s: int = Field(primary_key=True, sa_column_kwargs={"autoincrement": False})
    begin: int = Field(primary_key=True, sa_type=BigInteger, sa_column_kwargs={"autoincrement": False})
    backend: str = Field(primary_key=True, max_length=256)
    looks: int = Field(sa_type=BigInteger)
    running: float = Field(sa_type=Double)
    waiting: float = Field(sa_type=Double)
    kv_use: float = Field(sa_type=Double)
    tokens_per_s: float = Field(sa_type=Double)
    watts: float = Field(sa_type=Double)
    rated: int = Field(sa_type=BigInteger)
    powered: int = Field(sa_type=BigInteger)


class CaseCursorRow(Row, table=True):
    """How far a tree of a log was read for records of incidents and of requests of persons: the next leaf, and the hash
    of the one before it."""

    __tablename__ = "incident_cursor"

    log: str = Field(primary_key=True, max_length=16)
    tenant: str = Field(primary_key=True, max_length=63)
    next_seq: int = Field(sa_type=BigInteger)
    leaf_hash: bytes


class CasePlaceRow(Row, table=True):
    """A record of an incident, of a request of a person or of an act that may answer one: its number, and nothing of
    what it says."""

    __tablename__ = "incident_place"

    log: str = Field(primary_key=True, max_length=16)
    tenant: str = Field(primary_key=True, max_length=63)
    seq: int = Field(primary_key=True, sa_type=BigInteger, sa_column_kwargs={"autoincrement": False})


class ChangeCursorRow(Row, table=True):
    """How far a tree of a log was read for records of changes: the next leaf, and the hash of the one before it."""

    __tablename__ = "change_cursor"

    log: str = Field(primary_key=True, max_length=16)
    tenant: str = Field(primary_key=True, max_length=63)
    next_seq: int = Field(sa_type=BigInteger)
    leaf_hash: bytes


class ChangePlaceRow(Row, table=True):
    """A record of a change: its number and its type, and nothing else of what it says."""

    __tablename__ = "change_place"

    log: str = Field(primary_key=True, max_length=16)
    tenant: str = Field(primary_key=True, max_length=63)
    seq: int = Field(primary_key=True, sa_type=BigInteger, sa_column_kwargs={"autoincrement": False})
    type: str = Field(max_length=64)
