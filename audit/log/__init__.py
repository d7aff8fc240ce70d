"""The append path: sequencer, checkpointer, receipts, tiles, and the log that ties them together.

`audit.private` and everything above it may import it; `gateway` imports `audit.log.audit_log`.
"""
