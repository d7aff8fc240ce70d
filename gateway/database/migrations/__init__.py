"""Alembic revisions of the control database.

No module may import it; `gateway.database.database` runs them.
"""
