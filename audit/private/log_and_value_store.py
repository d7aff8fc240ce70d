"""A log with a value store: the values are durable before the leaf that commits to them, under one lock."""

from collections.abc import Callable, Sequence
from pathlib import Path

from audit.errors import KeyLost, KeysOutOfReach, StoreError
from audit.keys.external_keys import brief_waits
from audit.keys.owner_keys import KeyProvider
from audit.private.value_location import open_claimed_values, require_place, values_url
from audit.private.value_store import ValueStore
from audit.storage.installation_identity import key_beside
from audit.storage.location import UrlSource, database_url, open_store
from audit.storage.store import Appended, LeafStore, LogEntry, OpenIntent, Placed, Refused, SignedCheckpoint
from audit.tree.merkle import Frontier


def open_log_and_values(
    side: Path, keys: KeyProvider, source: UrlSource = database_url, values: UrlSource = values_url
) -> Callable[[Path, str, str], "LogAndValueStore"]:
    """What `AuditLog.open` takes as `open_store` where events bring private values; the sources give the URLs of the
    record and of the value store."""

    def opened(path: Path, node: str, boot: str) -> LogAndValueStore:
        require_place(side, values)
        store = open_store(path, node, boot, source)
        try:
            return LogAndValueStore(store, open_claimed_values(side, keys, key_beside(path), values))
        except StoreError:
            store.close()
            raise

    return opened


class LogAndValueStore:
    """Writes values between the numbering of their leaf and its commit.

    A crash in between leaves values without a leaf. No receipt was given for them, and
    `audit.privacy.retention` deletes them. The other order would leave a leaf whose values are lost.
    """

    def __init__(self, store: LeafStore, side: ValueStore) -> None:
        self._store = store
        self._side = side

    def append(self, entries: Sequence[LogEntry], checkpoints: Sequence[SignedCheckpoint] = ()) -> Appended:
        if not any([entry.private for entry in entries]):
            return self._store.append(entries, checkpoints)
        with brief_waits():
            try:
                return self._append(entries, checkpoints)
            except (KeysOutOfReach, KeyLost):  # of a tenant whose key was taken away between the look and the write
                return self._append(entries, checkpoints)

    def _append(self, entries: Sequence[LogEntry], checkpoints: Sequence[SignedCheckpoint]) -> Appended:
        closed = self._side.closed({entry.tenant for entry in entries if entry.private})
        if not closed:
            return self._store.append(entries, checkpoints, self._keep)
        kept = [entry for entry in entries if not entry.private or entry.tenant not in closed]
        appended = self._store.append(kept, checkpoints, self._keep)
        places = iter(appended.placed)
        placed: list[int | Refused] = [
            closed[entry.tenant] if entry.private and entry.tenant in closed else next(places) for entry in entries
        ]
        return Appended(placed, appended.heads)

    def _keep(self, placed: Sequence[Placed]) -> None:
        values = [(entry.tenant, seq, sealed) for seq, entry in placed for sealed in entry.private]
        self._side.put(values)

    def newest(self) -> list[bytes]:
        return self._store.newest()

    def intents(self, node: str) -> list[OpenIntent]:
        return self._store.intents(node)

    def unsigned(self) -> dict[str, Frontier]:
        return self._store.unsigned()

    def consolidate(self) -> bool:
        return self._store.consolidate()

    def close(self) -> None:
        try:
            self._side.close()
        finally:
            self._store.close()
