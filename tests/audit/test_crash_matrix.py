"""Every way to break a log, in random order and at random steps, on both stores; a checker looks at what is left.

Drawn: appends of calls by two writers, kill of a writer (its store is dropped between any two steps, also between the
numbering and the commit), a torn write, a full disk, an fsync of unknown result, a clock that steps back, a second
sequencer with the same node name, a checkpoint replayed. Checked: no acknowledged record lost, no gap, no fork, each
call has one intent and one outcome, every checkpoint holds. `make campaign` runs many times as many.
"""

import asyncio
import random
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from audit.errors import AuditError, AuditUnavailable, StoreError, StoreFull
from audit.events.event import InferenceAborted
from audit.log.audit_log import AuditLog
from audit.log.receipt import Receipt
from audit.storage.store import Appended, LogEntry, SignedCheckpoint, Store
from tests.audit.conftest import Home, accepted, completed

FAULTS = ("full", "unknown", "before", "torn")
DEEDS = ("call", "call", "call", "open", "close", "crash", "clock", "twin", "replay", *FAULTS)


class Breakable:
    """A real store; `next_fault` strikes at its next commit."""

    def __init__(self, store: Store, broken: "Broken") -> None:
        self._store, self._broken = store, broken

    def append(self, entries: Sequence[LogEntry], checkpoints: Sequence[SignedCheckpoint] = ()) -> Appended:
        fault, self._broken.next_fault = self._broken.next_fault, None
        if self._broken.dead or fault == "before":
            raise StoreError("disk I/O error")
        if fault == "full":
            raise StoreFull("disk full")
        if fault == "torn":  # the commit is cut in its middle: an entry that cannot be stored stops the transaction
            wrong = LogEntry("acme", b"", b"", private=())._replace(tenant=None)  # type: ignore[arg-type]
            self._store.append([*entries, wrong], checkpoints)
        self._broken.kept += checkpoints
        appended = self._store.append(entries, [*checkpoints, *self._broken.replayed()])
        if fault == "unknown":
            raise StoreError("fsync failed")
        return appended

    def __getattr__(self, name: str) -> object:
        return getattr(self._store, name)


class Broken:
    """One writer's luck."""

    def __init__(self) -> None:
        self.next_fault: str | None = None
        self.dead = False
        self.replay = False
        self.kept: list[SignedCheckpoint] = []
        self.offset = 0.0

    def replayed(self) -> list[SignedCheckpoint]:
        """An old checkpoint filed again, as a confused second signer would."""
        again = self.kept[:1] if self.replay else []
        self.replay = False
        return again


class Writer:
    def __init__(self, home: Home, node: str) -> None:
        self.home, self.node, self.broken = home, node, Broken()
        self.log: AuditLog | None = None
        self.running: list[str] = []

    async def open(self) -> None:
        if self.log is not None:
            return
        self.broken = broken = Broken()
        opener = self.home.open_store
        moment = 1_798_000_000.0
        self.running = []
        try:
            self.log = await self.home.open(
                self.node,
                open_store=lambda path, node, boot: Breakable(opener(path, node, boot), broken),
                clock=lambda: moment + broken.offset,
            )
        except AuditUnavailable:
            self.log = None

    async def crash(self) -> None:
        """As near to kill -9 as a live process comes: nothing more reaches the store, no outcome, no checkpoint."""
        if self.log is not None:
            self.broken.dead = True
            await self.log.close()
            self.log = None

    async def close(self) -> None:
        if self.log is not None:
            await self.log.close()
            self.log = None


async def play(home: Home, deeds: list[tuple[str, int]], seed: int) -> None:
    chance, names = random.Random(seed), iter(range(1_000_000))
    writers = [Writer(home, "gw-1"), Writer(home, "gw-2")]
    told: list[Receipt] = []
    delivered: list[tuple[Receipt, str]] = []  # answers that reached a client: intent acknowledged before

    async def append(writer: Writer, event: object) -> Receipt | None:
        try:
            receipt = await writer.log.append(event)  # type: ignore[union-attr, arg-type]
        except AuditError:
            return None
        told.append(receipt)
        return receipt

    async def call(writer: Writer) -> None:
        request = f"r{next(names)}"
        intent = await append(writer, accepted(request, chance.choice(["acme", "globex"])))
        if intent is None:
            return
        delivered.append((intent, request))
        if chance.random() < 0.2:
            writer.running.append(request)  # it still runs when something happens
            return
        if chance.random() < 0.2:
            await append(writer, InferenceAborted(tenant=intent.tenant, request_id=request, reason="client_disconnect"))
        else:
            await append(writer, completed(request, intent.tenant))

    for deed, which in deeds:
        writer = writers[which]
        await writer.open()
        if writer.log is None:
            continue
        if deed == "call":
            await asyncio.gather(*(call(writer) for _ in range(chance.randrange(1, 6))))
        elif deed in FAULTS:
            writer.broken.next_fault = deed
            await call(writer)
        elif deed == "crash":
            await writer.crash()
        elif deed == "close":
            await writer.close()
        elif deed == "clock":
            writer.broken.offset -= 3600
        elif deed == "replay":
            writer.broken.replay = True
        elif deed == "twin":
            with pytest.raises(AuditUnavailable):
                await home.open(writer.node)
    for writer in writers:
        await writer.crash()
        await writer.open()  # closes what its last boot left open
        await writer.close()
    check(home, told, delivered)


def check(home: Home, told: list[Receipt], delivered: list[tuple[Receipt, str]]) -> None:
    report = home.verify()
    errors = [one for one in report.findings if one.severity == "error"]
    assert errors == []
    assert all(tree.open_requests == () for tree in report.trees)
    reader = home.reader()
    try:
        leaves = {tenant: list(reader.leaves(tenant)) for tenant in reader.tenants()}
    finally:
        reader.close()
    for receipt in told:
        assert leaves[receipt.tenant][receipt.seq].leaf_hash == receipt.leaf_hash, "an acknowledged record was lost"
    assert len({(one.tenant, one.seq) for one in told}) == len(told), "a number was given twice"
    events = [(tenant, event) for tenant in ("acme", "globex") if tenant in leaves for event in home.events(tenant)]
    intents = Counter(event["request_id"] for _, event in events if event["type"] == "inference.accepted")
    outcomes = Counter(event["request_id"] for _, event in events if event["type"] != "inference.accepted")
    assert intents == outcomes
    assert set(outcomes.values()) <= {1}
    for intent, request in delivered:
        assert home.events(intent.tenant)[intent.seq]["request_id"] == request, "an answer without its intent record"


STEPS = st.lists(st.tuples(st.sampled_from(DEEDS), st.integers(0, 1)), min_size=3, max_size=14)


@settings(max_examples=20, suppress_health_check=[HealthCheck.too_slow])
@given(deeds=STEPS, seed=st.integers(0, 2**16))
def test_whatever_breaks_in_whatever_order_the_file_keeps_its_word(deeds: list[tuple[str, int]], seed: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(play(Home(Path(folder)), deeds, seed))


@pytest.fixture(scope="module")
def server(postgresql_url: str) -> Iterator[str]:
    yield postgresql_url


@settings(max_examples=20, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
@given(deeds=STEPS, seed=st.integers(0, 2**16))
def test_whatever_breaks_in_whatever_order_the_server_keeps_its_word(
    server: str, deeds: list[tuple[str, int]], seed: int
) -> None:
    with psycopg.connect(server, autocommit=True) as db:
        db.execute("DROP SCHEMA IF EXISTS domicile_audit CASCADE")
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(play(Home(Path(folder), server), deeds, seed))
