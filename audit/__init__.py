"""The record: a Merkle log of events that proves itself offline.

`audit.log.audit_log` appends an event and gives a receipt once it is durable; `audit.verification.verify` checks a data
file and trusts nothing in it but the key. Values that a record must not hold are kept in a separate store
(`audit.private.log_and_value_store`); `audit.private.audit_context` gives access to both, for erasure, the rights of
persons, retention and packs. Event types are in `audit.events.event`, errors in `audit.errors`, the bytes on disk in
`docs/audit-format.md`.

`regions` and `gateway` may import it.
"""
