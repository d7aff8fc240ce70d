"""The kinds of limit, one declaration each: a field of LimitFigures.

From it derive the option of `domicile limit set`, the field of the admin API and of bundles between cells, the name in
a policy document and in error codes, where it is stored, how it is counted in every store, and what a client gets to
read about it. `docs/extending.md` shows how to add one.
"""

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field

from gateway.database.errors import StoreError
from gateway.errors import BudgetExceeded, LimitReached, TooManyConcurrent
from gateway.limits.bucket import Budget, Concurrency, Quota, Rate

Count = Annotated[int, Field(ge=0, le=10**12, strict=True)]
Euros = Annotated[float, Field(ge=0, le=10**9, allow_inf_nan=False)]
"""Counted to the micro-euro."""

MICRO_EUROS: Final = 10**6

Measure = Literal["requests", "running", "tokens", "money"]
"""What is counted of a call. "requests": one, consumed when it is admitted, regardless of its outcome. "running": one,
held while it runs. "tokens", "money": held as estimated, and settled with what was used."""


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class LimitKind:
    """One kind of limit.

    `name`: in the CLI, in policy documents and in rules (``limits.rpm``). `bucket`: in the names of its buckets; it
    never changes, since buckets outlive a release. `unit`: for people, after the amount. `quota`: from an amount to
    what is enforced. `refusal`: the error of a call that finds it used up. `header`: the last part of OpenAI's
    ``x-ratelimit-*`` headers about it. `column`: where it is stored by itself; other kinds share a column.

    Derived: `field`, the name in the admin API; `is_held`, whether a running call holds some of it; `is_settled`,
    whether what it used replaces what it held.
    """

    name: str
    bucket: str
    unit: str
    measure: Measure
    quota: Callable[[float], Quota]
    refusal: type[LimitReached] = LimitReached
    header: str | None = None
    column: str | None = None
    field: str = ""
    is_held: bool = dataclasses.field(init=False)
    is_settled: bool = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "is_held", self.measure != "requests")
        object.__setattr__(self, "is_settled", self.measure in ("tokens", "money"))

    def stored(self, amount: float | None) -> int | None:
        """`amount` as it is stored: a whole number, money in micro-euros."""
        if amount is None:
            return None
        return round(amount * MICRO_EUROS) if self.measure == "money" else int(amount)

    def read(self, stored: int | None) -> float | None:
        """The amount of which `stored` made a whole number."""
        if stored is None:
            return None
        return stored / MICRO_EUROS if self.measure == "money" else stored


class LimitFigures(BaseModel):
    """What may be used at most; None sets no bound, 0 lets nothing through. Whole numbers but for euros."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    requests_per_minute: Annotated[
        Count | None,
        LimitKind(
            name="rpm",
            bucket="requests",
            unit="requests per minute",
            measure="requests",
            quota=Rate,
            header="requests",
            column="requests_per_minute",
        ),
    ] = None
    tokens_per_minute: Annotated[
        Count | None,
        LimitKind(
            name="tpm",
            bucket="tokens",
            unit="tokens per minute",
            measure="tokens",
            quota=Rate,
            header="tokens",
            column="tokens_per_minute",
        ),
    ] = None
    concurrent_requests: Annotated[
        Count | None,
        LimitKind(
            name="concurrent",
            bucket="concurrent",
            unit="concurrent requests",
            measure="running",
            quota=Concurrency,
            refusal=TooManyConcurrent,
            column="concurrent_requests",
        ),
    ] = None
    eur_per_day: Annotated[
        Euros | None,
        LimitKind(
            name="eur_per_day",
            bucket="day",
            unit="euros per day",
            measure="money",
            quota=partial(Budget, span="day"),
            refusal=BudgetExceeded,
            column="micro_eur_per_day",
        ),
    ] = None
    eur_per_month: Annotated[
        Euros | None,
        LimitKind(
            name="eur_per_month",
            bucket="month",
            unit="euros per month",
            measure="money",
            quota=partial(Budget, span="month"),
            refusal=BudgetExceeded,
            column="micro_eur_per_month",
        ),
    ] = None


def kinds_of(figures: type[BaseModel]) -> tuple[LimitKind, ...]:
    """The kinds that the fields of `figures` declare, in their order."""
    return tuple(
        dataclasses.replace(declared, field=name)
        for name, each in figures.model_fields.items()
        for declared in each.metadata
        if isinstance(declared, LimitKind)
    )


KINDS: Final = kinds_of(LimitFigures)
BY_NAME: Final = {kind.name: kind for kind in KINDS}


def stored(figures: LimitFigures) -> dict[str, Any]:
    """The columns of `figures`. Kinds without a column of their own are in `others`, None where none of them is set."""
    columns: dict[str, Any] = {}
    others: dict[str, int] = {}
    for kind in KINDS:
        amount = kind.stored(getattr(figures, kind.field))
        if kind.column is not None:
            columns[kind.column] = amount
        elif amount is not None:
            others[kind.field] = amount
    return columns | {"others": others or None}


def figures(row: Any) -> dict[str, float | None]:
    """The amounts in `row`, which has the columns of `stored`, by field.

    A kind that this release does not know, stored by a newer one, raises StoreError: a limit is never ignored.
    """
    others: dict[str, int] = dict(row.others or {})
    found = {
        kind.field: kind.read(getattr(row, kind.column) if kind.column is not None else others.pop(kind.field, None))
        for kind in KINDS
    }
    if others:
        raise StoreError(
            f"limits of an unknown kind are set: {', '.join(sorted(others))}; use the release that set them"
        )
    return found
