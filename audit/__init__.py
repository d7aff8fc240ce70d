"""The record: a Merkle log of events that proves itself offline.

Append an event and get a receipt once it is durable (`AuditLog`); check a data file without trusting whoever kept it
(`verify_log`). What a record must not hold is `Private` and lies in a side store (`open_sided`); with both in hand
(`Custody`), `audit.private.erasure`, `audit.privacy.rights`, `audit.privacy.retention`, `audit.pack.export` and
`audit.witness.anchor` do the rest. Event types are in `audit.events.event`, errors in `audit.errors`, the bytes on disk
in `docs/audit-format.md`.
"""

from audit.errors import AuditError, AuditUnavailable, EventRejected
from audit.events.private_value import Private
from audit.keys.owner_keys import FileKeyProvider, KeyProvider
from audit.keys.signer import FileSigner, Signer
from audit.log.audit_log import AuditLog, AuditSettings
from audit.log.receipt import Receipt
from audit.private.custody import Custody
from audit.private.joint_store import open_sided
from audit.verification.verify import verify_log

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
