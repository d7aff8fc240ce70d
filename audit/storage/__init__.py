"""Where trees are kept: SQLite and PostgreSQL stores, the identity of a database, watches on its files.

`audit.log` and everything above it may import it.
"""
