"""Routes for the audit record: calls, their proofs and stored content; data subject rights; the health of the log.

Only `gateway.admin.app` may import it.
"""
