"""Alembic revisions of the control database, run by `gateway.database.database`."""
