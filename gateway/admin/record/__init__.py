"""Routes for the audit record: calls, batches of them, proofs and stored content; rights of persons; health of the log.

Only `gateway.admin.app` may import it.
"""
