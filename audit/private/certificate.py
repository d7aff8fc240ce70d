"""Certificates of deletion: which fields of which records are gone, signed by the log's key and bound into its tree.

The text is two lines, ``<origin> certificate`` and the canonical JSON of the body, in a signed note (C2SP
signed-note) under the key of the tenant's tree. The SHA-256 of the body is in the leaf that records the deletion,
so a certificate can be neither made later nor lost unnoticed. It names keys and records, never the person.
"""

from collections.abc import Iterable
from hashlib import sha256
from itertools import pairwise
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from audit.errors import CanonicalError, NoteError
from audit.events.base import Code, Count, Country, Text
from audit.events.canonical import canonicalize, parse_canonical
from audit.events.privacy import Scope
from audit.events.stamp import Timestamp, Uuid7
from audit.tree.note import NoteSigner, open_note, sign_note
from audit.tree.tlog_checkpoint import keys_of

Span = Annotated[tuple[Count, Count], Field(strict=False)]
Spans = Annotated[tuple[Span, ...], Field(strict=False)]
Meant = Annotated[tuple[Count, Uuid7], Field(strict=False)]
"""A number and the id of the event that was to get it."""


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class Recipient(_Model):
    """Who was sent the calls concerned, and must be informed (GDPR 19)."""

    operator_entity: Text
    inference_country: Country
    backend_id: Text
    calls: Count


class Certificate(_Model):
    """`covered` gives, by field, the records concerned as spans (first, last) of seq, both included.

    `unsettled` gives, by field, deleted values whose records were not on record yet (they were being written, or a
    crash prevented them) as (seq, event id): they are covered only if that event has that number.

    `backups_until` is when the last backup that may still hold the deleted ciphertext and its key expires.
    """

    v: Literal[1] = 1
    id: Uuid7
    cause: Literal["erasure", "retention"]
    tenant: Text
    scope: Scope | None = None
    deleted_at: Timestamp
    covered: dict[Code, Spans]
    unsettled: dict[Code, Annotated[tuple[Meant, ...], Field(strict=False)]] | None = None
    records: Count
    values: Count
    keys_destroyed: Annotated[tuple[Uuid7, ...], Field(strict=False)]
    backups_until: Timestamp
    recipients: Annotated[tuple[Recipient, ...], Field(strict=False)] = ()

    @property
    def whole_records(self) -> int:
        """How many records it covers whole (see `audit.private.deletion.RECORD`)."""
        return sum(last - first + 1 for first, last in self.covered.get("record", ()))

    def body(self) -> bytes:
        return canonicalize(self.model_dump(mode="json", exclude_none=True))

    def sha256(self) -> str:
        return sha256(self.body()).hexdigest()

    def covers(self, seq: int, field: str, event_id: str | None = None) -> bool:
        """`event_id`: of the record; None for a whole record, whose content is gone."""
        if any(first <= seq <= last for first, last in self.covered.get(field, ())):
            return True
        return (seq, event_id) in (self.unsettled or {}).get(field, ())

    @classmethod
    def parse(cls, body: bytes) -> "Certificate":
        """Raises CanonicalError if the body is not one."""
        try:
            return cls.model_validate(parse_canonical(body))
        except ValidationError as error:
            raise CanonicalError(f"not a certificate: {error.error_count()} fields are wrong") from error


def spans(seqs: Iterable[int]) -> Spans:
    """`seqs` as the fewest spans."""
    ordered = sorted(set(seqs))
    if not ordered:
        return ()
    breaks = [(left, right) for left, right in pairwise(ordered) if right != left + 1]
    firsts = [ordered[0], *(right for _, right in breaks)]
    lasts = [*(left for left, _ in breaks), ordered[-1]]
    return tuple(zip(firsts, lasts, strict=True))


def sign_certificate(certificate: Certificate, origin: str, signer: NoteSigner) -> str:
    """The note. Raises SignerError if the signer cannot sign now."""
    return sign_note(f"{origin} certificate\n{certificate.body().decode()}\n", origin, signer)


def open_certificate(note: str, origin: str, public_key: bytes | tuple[bytes, ...]) -> Certificate:
    """The certificate in `note`. Raises NoteError if it is none, of another log, or not signed by the key."""
    text = open_note(note, keys_of(origin, public_key))
    first, _, body = text.removesuffix("\n").partition("\n")
    if first != f"{origin} certificate":
        raise NoteError(f"the note is no certificate of {origin}")
    try:
        return Certificate.parse(body.encode())
    except CanonicalError as error:
        raise NoteError(str(error)) from error
