"""The record: a Merkle log of events that proves itself offline.

Append an event and get a receipt once it is durable (`AuditLog`); check a data file without trusting whoever kept it
(`verify_log`). Event types are in `audit.event`, errors in `audit.errors`, the bytes on disk in `docs/audit-format.md`.
"""

from audit.errors import AuditError, AuditUnavailable, EventRejected
from audit.log import AuditLog, AuditSettings
from audit.receipt import Receipt
from audit.signer import FileSigner, Signer
from audit.verify import verify_log

__all__ = [
    "AuditError",
    "AuditLog",
    "AuditSettings",
    "AuditUnavailable",
    "EventRejected",
    "FileSigner",
    "Receipt",
    "Signer",
    "verify_log",
]
