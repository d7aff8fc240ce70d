"""A log in a folder of its own, events to put into it, and stores that fail on command."""

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from audit.checkpointer import Cadence
from audit.custody import Custody
from audit.errors import StoreError
from audit.event import Decision, InferenceAccepted, InferenceCompleted, Reason, Redaction
from audit.keys import FileKeyProvider
from audit.log import AuditLog, AuditSettings
from audit.merkle import Frontier
from audit.sequencer import Limits
from audit.side import SideStore
from audit.sided import open_sided
from audit.signer import FileSigner
from audit.sqlite import SqliteReader, SqliteStore
from audit.store import Appended, Entry, OpenIntent, SignedCheckpoint
from audit.verify import Report, verify_log

VECTORS = Path(__file__).parent.parent / "vectors"

_numbers = count(1)


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
        "policy_hash": "a" * 64,
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
    limits=Limits(heal_every_s=0.02, reserve_bytes=1 << 16), cadence=Cadence(every_s=0.02), probe_ttl_s=0.05
)


class Home:
    """The folder of one log, its key, and short ways to write and read it."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "audit" / "log.db"
        self.signer = FileSigner.open(folder / "audit" / "signer.key")
        self.key = self.signer.verifier_key

    async def open(self, node: str = "gw-1", settings: AuditSettings = FAST, **more: object) -> AuditLog:
        return await AuditLog.open(self.path, **{"signer": self.signer, "node": node, "settings": settings, **more})

    def reader(self) -> SqliteReader:
        return SqliteReader.open(self.path)

    @property
    def keys(self) -> FileKeyProvider:
        return FileKeyProvider.open(self.path.parent / "keys")

    def side(self) -> SideStore:
        return SideStore.open(self.path.with_name("side.db"), self.keys)

    @asynccontextmanager
    async def custody(self, **more: object) -> AsyncIterator[Custody]:
        """The log, open with its side store."""
        opened = open_sided(self.path.with_name("side.db"), self.keys)
        async with await self.open(open_store=opened, **more) as log:
            yield Custody(log, self.side, self.reader, self.keys, self.signer)

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


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path)


class Faults:
    """What the stores opened through it do wrong; may be changed while they are used."""

    def __init__(self) -> None:
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
        return FaultyStore(SqliteStore.open(path, node, boot), self)


class FaultyStore:
    """A real store whose commits fail as its faults say."""

    def __init__(self, store: SqliteStore, faults: Faults) -> None:
        self._store = store
        self._faults = faults

    def append(self, entries: Sequence[Entry], checkpoints: Sequence[SignedCheckpoint] = ()) -> Appended:
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
def faults() -> Faults:
    return Faults()


async def eventually(holds: Callable[[], bool]) -> None:
    """Wait until `holds()`; the test fails if it does not within five seconds."""
    async with asyncio.timeout(5):
        while not holds():
            await asyncio.sleep(0.005)
