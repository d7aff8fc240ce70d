"""The log, its private values and its keys as one object, for work that needs all of them."""

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from audit.errors import EventRejected
from audit.events.base import Event
from audit.events.leaf import Leaf, decode_leaf
from audit.events.private_value import Private
from audit.events.stamp import Clock, uuid7
from audit.keys.owner_keys import KeyProvider
from audit.keys.signer import Signer
from audit.log.audit_log import AuditLog
from audit.log.receipt import Receipt
from audit.log.walk import parsed
from audit.private.certificate import spans
from audit.private.value_store import ValueStore
from audit.storage.store import Reader
from audit.tree.tlog_checkpoint import origin_of

T = TypeVar("T")


NEAR = 64
"""Records that are read too when they are between two that are wanted: less than another question costs."""


def near(seqs: Iterable[int]) -> Iterator[tuple[int, int]]:
    """Spans, first and last, that hold all of `seqs`, in order. Where two follow one another with at most NEAR records
    between, they are in one."""
    first: int | None = None
    last = 0
    for seq in sorted(seqs):
        if first is not None and seq - last > NEAR + 1:
            yield first, last
            first = None
        if first is None:
            first = seq
        last = seq
    if first is not None:
        yield first, last


@dataclass(frozen=True, slots=True)
class AuditContext:
    """`backup_days` is how long the oldest backup of the value store lives; certificates state it. `tiles` is where
    trees are published beside the log, so that what is deleted is deleted there too. `exchange` brings notes and tokens
    of other parties beside the log to the hosts that share the record; it blocks, and may raise StoreError.

    Files are opened for each piece of work, in a thread of its own, so that no snapshot outlives it.
    """

    log: AuditLog
    open_values: Callable[[], ValueStore]
    open_reader: Callable[[], Reader]
    keys: KeyProvider
    signer: Signer
    backup_days: int = 30
    clock: Clock = time.time
    tiles: Path | None = None
    exchange: Callable[[], None] = lambda: None

    async def record(self, event: Event, private: Private | None = None) -> Receipt:
        return await self.log.append(event, private)

    async def with_values(self, work: Callable[[ValueStore], T]) -> T:
        """Run `work` in a worker thread with its own connection to the value store, and return its result."""

        def run() -> T:
            with closing(self.open_values()) as side:
                return work(side)

        return await asyncio.to_thread(run)

    async def in_thread(self, work: Callable[[], T]) -> T:
        """What `work` returns, off the event loop."""
        return await asyncio.to_thread(work)

    @contextmanager
    def reading(self) -> Iterator[Reader]:
        with closing(self.open_reader()) as reader:
            yield reader

    def leaves(self, tenant: str, seqs: Sequence[int]) -> Iterator[tuple[int, Leaf]]:
        """The leaves of these records, by ascending number. Raises EventRejected for one that is not a record."""
        wanted = set(seqs)
        with self.reading() as reader:
            for first, last in near(wanted):
                for stored in reader.leaves(tenant, first, last + 1):
                    if stored.seq in wanted:
                        yield stored.seq, decode_leaf(stored.payload)

    def event_ids(self, tenant: str, seqs: Sequence[int]) -> dict[int, str]:
        """By number, the id of the event that has it, for those of `seqs` (ascending) that are on record.

        A value belongs to a record only if both are the same (`audit.private.log_and_value_store`): a value of a record
        that was never written may have the number of another. Of a record whose content expired the id is empty: it
        has no values. Raises EventRejected for a leaf that is not a record.
        """
        found: dict[int, str] = {}
        with self.reading() as reader:
            for first, last in spans(seqs):
                for stored in reader.leaves(tenant, first, last + 1):
                    found[stored.seq] = _event_id(stored.payload)
        return found

    def now(self) -> int:
        """Milliseconds since the epoch."""
        return int(self.clock() * 1000)

    def new_id(self) -> str:
        return uuid7(self.now())

    def origin(self, tenant: str) -> str:
        return origin_of(self.signer.name, tenant)


def _event_id(payload: bytes) -> str:
    if not payload:
        return ""
    found = parsed(payload).get("event_id")
    if not isinstance(found, str):
        raise EventRejected("a leaf is not a record; run `domicile audit verify`")
    return found
