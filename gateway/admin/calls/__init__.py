"""What every route of the admin API shares: authentication, idempotency, problem details, schemas.

Only `gateway.admin` and `gateway.server` may import it.
"""
