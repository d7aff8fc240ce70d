"""Run by Alembic; the connection, already in a transaction, comes from `gateway.database.database`."""

from alembic import context

from gateway.database.tables.control import Row

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=Row.metadata,
    render_as_batch=True,  # SQLite alters a table by copying it
)
context.run_migrations()
