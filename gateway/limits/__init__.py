"""Limits: their kinds, the arithmetic of buckets, the limiter, and a store for memory, Redis and PostgreSQL.

`gateway.records`, `gateway.directory`, `gateway.request` and `gateway.server` may import it.
"""
