"""What gateways have to do for each model of each tenant: written by each, added up by the one that leads."""

from collections.abc import Collection
from typing import Any

from sqlalchemy import Connection, delete, select
from sqlalchemy.dialects import postgresql, sqlite

from gateway.database.database import Database
from gateway.database.leases import database_time
from gateway.database.tables.fleet import DemandRow
from regions.fleet.demand import Demand, DemandReport, add_up

FRESH_S = 10.0
"""A gateway that has reported nothing for so long has nothing to do, or has ended."""

_DEMAND: Any = DemandRow.__table__  # type: ignore[attr-defined]  # set by SQLModel's metaclass


def write_demand(database: Database, cell: str, node: str, reports: Collection[DemandReport]) -> None:
    """As of now, for the models that are `reports` of."""
    if not reports:
        return
    with database.write() as session:
        connection = session.connection()
        now = database_time(connection)
        rows = [
            {
                "tenant": each.tenant,
                "model": each.model,
                "node": node,
                "cell": cell,
                "at": now,
                **each.demand._asdict() | {"regions": sorted(each.demand.regions)},
            }
            for each in reports
        ]
        insert = (postgresql if connection.dialect.name == "postgresql" else sqlite).insert(_DEMAND)
        news = {name: insert.excluded[name] for name in ("at", "in_flight", "parked", "ttft_ms", "regions")}
        connection.execute(insert.on_conflict_do_update(index_elements=["tenant", "model", "node"], set_=news), rows)
        connection.execute(delete(_DEMAND).where(_DEMAND.c.cell == cell, _DEMAND.c.at < now - 60 * FRESH_S))


def read_demand(connection: Connection, cell: str) -> dict[tuple[str, str], Demand]:
    """By tenant and model, of all gateways that reported lately."""
    now = database_time(connection)
    # A report later than now was made before the clock was put back, by a gateway that may have ended.
    fresh = _DEMAND.c.at.between(now - FRESH_S, now + FRESH_S)
    rows = connection.execute(select(_DEMAND).where(_DEMAND.c.cell == cell, fresh)).mappings()
    return add_up(
        DemandReport(
            row["tenant"],
            row["model"],
            Demand(row["in_flight"], row["parked"], row["ttft_ms"], frozenset(row["regions"])),
        )
        for row in rows
    )
