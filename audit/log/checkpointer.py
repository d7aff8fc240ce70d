"""The checkpointer: a thread that signs the new root of each tree that grew. Appends do not wait for it.

A tree is signed at most a second after it grew, or after 256 records. While the signer is out of reach, records stay
durable and unsigned; past a grace period the log refuses new intents, since an unsigned record proves little.
"""

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from audit.keys.signer import Signer
from audit.storage.store import SignedCheckpoint
from audit.tree.merkle import Frontier
from audit.tree.tlog_checkpoint import Checkpoint, origin_of, sign_checkpoint

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Cadence:
    """When trees are signed; times in seconds."""

    every_s: float = 1.0
    records: int = 256
    signer_grace_s: float = 300.0


@dataclass(slots=True)
class _Grown:
    head: Frontier
    since: float  # monotonic time at which the first of its unsigned records became durable


class Checkpointer:
    """`store` takes each signed checkpoint. `delayed` is called with the seconds that records have gone unsigned once
    these exceed the grace period, and with True when they are signed. Both are called in this thread."""

    def __init__(
        self,
        signer: Signer,
        cadence: Cadence,
        store: Callable[[SignedCheckpoint], None],
        delayed: Callable[[int, bool], None] = lambda seconds, resumed: None,
    ) -> None:
        self._signer = signer
        self._cadence = cadence
        self._store = store
        self._delayed = delayed
        self._outage_since: float | None = None  # of an outage that `delayed` was called for
        self._wake = threading.Condition()
        self._grown: dict[str, _Grown] = {}  # oldest first
        self._signed: dict[str, int] = {}  # size at the last checkpoint of ours
        self._oldest: float | None = None
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="audit-checkpointer", daemon=True)

    @property
    def trouble(self) -> str | None:
        """Why records can no longer go unsigned, None within the grace period. Any thread may ask."""
        oldest = self._oldest
        if oldest is None or (waiting := time.monotonic() - oldest) < self._cadence.signer_grace_s:
            return None
        return f"records have gone unsigned for {int(waiting)} s: the signer cannot be reached"

    def start(self) -> None:
        self._thread.start()

    def grown(self, heads: dict[str, Frontier]) -> None:
        """Take note of durable heads; they must not change afterwards."""
        now = time.monotonic()
        with self._wake:
            wake = not self._grown
            for tenant, head in heads.items():
                if (known := self._grown.get(tenant)) is not None:
                    known.head = head
                else:
                    self._grown[tenant] = _Grown(head, now)
                wake = wake or self._is_full(tenant, head)
            self._note_oldest()
            if wake:
                self._wake.notify()

    def stop(self) -> None:
        """Sign what has grown and end the thread. Blocks."""
        with self._wake:
            self._stopping = True
            self._wake.notify()
        self._thread.join()

    def _run(self) -> None:
        stopping = False
        while not stopping:
            with self._wake:
                self._wake.wait_for(lambda: self._grown or self._stopping)
                if self._oldest is not None and not self._stopping:
                    self._wake.wait_for(self._any_due, timeout=self._oldest + self._cadence.every_s - time.monotonic())
                stopping = self._stopping
                due = [
                    (tenant, grown.head) for tenant, grown in self._grown.items() if stopping or self._is_due(tenant)
                ]
            oldest = self._oldest
            signed = self._sign(due)
            self._report_outage(oldest, signed)
            if not signed and not stopping:
                with self._wake:
                    self._wake.wait_for(lambda: self._stopping, timeout=self._cadence.every_s)

    def _any_due(self) -> bool:
        return self._stopping or any(map(self._is_due, self._grown))

    def _is_due(self, tenant: str) -> bool:
        grown = self._grown[tenant]
        return time.monotonic() - grown.since >= self._cadence.every_s or self._is_full(tenant, grown.head)

    def _is_full(self, tenant: str, head: Frontier) -> bool:
        return head.size - self._signed.get(tenant, 0) >= self._cadence.records

    def _sign(self, due: list[tuple[str, Frontier]]) -> bool:
        """Whether the signer signed them all. What it did not stays noted, and is tried again."""
        for tenant, head in due:
            checkpoint = Checkpoint(origin_of(self._signer.name, tenant), head.size, head.root())
            try:
                note = sign_checkpoint(checkpoint, self._signer)
            except Exception as error:  # a signer is foreign code: whatever it raises, nothing is signed
                logger.error(
                    "a checkpoint could not be signed: %s"
                    "; check the signing key and the key provider, it is tried again",
                    error,
                )
                return False
            self._store(SignedCheckpoint(tenant, head.size, note))
            with self._wake:
                self._signed[tenant] = head.size
                newer = self._grown.pop(tenant)
                if newer.head.size > head.size:
                    self._grown[tenant] = _Grown(newer.head, time.monotonic())
                self._note_oldest()
        return True

    def _report_outage(self, oldest: float | None, signed: bool) -> None:
        """`oldest` is since when records had gone unsigned before it was tried to sign them."""
        since = self._outage_since or oldest
        waited = 0.0 if since is None else time.monotonic() - since
        if waited < self._cadence.signer_grace_s or (self._outage_since is not None and not signed):
            return
        self._outage_since = None if signed else since
        self._delayed(int(waited), signed)

    def _note_oldest(self) -> None:
        oldest = None
        for grown in self._grown.values():
            oldest = grown.since
            break
        self._oldest = oldest  # at once, since other threads read it
