"""What administrators do to limits and prices."""

from datetime import datetime
from decimal import Decimal
from hashlib import sha256

from sqlmodel import func, select

from audit.events.base import SYSTEM_TENANT
from gateway.database.errors import Invalid, InvalidValue, Stale
from gateway.database.tables.control import ApiKeyRow, ProjectRow, TenantRow
from gateway.database.tables.usage import LimitSettingRow, PriceRow
from gateway.limits.limit_kinds import LimitFigures, stored
from gateway.records.prices import MICRO
from gateway.records.usage import LimitsRecord, PriceRecord, limits_record, no_limits, price_record
from gateway.store import lookup
from gateway.store.change import Administration, Change, checked_text

MAX_PRICE = Decimal(10**6)


class LimitControl(Administration):
    def set_limits(
        self, tenant: str, figures: LimitFigures, *, project: str | None = None, key: str | None = None
    ) -> LimitsRecord:
        """Set limits of the tenant, of a project, or of a key (whose project may be left out); in force within a
        second.

        What is None is not limited. Raises Invalid, NotFound.
        """
        with self._change() as change:
            owner, place = _place(change, tenant, project, key)
            row = change.session.get(LimitSettingRow, place)
            before = limits_record(row) if row else None
            if row is None:
                if self._expected not in (None, no_limits(owner, *place).digest()):
                    raise Stale(
                        f"no limits were set for {place[2] or place[1] or tenant!r} since you last read them"
                        "; read them again"
                    )
                row = LimitSettingRow(tenant=tenant, project=place[1], key=place[2], **change.stamp)
                change.session.add(row)
            for column, amount in stored(figures).items():
                setattr(row, column, amount)
            row.epoch = change.epoch
            record = limits_record(row)
            target = place[2] or place[1] or tenant
            change.report("limits.changed", tenant, target, before, record, project=place[1] or None)
        return record

    def set_price(
        self,
        model: str,
        *,
        input: Decimal,
        output: Decimal,
        cached: Decimal | None = None,
        batch_discount: int = 0,
        valid_from: datetime | None = None,
    ) -> PriceRecord:
        """The next version of what `model` costs, in euros a million tokens; without `cached` those cost as `input`.
        `batch_discount`: percent off for lines of batches.

        In force from `valid_from` (now) on, which cannot be in the past: what was used has its price. Raises Invalid.
        """
        checked_text(model, "model")
        if not 0 <= batch_discount <= 100:
            raise InvalidValue(f"a discount of {batch_discount} percent is not possible; give 0 to 100")
        micro = [_micro_price(amount) for amount in (input, output, input if cached is None else cached)]
        with self._change() as change:
            if valid_from is not None and (valid_from.tzinfo is None or valid_from < change.at):
                raise InvalidValue(
                    "the begin of a price is in the past or has no zone; give a later instant with a zone"
                )
            versions = select(func.max(PriceRow.number)).where(PriceRow.cell == self._cell, PriceRow.model == model)
            last = change.session.exec(versions).one() or 0
            row = PriceRow(
                model=model,
                number=last + 1,
                valid_from=valid_from or change.at,
                input=micro[0],
                output=micro[1],
                cached=micro[2],
                batch_discount=batch_discount,
                **change.stamp,
            )
            change.insert(row, f"version {row.number} of the price of {model!r}")
            record = price_record(row)
            # A model's name is free text, and free text is not recorded.
            target = f"model:{sha256(model.encode()).hexdigest()[:16]}"
            change.report("price.set", SYSTEM_TENANT, target, None, record, detail={"number": str(row.number)})
        return record


def copy_limits(change: Change, tenant: str, project: str, key: str, successor: str) -> None:
    """A key's successor is bound by what bound the key."""
    row = change.session.get(LimitSettingRow, (tenant, project, key))
    if row is not None:
        figures = row.model_dump(exclude={"key", "cell", "epoch", "created_at"})
        change.session.add(LimitSettingRow(**figures, key=successor, **change.stamp))


def _place(
    change: Change, tenant: str, project: str | None, key: str | None
) -> tuple[TenantRow | ProjectRow | ApiKeyRow, tuple[str, str, str]]:
    """Whose limits they are, and where they are kept."""
    owner = lookup.living_tenant(change.session, tenant)
    if key is not None:
        row = lookup.key(change.session, tenant, key)
        if project not in (None, row.project):
            raise Invalid(f"key {key!r} is not of project {project!r}; check the id of the key")
        return row, (tenant, row.project, key)
    if project is not None:
        return lookup.living_project(change.session, tenant, project), (tenant, project, "")
    return owner, (tenant, "", "")


def _micro_price(euros: Decimal) -> int:
    if not (euros.is_finite() and 0 <= euros <= MAX_PRICE and euros * MICRO == int(euros * MICRO)):
        raise InvalidValue(f"the price {euros} euros is not possible; give 0 to {MAX_PRICE} with at most 6 decimals")
    return int(euros * MICRO)
