"""A witness (C2SP tlog-witness): remembers how far each log had grown, and cosigns only what extends it.

A second party runs it, the tenant for one. Then the keeper of the log cannot show two histories: of one size there is
one root that the witness signed. What it saw is durable before it signs.
"""

import re
import sqlite3
import threading
import time
from base64 import b64decode, b64encode
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from audit.errors import NoteError, ProofError, StoreError
from audit.files.database_file import connect_existing, create_database_file
from audit.tree.cosignature import cosign
from audit.tree.merkle import EMPTY_ROOT, HASH_SIZE, verify_consistency
from audit.tree.note import NoteSigner, VerifierKey
from audit.tree.tlog_checkpoint import Checkpoint, open_checkpoint

BUSY_SECONDS = 5.0
MAX_BODY = 64 * 1024
MAX_PROOF = 63  # hashes: a longer one proves nothing of a tree below 2**63
SIZE_TYPE = "text/x.tlog.size"

_OLD = re.compile(r"old (0|[1-9][0-9]{0,18})", re.ASCII)


@dataclass(frozen=True, slots=True)
class WitnessResponse:
    """An HTTP status, and the body: cosignature lines, the size last seen (409), or a sentence."""

    status: int
    body: str

    @property
    def content_type(self) -> str:
        return SIZE_TYPE if self.status == 409 else "text/plain; charset=utf-8"


class Witness:
    """`logs` are the keys of the logs it watches, by origin. May be called from several threads."""

    def __init__(
        self,
        path: Path,
        name: str,
        signer: NoteSigner,
        logs: Mapping[str, VerifierKey],
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Open or create the memory at `path`. Raises StoreError."""
        self._name = name
        self._signer = signer
        self._logs = dict(logs)
        self._clock = clock
        self._lock = threading.Lock()
        try:
            create_database_file(path)
            self._db = connect_existing(path, timeout=BUSY_SECONDS, check_same_thread=False)
            self._db.execute("PRAGMA synchronous=FULL")
            self._db.execute(
                "CREATE TABLE IF NOT EXISTS seen"
                " (origin TEXT PRIMARY KEY, size INTEGER NOT NULL, root BLOB NOT NULL) WITHOUT ROWID"
            )
        except (OSError, sqlite3.Error) as error:
            raise StoreError(
                f"the memory of the witness cannot be used: {error}; check the folder given by --folder"
            ) from error

    def add_checkpoint(self, body: bytes) -> WitnessResponse:
        """Answer a request: ``old <size>``, consistency proof, blank line, checkpoint.

        Raises StoreError or SignerError; then nothing was signed.
        """
        try:
            head, blank, note = body.decode().partition("\n\n")
            old, proof = _parse_head(head)
            origin = note.partition("\n")[0]
            if not blank:
                raise NoteError("there is no checkpoint")
        except (UnicodeDecodeError, NoteError) as error:
            return WitnessResponse(400, f"malformed request: {error}\n")
        if (key := self._logs.get(origin)) is None:
            return WitnessResponse(403, "unknown log\n")  # as litewitness does; the specification also knows 404
        try:
            checkpoint = open_checkpoint(note, origin, key.public_key)
        except NoteError as error:
            return WitnessResponse(403, f"invalid signature: {error}\n")
        if old > checkpoint.size:
            return WitnessResponse(400, "the old size is larger than the checkpoint\n")
        with self._lock:
            return self._remember(checkpoint, old, proof)

    def _remember(self, checkpoint: Checkpoint, old: int, proof: list[bytes]) -> WitnessResponse:
        try:
            self._db.execute("BEGIN IMMEDIATE")  # another process may witness out of the same memory
            try:
                answer = self._check_submission(checkpoint, old, proof)
                self._db.execute("COMMIT")
            except BaseException:
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                raise
        except sqlite3.Error as error:
            raise StoreError(
                f"the memory of the witness cannot be used: {error}; check the folder given by --folder"
            ) from error
        if answer is not None:
            return answer
        return WitnessResponse(200, cosign(checkpoint.text(), self._name, self._signer, int(self._clock())))

    def _check_submission(self, checkpoint: Checkpoint, old: int, proof: list[bytes]) -> WitnessResponse | None:
        """Why the checkpoint is not signed, None once it is remembered."""
        query = "SELECT size, root FROM seen WHERE origin = ?"
        size, root = self._db.execute(query, (checkpoint.origin,)).fetchone() or (0, EMPTY_ROOT)
        if old != size or (checkpoint.size == size and checkpoint.root != root):
            return WitnessResponse(409, f"{size}\n")
        try:
            if size:
                verify_consistency(size, checkpoint.size, proof, root, checkpoint.root)
            elif proof or (checkpoint.size == 0 and checkpoint.root != EMPTY_ROOT):
                raise ProofError("nothing comes before the first checkpoint")
        except ProofError as error:
            return WitnessResponse(422, f"the consistency proof does not hold: {error}\n")
        self._db.execute(
            "INSERT OR REPLACE INTO seen VALUES (?, ?, ?)", (checkpoint.origin, checkpoint.size, checkpoint.root)
        )
        return None

    def close(self) -> None:
        self._db.close()


def write_request(old: int, proof: list[bytes], note: str) -> bytes:
    """The body of add-checkpoint."""
    lines = "".join(f"{b64encode(node).decode()}\n" for node in proof)
    return f"old {old}\n{lines}\n{note}".encode()


def _parse_head(head: str) -> tuple[int, list[bytes]]:
    first, *rest = head.split("\n")
    match = _OLD.fullmatch(first)
    if match is None or len(rest) > MAX_PROOF:
        raise NoteError("it does not begin with the old size and a proof")
    try:
        proof = [b64decode(line, validate=True) for line in rest]
    except ValueError as error:
        raise NoteError("the proof is not base64") from error
    if any(len(node) != HASH_SIZE for node in proof):
        raise NoteError(f"every hash must be {HASH_SIZE} bytes")
    return int(match[1]), proof
