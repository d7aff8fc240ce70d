"""Shared parts of the routes for the record: the gateway's log, its key, and recorded reads."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated

from fastapi import Depends
from pydantic import Field

from audit.errors import AuditError, AuditUnavailable, HeldError, StoreError
from audit.events.privacy import LogRead
from audit.keys.signer import key_of
from audit.keys.succession import with_successors
from audit.log.receipt import Receipt, verify_receipt
from audit.private.audit_context import AuditContext
from audit.storage.store import Reader
from audit.storage.tiles import Folder
from audit.tree.note import VerifierKey
from gateway.admin.calls.access import AdminContext, Context
from gateway.admin.calls.schemas import ResponseBody
from gateway.database.errors import Invalid, NotReady

ReasonCode = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_.-]{0,63}$")]
"""A code, not free text, because it is recorded."""
Moment = Annotated[str, Field(pattern=r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$")]
Subject = Annotated[str, Field(min_length=1, max_length=512)]


class Proof(ResponseBody):
    """Proof that the record of `receipt` is included in a signed checkpoint: RFC 6962 hashes, nearest first, in
    hexadecimal. `note`: the signed checkpoint. `key`: verifier key of its signature."""

    receipt: str
    origin: str
    size: int
    root: str
    proof: tuple[str, ...]
    note: str
    key: str


@dataclass(frozen=True, slots=True)
class Record:
    """The log of one gateway, for one tenant at a time."""

    context: AdminContext
    audit: AuditContext

    def known(self, tenant: str) -> None:
        """Raise NotFound for an unknown tenant."""
        self.context.inventory.tenant(tenant)

    @contextmanager
    def reading(self) -> Iterator[Reader]:
        with self.audit.reading() as reader:
            yield reader

    def key(self, reader: Reader) -> VerifierKey:
        """Return the verifier key of the log, with its predecessors."""
        return with_successors(self.verifier, reader.successions())

    @property
    def verifier(self) -> VerifierKey:
        """Return the current verifier key."""
        return key_of(self.audit.signer)

    def prove(self, receipt: Receipt) -> Proof:
        """Prove that the record of a receipt is included in the log under a signed checkpoint. Raises Invalid if the
        proof fails or the next checkpoint is not signed yet."""
        with refusing(), self.reading() as reader:
            tiles = None if self.audit.tiles is None else Folder(self.audit.tiles / receipt.tenant)
            found = verify_receipt(reader, self.key(reader), receipt, tiles)
            size = found.checkpoint.size
            note = next((one.note for one in reader.checkpoints(receipt.tenant) if one.size == size), "")
        return Proof(
            receipt=str(receipt),
            origin=found.checkpoint.origin,
            size=size,
            root=found.checkpoint.root.hex(),
            proof=tuple(node.hex() for node in found.proof),
            note=note,
            key=str(self.verifier),
        )

    async def note_read(self, tenant: str, first: int, end: int, actor: str, reason: str) -> None:
        """Record that records `first` to before `end` are read. Raises AuditUnavailable; none may be shown then."""
        await self.audit.record(LogRead(tenant=tenant, actor=actor, first=first, end=end, reason=reason))


def record_of(context: Context) -> Record:
    if context.audit is None:
        raise NotReady("this process has no record; send the call to a gateway")
    return Record(context, context.audit)


OnRecord = Annotated[Record, Depends(record_of)]


@contextmanager
def refusing() -> Iterator[None]:
    """Map a refusal of the record to 422 with its message, and to 409 for a legal hold. Unavailability stays 503."""
    try:
        yield
    except (AuditUnavailable, StoreError):
        raise
    except HeldError as error:
        raise NotReady(str(error)) from error
    except AuditError as error:
        raise Invalid(str(error)) from error
