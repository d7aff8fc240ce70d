"""A log in a folder of its own, events to put into it, and stores that fail on command."""

import asyncio
import json
import sqlite3
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, closing
from hashlib import sha256
from itertools import count
from pathlib import Path
from typing import Any

import psycopg
import pytest

from audit.errors import StoreError
from audit.events.event import Decision, InferenceAccepted, InferenceCompleted, Reason, Redaction
from audit.incidents.pack_inputs import Evidence, Part, Policy, Ruling
from audit.keys.owner_keys import FileKeyProvider, KeyProvider
from audit.keys.signer import FileSigner
from audit.log.audit_log import AuditLog, AuditSettings, OpenStore
from audit.log.checkpointer import Cadence
from audit.log.sequencer import QueueLimits
from audit.private.audit_context import AuditContext
from audit.private.log_and_value_store import LogAndValueStore
from audit.private.postgres_values import KeyTable
from audit.private.value_location import open_values_at
from audit.private.value_store import ValueStore
from audit.storage.postgres import PostgresReader, open_postgres
from audit.storage.sqlite import SqliteReader, SqliteStore
from audit.storage.store import Appended, LogEntry, OpenIntent, Reader, SignedCheckpoint, Store
from audit.tree.merkle import Frontier
from audit.verification.verify import Report, verify_log
from tests.fakes.postgresql import postgresql

VECTORS = Path(__file__).parent.parent / "vectors"

_numbers = count(1)

POLICY = '{"policy":"acme-default","version":3}'
POLICY_HASH = sha256(POLICY.encode()).hexdigest()
VERSION = Policy(
    number=1,
    text="policy: acme-default\nversion: 3\n",
    sha256=sha256(b"policy: acme-default\nversion: 3\n").hexdigest(),
    activated_by="cli",
    activated_at="2026-01-01T00:00:00.000Z",
    active=True,
)
RULING = Ruling(
    policy_hash=POLICY_HASH,
    policy_id="acme-default",
    policy_version="3",
    canonical=POLICY,
    made_of=(Part(scope="", number=1, sha256=VERSION.sha256),),
)
KNOWN = Evidence(policies=(VERSION,), rulings=(RULING,))
"""The register of a gateway whose calls are those of `accepted`."""


def accepted(request_id: str | None = None, tenant: str = "acme", **changed: object) -> InferenceAccepted:
    fields: dict[str, object] = {
        "tenant": tenant,
        "request_id": f"req-{next(_numbers)}" if request_id is None else request_id,
        "key_id": "k1",
        "project": "support",
        "endpoint": "/v1/chat/completions",
        "stream": False,
        "model_requested": "smol",
        "policy_id": "acme-default",
        "policy_version": "3",
        "policy_hash": POLICY_HASH,
        "decision": Decision(
            outcome="allow",
            reasons=(Reason(rule="residency.process_in", because="FR is in the EEA", article="GDPR 44"),),
        ),
        "redaction": Redaction(engine_version="1", counts_by_type={"iban": 1, "email": 2}),
        "backend_id": "acme-1",
        "region": "eu-fr-par",
        "inference_country": "FR",
        "storage_country": "FR",
        "operator_entity": "Example SAS",
        "operator_hq": "FR",
        "ultimate_parent": "Example SAS",
        "ultimate_parent_country": "FR",
        "transfer_basis": "intra_eea",
    }
    return InferenceAccepted.model_validate(fields | changed)


def completed(request_id: str, tenant: str = "acme") -> InferenceCompleted:
    return InferenceCompleted(
        tenant=tenant, request_id=request_id, status=200, tokens_in=9, tokens_out=12, finish_reason="stop"
    )


FAST = AuditSettings(
    limits=QueueLimits(heal_every_s=0.02, reserve_bytes=1 << 16), cadence=Cadence(every_s=0.02), probe_ttl_s=0.05
)


