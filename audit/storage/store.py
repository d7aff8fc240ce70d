"""Where trees are kept: what any store must do, and the plain values that cross its border.

A store is written by the sequencer's thread only; it is read by anyone, from a snapshot. There are two: a SQLite file
(`audit.storage.sqlite`) and a PostgreSQL database (`audit.storage.postgres`).
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from audit.errors import StoreError
from audit.events.base import Step
from audit.events.private_value import Sealed
from audit.storage.attested_files import AttestedFile
from audit.storage.installation_identity import Identity
from audit.tree.merkle import Frontier
from audit.tree.note import VerifierKey


class LogEntry(NamedTuple):
    """One leaf to be appended. `leaf_hash` is the RFC 6962 hash of `payload`, `private` what it commits to."""

    tenant: str
    leaf_hash: bytes
    payload: bytes
    step: Step = Step.NONE
    request_id: str | None = None
    private: tuple[Sealed, ...] = ()


Placed = tuple[int, LogEntry]
"""A seq and the entry that has it."""
Keep = Callable[[Sequence[Placed]], None]


MAX_SIZE = 2**63 - 1
"""No tree is larger."""


class SignedCheckpoint(NamedTuple):
    tenant: str
    size: int
    note: str


class StoredLeaf(NamedTuple):
    """`payload` is empty once the record has expired: its hash stays."""

    seq: int
    leaf_hash: bytes
    payload: bytes


class OpenIntent(NamedTuple):
    """An intent without an outcome, and the node and boot that must see to it."""

    tenant: str
    request_id: str
    seq: int
    node: str
    boot: str


@dataclass(frozen=True, slots=True)
class Refused:
    """Why an entry was left out of the transaction that took the others; `for_now`: it may be taken later."""

    because: str
    for_now: bool = False


@dataclass(frozen=True, slots=True)
class Appended:
    """`placed` holds, entry by entry, its seq or why it was refused; `heads` the trees that grew."""

    placed: list[int | Refused]
    heads: dict[str, Frontier]


class Written:
    """The sizes of the trees that one store has seen committed. A tree that holds less was put back to an older state,
    and its next numbers were those of records that are lost."""

    def __init__(self) -> None:
        self._sizes: dict[str, int] = {}

    def check(self, tenant: str, size: int) -> None:
        """Raises StoreError if the tree of `tenant` is shorter than it was."""
        if size < (known := self._sizes.get(tenant, 0)):
            raise StoreError(
                f"the tree of {tenant} holds {size} records and held {known}: the record was put back to an older"
                " state while this process uses it; stop the process before a database is restored"
            )

    def add(self, appended: Appended) -> None:
        self._sizes |= {tenant: head.size for tenant, head in appended.heads.items()}


def keeps_no_values() -> Refused:
    return Refused("no value store is open that could keep its private values")


def already_open(request: str | None) -> Refused:
    return Refused(f"the intent of request {request} is already open")


def not_open(request: str | None) -> Refused:
    return Refused(f"request {request} has no open intent: never accepted, or already closed")


class Store(Protocol):
    """The writing side. Every method may raise StoreError, StoreFull for want of space."""

    def append(self, entries: Sequence[LogEntry], checkpoints: Sequence[SignedCheckpoint] = ()) -> Appended:
        """Number, keep and commit: durable on return, all or nothing but for the refused.

        The number is taken under a lock on the tree's head, so that several processes leave no gap and no duplicate.
        An intent already open is refused, and so is a later step without one. An entry with private
        values is refused where they cannot be kept.
        """

    def newest(self) -> list[bytes]:
        """The last record of every tree, without those whose content has expired."""

    def intents(self, node: str) -> list[OpenIntent]: ...

    def unsigned(self) -> dict[str, Frontier]:
        """The trees that have grown past their last checkpoint."""

    def consolidate(self) -> bool:
        """Write again all that an earlier failed fsync may have left unwritten. False if others were in the way."""

    def close(self) -> None: ...


class LeafStore(Store, Protocol):
    """A store that others can keep private values beside."""

    def claim(self, key: VerifierKey) -> Identity:
        """Check that the database is of the log of `key`, and write that into it if it does not say so yet.

        Raises ForeignDatabaseError, with nothing written.
        """

    def successions(self) -> list[str]:
        """The notes of every replacement of the log's key, as far as they were added."""

    def add_successions(self, notes: Sequence[str]) -> None: ...

    def publish_succession(self, note: str, check: Callable[[Sequence[str]], None]) -> None:
        """Add `note` unless `check` raises, which is called with the notes that are there: in one transaction."""

    def attested_files(self) -> list[AttestedFile]:
        """Notes and tokens of other parties that hosts exchange; none where the record is one host's file."""

    def add_attested_files(self, files: Sequence[AttestedFile]) -> None:
        """In place of those of the same name."""

    def append(
        self, entries: Sequence[LogEntry], checkpoints: Sequence[SignedCheckpoint] = (), keep: Keep | None = None
    ) -> Appended:
        """As above; `keep` is called with the entries that have private values, numbered but not yet committed, and
        stops the commit by raising."""


class Pruner(Protocol):
    """Deletes the content of expired records while others append. Every method may raise StoreError."""

    def prune(self, tenant: str, first: int, last: int) -> None:
        """Records `first` to `last` keep their hash alone; durable on return. Again, it does nothing."""

    def close(self) -> None:
        """And see to it that what was deleted is not left in a write-ahead log, as far as others let us."""


class Reader(Protocol):
    """The reading side: one consistent snapshot. Raises StoreError if the data cannot be read."""

    def identity(self) -> Identity | None:
        """Which installation the database says it is of; None if it was never claimed."""

    def successions(self) -> list[str]: ...

    def attested_files(self) -> list[AttestedFile]: ...

    def sizes(self) -> dict[str, int]: ...

    def tenants(self) -> list[str]: ...

    def head(self, tenant: str) -> tuple[int, bytes]:
        """Size and frontier as the store has them, unchecked."""

    def leaves(self, tenant: str, start: int = 0, end: int | None = None) -> Iterator[StoredLeaf]:
        """Those of a number of `start` or more, and less than `end`, in order of seq. With an `end`, no more is read
        from the database."""

    def leaf_hashes(self, tenant: str, start: int, end: int) -> Iterator[bytes]: ...

    def checkpoints(self, tenant: str) -> Iterator[SignedCheckpoint]:
        """In order of size."""

    def newest_checkpoints(self, tenant: str, most: int, up_to: int | None = None) -> list[SignedCheckpoint]:
        """At most `most`, of sizes up to `up_to`, the greatest first; they are found without reading the others."""

    def last_checkpoint(self, tenant: str) -> SignedCheckpoint | None:
        """The one of the greatest size, unchecked; it is found without reading the others."""

    def expired(self, tenant: str, end: int) -> Iterator[int]:
        """The records before `end` whose content has expired, in order. It looks at every record's size."""

    def open_intents(self, tenant: str) -> list[OpenIntent]: ...

    def pruner(self) -> Pruner:
        """A hand of its own on the same data."""

    def close(self) -> None: ...
