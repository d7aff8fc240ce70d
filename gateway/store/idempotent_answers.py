"""Answers kept so that a repeated call gets the same one again and changes nothing twice.

An answer is kept sealed: under a key made from what its caller showed to come in, which is stored nowhere. So only who
shows the same again can have it opened, and a stolen database holds no secret that was shown once.

A call holds its key for LEASE. What it changes is noted on the key's row in the very transaction of the change, and
only by who holds the key. So after a gateway crashed in the middle, the row shows whether the change is there: where it
is, the key stays spent and names what was made; where it is not, the next attempt takes the key over, and what may be
left of the one before cannot commit any more.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import datetime, timedelta
from hashlib import sha256
from os import urandom
from secrets import token_hex

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from sqlalchemy import exc
from sqlmodel import Session, col, delete, update

from gateway.database.database import Database
from gateway.database.errors import ControlError
from gateway.database.tables.control import AnswerRow

KEPT_FOR = timedelta(hours=24)
LEASE = timedelta(seconds=60)
"""How long an attempt of which nothing is heard keeps the key from the next; no change takes nearly as long."""
NONCE_SIZE = 12


class Pending(ControlError):
    """A call with this key is running, or was made and its answer is lost. `retry_after_s`: when to look again."""

    def __init__(self, message: str, retry_after_s: int | None = None) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


@dataclass(frozen=True, slots=True)
class Claim:
    """One attempt at a call, and the row that it holds."""

    name: str
    holder: str


_running: ContextVar[Claim | None] = ContextVar("idempotency_claim", default=None)


@contextmanager
def attempting(claim: Claim) -> Iterator[None]:
    """Whatever is changed inside, threads that it starts with its context included, belongs to the attempt."""
    before = _running.set(claim)
    try:
        yield
    finally:
        _running.reset(before)


def note_change(session: Session, made: str) -> None:
    """In the transaction of a change, before it commits: that the current attempt, if there is one, made it.

    Raises Pending where the attempt lost its key meanwhile; then nothing may be changed.
    """
    claim = _running.get()
    if claim is None or not made:
        return
    mine = (col(AnswerRow.id) == claim.name, col(AnswerRow.holder) == claim.holder)
    done = session.connection().execute(update(AnswerRow).where(*mine).values(made=made[:400]))
    if done.rowcount != 1:
        raise Pending(
            "the call took so long that another attempt with its Idempotency-Key took over"
            "; read what it changed before you call again"
        )


class Answers:
    """The answers to one caller's calls. `credential`: what the caller showed, a token or the like."""

    def __init__(self, database: Database, cell: str, actor: str, credential: str) -> None:
        self._database = database
        self._cell = cell
        self._actor = actor
        self._credential = credential.encode()

    def claim(self, key: str, now: datetime) -> Claim | bytes:
        """A claim for the first call with `key`, which then must `keep` or `release` it; else the sealed answer.

        Raises Pending. Of several at once, one is the first.
        """
        name = self._name(key)
        mine = Claim(name, token_hex(16))
        try:
            with self._database.write() as session:
                session.connection().execute(delete(AnswerRow).where(col(AnswerRow.created_at) <= now - KEPT_FOR))
                row = session.get(AnswerRow, name)
                if row is None:
                    session.add(
                        AnswerRow(id=name, cell=self._cell, created_at=now, sealed=None, holder=mine.holder, made=None)
                    )
                    return mine
                if row.sealed is not None:
                    return row.sealed
                if row.made is not None:
                    raise Pending(
                        f"the call with this Idempotency-Key was made ({row.made}) and its answer is lost; see what"
                        " there is, and repeat what you still need with another key"
                    )
                if row.created_at <= now - LEASE and self._take_over(session, row.holder, mine, now):
                    return mine
                wait = max(1, round((row.created_at + LEASE - now).total_seconds()))
        except exc.IntegrityError:
            wait = 1
        raise Pending("a call with this Idempotency-Key is running, or was cut off; try again", wait)

    @staticmethod
    def _take_over(session: Session, holder: str | None, mine: Claim, now: datetime) -> bool:
        """Waits for a transaction that is noting a change; then there is one, and nothing to take over."""
        dead = (
            col(AnswerRow.id) == mine.name,
            col(AnswerRow.holder) == holder,
            col(AnswerRow.made).is_(None),
            col(AnswerRow.sealed).is_(None),
        )
        taken = session.connection().execute(update(AnswerRow).where(*dead).values(holder=mine.holder, created_at=now))
        return taken.rowcount == 1

    def keep(self, claim: Claim, answer: bytes) -> None:
        nonce = urandom(NONCE_SIZE)
        sealed = nonce + self._cipher(claim.name).encrypt(nonce, answer, claim.name.encode())
        mine = (col(AnswerRow.id) == claim.name, col(AnswerRow.holder) == claim.holder)
        with self._database.write() as session:
            session.connection().execute(update(AnswerRow).where(*mine).values(sealed=sealed))

    def release(self, claim: Claim) -> None:
        """If the attempt changed nothing, the next call with its key is the first again; nor can it change any more."""
        mine = (col(AnswerRow.id) == claim.name, col(AnswerRow.holder) == claim.holder)
        with self._database.write() as session:
            session.connection().execute(delete(AnswerRow).where(*mine, col(AnswerRow.made).is_(None)))

    def opened(self, key: str, sealed: bytes) -> bytes | None:
        """None where it was made for who showed something else."""
        name = self._name(key)
        try:
            return self._cipher(name).decrypt(sealed[:NONCE_SIZE], sealed[NONCE_SIZE:], name.encode())
        except InvalidTag:
            return None

    def _name(self, key: str) -> str:
        return sha256("\0".join((self._cell, self._actor, key)).encode()).hexdigest()

    def _cipher(self, name: str) -> AESGCM:
        derived = HKDF(SHA256(), 32, salt=bytes.fromhex(name), info=b"domicile kept answer")
        return AESGCM(derived.derive(self._credential))
