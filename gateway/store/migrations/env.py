"""Run by Alembic; the connection, already in a transaction, comes from `gateway.store.database`."""

from alembic import context

import gateway.store.cell_tables
import gateway.store.fleet_tables
import gateway.store.oversight
import gateway.store.usage_tables  # noqa: F401  # whose tables are in the metadata too
from gateway.store.tables import Row

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=Row.metadata,
    render_as_batch=True,  # SQLite alters a table by copying it
)
context.run_migrations()
