"""Routes on the record: calls, their proofs and kept content; the rights of persons; the health of the log.

Only `gateway.admin.app` may import it.
"""
