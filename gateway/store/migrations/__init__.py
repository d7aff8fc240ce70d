"""Alembic revisions of the control database, run by `gateway.store.database`."""
