"""Answers kept so that a repeated call gets the same one again and changes nothing twice.

An answer is kept sealed: under a key made from what its caller showed to come in, which is stored nowhere. So only who
shows the same again can have it opened, and a stolen database holds no secret that was shown once.

    Pending   a call with this key is running, or ended without our knowing how
"""

from datetime import datetime, timedelta
from hashlib import sha256
from os import urandom

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from sqlalchemy import exc
from sqlmodel import col, delete

from gateway.store.database import Database
from gateway.store.errors import ControlError
from gateway.store.tables import AnswerRow

KEPT_FOR = timedelta(hours=24)
NONCE_SIZE = 12


class Pending(ControlError):
    """A call with this key is running, or ended without our knowing how."""


class Answers:
    """The answers to one caller's calls. `credential`: what the caller showed, a token or the like."""

    def __init__(self, database: Database, cell: str, actor: str, credential: str) -> None:
        self._database = database
        self._cell = cell
        self._actor = actor
        self._credential = credential.encode()

    def claim(self, key: str, now: datetime) -> bytes | None:
        """None for the first call with `key`, which then must `keep` or `release`; else the sealed answer.

        Raises Pending. Of several at once, one is the first.
        """
        name = self._name(key)
        try:
            with self._database.write() as session:
                session.connection().execute(delete(AnswerRow).where(col(AnswerRow.created_at) <= now - KEPT_FOR))
                row = session.get(AnswerRow, name)
                if row is None:
                    session.add(AnswerRow(id=name, cell=self._cell, created_at=now, sealed=None))
                    return None
        except exc.IntegrityError:
            row = None
        if row is None or row.sealed is None:
            raise Pending(
                "a call with this Idempotency-Key is running, or was cut off; see what there is before you repeat"
            )
        return row.sealed

    def keep(self, key: str, answer: bytes) -> None:
        name, nonce = self._name(key), urandom(NONCE_SIZE)
        sealed = nonce + self._cipher(name).encrypt(nonce, answer, name.encode())
        with self._database.write() as session:
            if (row := session.get(AnswerRow, name)) is not None:
                row.sealed = sealed

    def release(self, key: str) -> None:
        """Nothing was changed: the next call with `key` is the first again."""
        with self._database.write() as session:
            if (row := session.get(AnswerRow, self._name(key))) is not None:
                session.delete(row)

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