class Home:
    """The folder of one log, its key, and short ways to write and read it; the log itself may be in PostgreSQL."""

    def __init__(self, folder: Path, url: str | None = None) -> None:
        self.url = url
        self._table: KeyTable | None = None
        self.path = folder / "audit" / "log.db"
        self.signer = FileSigner.open(folder / "audit" / "signer.key")
        self.key = self.signer.verifier_key

    async def open(self, node: str = "gw-1", settings: AuditSettings = FAST, **more: object) -> AuditLog:
        given = {"signer": self.signer, "node": node, "settings": settings, "open_store": self.open_store, **more}
        return await AuditLog.open(self.path, **given)

    @property
    def open_store(self) -> OpenStore:
        return SqliteStore.open if self.url is None else open_postgres(self.url)

    def reader(self) -> Reader:
        return SqliteReader.open(self.path) if self.url is None else PostgresReader.open(self.url)

    def execute(self, statement: str) -> None:
        """Behind the log's back."""
        if self.url is None:
            with closing(sqlite3.connect(self.path)) as db, db:
                db.execute(statement)
        else:
            with psycopg.connect(self.url, options="-c search_path=domicile_audit,domicile_values") as db:
                db.execute(statement)

    @property
    def keys(self) -> FileKeyProvider:
        folder = self.path.parent / "keys"
        return FileKeyProvider.open(folder, None if self.url is None else self._key_table(self.url))

    def _key_table(self, url: str) -> KeyTable:
        """One for the home: each has connections of its own."""
        if self._table is None:
            self._table = KeyTable(url)
        return self._table

    def side(self, keys: KeyProvider | None = None) -> ValueStore:
        """In the log's database, where that is PostgreSQL."""
        return open_values_at(self.url, self.path.with_name("side.db"), keys or self.keys, create=True)

    def change_values(self, statement: str, rows: Sequence[Sequence[object]] = ((),)) -> None:
        """In the value store, behind its back."""
        with closing(self.side()) as side, side.transaction() as db:
            for row in rows:
                db.execute(statement, row)

    def open_log_and_values(self, path: Path, node: str, boot: str) -> LogAndValueStore:
        """A store of the log with the value store beside it."""
        return LogAndValueStore(self.open_store(path, node, boot), self.side())  # type: ignore[arg-type]

    @asynccontextmanager
    async def context(self, **more: object) -> AsyncIterator[AuditContext]:
        """The log, open with its value store."""
        async with await self.open(open_store=self.open_log_and_values, **more) as log:
            tiles = self.path.with_name("tiles")
            yield AuditContext(log, self.side, self.reader, self.keys, self.signer, tiles=tiles)

    def events(self, tenant: str) -> list[dict[str, Any]]:
        """What is on record, as plain JSON objects."""
        reader = self.reader()
        try:
            return [json.loads(leaf.payload) for leaf in reader.leaves(tenant)]
        finally:
            reader.close()

    def types(self, tenant: str) -> list[str]:
        return [event["type"] for event in self.events(tenant)]

    def verify(self) -> Report:
        reader = self.reader()
        try:
            return verify_log(reader, self.key)
        finally:
            reader.close()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A module that says ``ON_BOTH_STORES = True`` runs on PostgreSQL too, but for tests that look at files."""
    if "home" in metafunc.fixturenames and getattr(metafunc.module, "ON_BOTH_STORES", False):
        files = "tmp_path" in metafunc.definition._fixtureinfo.argnames
        metafunc.parametrize("home", ["sqlite"] if files else ["sqlite", "postgresql"], indirect=True)


@pytest.fixture(scope="session")
def postgresql_url() -> Iterator[str]:
    with postgresql() as url:
        yield url


@pytest.fixture
def empty_database(postgresql_url: str) -> str:
    """Its URL; there is no log in it."""
    with psycopg.connect(postgresql_url, autocommit=True) as db:
        db.execute("DROP SCHEMA IF EXISTS domicile_audit, domicile_values CASCADE")
    return postgresql_url


@pytest.fixture
def home(tmp_path: Path, request: pytest.FixtureRequest) -> Home:
    on_server = getattr(request, "param", "sqlite") == "postgresql"
    return Home(tmp_path, request.getfixturevalue("empty_database") if on_server else None)


class Faults:
    """What the stores opened through it do wrong; may be changed while they are used."""

    def __init__(self, open_store: OpenStore) -> None:
        self._open_store = open_store
        self.check: Callable[[], StoreError | None] = lambda: None  # asked before each commit
        self.after = False  # fail although the commit took effect, as when the result of an fsync is unknown
        self.gate = threading.Event()  # commits wait while it is clear
        self.gate.set()
        self.opened = 0
        self.batches: list[int] = []

    def fail(self, error: StoreError) -> None:
        self.check = lambda: error

    def mend(self) -> None:
        self.check = lambda: None

    def open(self, path: Path, node: str, boot: str) -> "FaultyStore":
        self.opened += 1
        return FaultyStore(self._open_store(path, node, boot), self)


class FaultyStore:
    """A real store whose commits fail as its faults say."""

    def __init__(self, store: Store, faults: Faults) -> None:
        self._store = store
        self._faults = faults

    def append(self, entries: Sequence[LogEntry], checkpoints: Sequence[SignedCheckpoint] = ()) -> Appended:
        assert self._faults.gate.wait(10)
        error = self._faults.check()
        if error is not None and not self._faults.after:
            raise error
        appended = self._store.append(entries, checkpoints)
        if error is not None:
            raise error
        if entries:
            self._faults.batches.append(len(entries))
        return appended

    def newest(self) -> list[bytes]:
        return self._store.newest()

    def intents(self, node: str) -> list[OpenIntent]:
        return self._store.intents(node)

    def unsigned(self) -> dict[str, Frontier]:
        return self._store.unsigned()

    def consolidate(self) -> bool:
        error = self._faults.check()
        if error is not None:
            raise error
        return self._store.consolidate()

    def close(self) -> None:
        self._store.close()


@pytest.fixture
def faults(home: Home) -> Faults:
    return Faults(home.open_store)


async def eventually(holds: Callable[[], bool]) -> None:
    """Wait until `holds()`; the test fails if it does not within five seconds."""
    async with asyncio.timeout(5):
        while not holds():
            await asyncio.sleep(0.005)
