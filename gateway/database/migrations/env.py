"""Run by Alembic; the connection, already in a transaction, comes from `gateway.database.database`."""

from alembic import context

import gateway.database.tables.batches
import gateway.database.tables.cells
import gateway.database.tables.fleet
import gateway.database.tables.marks
import gateway.database.tables.models
import gateway.database.tables.oversight
import gateway.database.tables.responses
import gateway.database.tables.usage
import gateway.database.tables.webhooks  # noqa: F401  # whose tables are in the metadata too
from gateway.database.tables.control import Row

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=Row.metadata,
    render_as_batch=True,  # SQLite alters a table by copying it
)
context.run_migrations()
