"""A log in a folder of its own, events to put into it, and stores that fail on command."""

from collections.abc import Sequence
from itertools import count
from pathlib import Path

import pytest

from audit.checkpointer import Cadence
from audit.errors import StoreError
from audit.event import Decision, InferenceAccepted, InferenceCompleted, Reason, Redaction
from audit.log import AuditLog, AuditSettings
from audit.merkle import Frontier
from audit.sequencer import Limits
from audit.signer import FileSigner
from audit.sqlite import SqliteReader, SqliteStore
from audit.store import Appended, Entry, OpenIntent, SignedCheckpoint

VECTORS = Path(__file__).parent.parent / "vectors"

_numbers = count(1)


def accepted(request_id: str | None = None, tenant: str = "acme", **changed: object) -> InferenceAccepted:
    fields: dict[str, object] = {
        "tenant": tenant,
        "request_id": request_id or f"req-{next(_numbers)}",
        "key_id": "k1",
        "project": "support",
        "endpoint": "/v1/chat/completions",
        "stream": False,
        "model_requested": "smol",
        "policy_id": "acme-default",
        "policy_version": 3,
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

    def payloads(self, tenant: str) -> list[bytes]:
        reader = self.reader()
        try:
            return [leaf.payload for leaf in reader.leaves(tenant)]
        finally:
            reader.close()


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path)


class FaultyStore:
    """A real store in which commits fail while `faults.error` is set, before or after they took effect."""

    def __init__(self, store: SqliteStore, faults: "Faults") -> None:
        self._store = store
        self._faults = faults

    def append(self, entries: Sequence[Entry], checkpoints: Sequence[SignedCheckpoint] = ()) -> Appended:
        error = self._faults.error
        if error is not None and not self._faults.after:
            raise error
        self._faults.gate()
        appended = self._store.append(entries, checkpoints)
        if error is not None:
            raise error
        return appended

    def intents(self, node: str) -> list[OpenIntent]:
        return self._store.intents(node)

    def unsigned(self) -> dict[str, Frontier]:
        return self._store.unsigned()

    def consolidate(self) -> bool:
        if self._faults.error is not None:
            raise self._faults.error
        return self._store.consolidate()

    def close(self) -> None:
        self._store.close()


class Faults:
    """What a faulty store does; may be changed while it is used."""

    def __init__(self) -> None:
        self.error: StoreError | None = None
        self.after = False  # fail although the commit took effect: the fsync's result is unknown
        self.opened = 0
        self.gate = lambda: None  # called before each commit

    def open(self, path: Path, node: str, boot: str) -> FaultyStore:
        self.opened += 1
        return FaultyStore(SqliteStore.open(path, node, boot), self)


@pytest.fixture
def faults() -> Faults:
    return Faults()
