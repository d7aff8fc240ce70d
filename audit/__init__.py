"""The record: a Merkle log of events that proves itself offline.

Append an event and get a receipt once it is durable (`AuditLog`); check a data file without trusting whoever kept it
(`verify_log`). What a record must not hold is `Private` and lies in a side store (`open_sided`); with both in hand
(`Custody`), `audit.erasure`, `audit.rights`, `audit.retention`, `audit.pack` and `audit.anchor` do the rest.
Event types are in `audit.event`, errors in `audit.errors`, the bytes on disk in `docs/audit-format.md`.
"""

from audit.custody import Custody
from audit.errors import AuditError, AuditUnavailable, EventRejected
from audit.keys import FileKeyProvider, KeyProvider
from audit.log import AuditLog, AuditSettings
from audit.private import Private
from audit.receipt import Receipt
from audit.sided import open_sided
from audit.signer import FileSigner, Signer
from audit.verify import verify_log

__all__ = [
    "AuditError",
    "AuditLog",
    "AuditSettings",
    "AuditUnavailable",
    "Custody",
    "EventRejected",
    "FileKeyProvider",
    "FileSigner",
    "KeyProvider",
    "Private",
    "Receipt",
    "Signer",
    "open_sided",
    "verify_log",
]
