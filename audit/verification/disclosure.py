"""Private values of a tree: each commitment is disclosed, withheld or erased; others are missing or wrong.

disclosed   the value was opened and is the one committed to
withheld    the value is kept, and was not opened
erased      it was deleted, and a certificate that the tree vouches for says so
missing     it or its key is not there, and no certificate says why: a fault
wrong       what is kept is not what was committed to, or does not open: a fault

A record may itself have expired: its content is gone, its hash stays, and the same is asked of it (field `record`).
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Literal

from audit.errors import CommitmentError, KeyLost, NoteError
from audit.events.leaf import decode_leaf
from audit.events.privacy import ErasureCompleted, RetentionRun
from audit.private.certificate import Certificate, open_certificate
from audit.private.deletion import RECORD, certificates_of, deletions_of
from audit.private.value_store import StoredValue, ValueStore
from audit.storage.store import Reader
from audit.tree.note import VerifierKey
from audit.tree.tlog_checkpoint import origin_of

State = Literal["disclosed", "withheld", "erased", "missing", "wrong"]
FAULTS = frozenset({"missing", "wrong"})


@dataclass(frozen=True, slots=True)
class FieldState:
    """`because` says what is wrong with a `missing` or `wrong` one, or names the certificate of an `erased` one."""

    seq: int
    field: str
    state: State
    because: str = ""


@dataclass(frozen=True, slots=True)
class AnnouncedCertificate:
    """A certificate and the seq of the leaf that vouches for it."""

    certificate: Certificate
    seq: int


Chosen = Callable[[int], bool]
"""By the seq of a record: whether its values are opened."""


def none_of(seq: int) -> bool:
    return False


def every(seq: int) -> bool:
    return True


def field_states(
    reader: Reader, side: ValueStore, key: VerifierKey, tenant: str, notes: Iterable[str], *, opens: Chosen = none_of
) -> Iterator[FieldState]:
    """The state of every commitment of a tenant, in order of seq; kept values of records that `opens` are opened.

    `notes` are the tenant's certificates. Raises NoteError for one that does not hold, StoreError if data cannot be
    read, EventRejected for a leaf that is no record.
    """
    vouched = announced_certificates(reader, key, tenant, notes)
    keyless = side.keyless(tenant)
    for stored in reader.leaves(tenant):
        if not stored.payload:
            yield _gone(stored.seq, RECORD, vouched)
        if b'"commits"' not in stored.payload:
            continue
        leaf = decode_leaf(stored.payload)
        there = {
            kept.field: kept
            for kept in side.kept(tenant, start=stored.seq, end=stored.seq + 1)
            if kept.event_id == leaf.stamp.event_id and kept.key_id not in keyless
        }
        for field, commitment in sorted((leaf.event.commits or {}).items()):
            if (kept := there.get(field)) is None:
                yield _gone(stored.seq, field, vouched, leaf.stamp.event_id)
            else:
                yield _state(side, kept, commitment, opens(stored.seq))


def account(
    open_reader: Callable[[], Reader], side: ValueStore, key: VerifierKey, tenant: str, opens: Chosen = none_of
) -> tuple[Counter[str], list[FieldState]]:
    """How many commitments of a tenant are in each state, and which are at fault, while others may write and delete.

    Raises as `field_states`.
    """
    while True:
        before = deletions_of(side, tenant)
        with closing(open_reader()) as reader:
            found = list(field_states(reader, side, key, tenant, certificates_of(side, tenant), opens=opens))
        if deletions_of(side, tenant) == before:
            return Counter(one.state for one in found), [one for one in found if one.state in FAULTS]


def announced_certificates(
    reader: Reader, key: VerifierKey, tenant: str, notes: Iterable[str]
) -> list[AnnouncedCertificate]:
    """The certificates whose digest is in a leaf of the tree. Raises NoteError for one that does not hold."""
    announced: dict[str, int] = {}
    for stored in reader.leaves(tenant):
        if b'"certificate_sha256"' not in stored.payload:
            continue
        event = decode_leaf(stored.payload).event
        if isinstance(event, ErasureCompleted | RetentionRun) and event.certificate_sha256 is not None:
            announced.setdefault(event.certificate_sha256, stored.seq)
    vouched = []
    for note in notes:
        certificate = open_certificate(note, origin_of(key.name, tenant), key.public_keys)
        if certificate.tenant != tenant:
            raise NoteError(f"the certificate {certificate.id} is of tenant {certificate.tenant}")
        if (seq := announced.get(certificate.sha256())) is None:
            raise NoteError(f"no record announces the certificate {certificate.id}")
        vouched.append(AnnouncedCertificate(certificate, seq))
    return vouched


def _gone(seq: int, field: str, vouched: list[AnnouncedCertificate], event_id: str | None = None) -> FieldState:
    for one in vouched:
        if seq < one.seq and one.certificate.covers(seq, field, event_id):
            return FieldState(seq, field, "erased", one.certificate.id)
    return FieldState(seq, field, "missing", "it or its key is not kept and no certificate says that it was deleted")


def _state(side: ValueStore, kept: StoredValue, commitment: str, opened: bool) -> FieldState:
    if kept.commitment != commitment:
        return FieldState(kept.seq, kept.field, "wrong", "the value store keeps it for another commitment")
    if not opened:
        return FieldState(kept.seq, kept.field, "withheld")
    try:
        side.disclose(kept)
    except (CommitmentError, KeyLost, ValueError) as error:
        return FieldState(kept.seq, kept.field, "wrong", str(error))
    return FieldState(kept.seq, kept.field, "disclosed")
