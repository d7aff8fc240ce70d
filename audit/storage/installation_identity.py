"""Which installation a database belongs to, as the database itself says.

Record, value store and control database each carry the cell, the name (origin) of the log and the fingerprint of the
key that signed it when they were claimed. The key may be replaced later: a holder of a key that a succession links to
the first one belongs to the same installation. A database without a row is from before, or empty: it is claimed once,
after its content was checked to be of this installation.
"""

from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from audit.errors import AuditError, NoteError, StoreError
from audit.keys.succession import notes_in, with_successors
from audit.tree.note import VerifierKey
from audit.tree.tlog_checkpoint import open_checkpoint

TABLE = "identity"
VKEY = "signer.vkey"


class ForeignDatabaseError(StoreError):
    """The database belongs to another installation; nothing was written."""


@dataclass(frozen=True, slots=True)
class Identity:
    """`cell`: its name. `log`: name of the log, as ``domicile.eu-1/audit``. `key`: SHA-256 of its first public key."""

    cell: str
    log: str
    key: str

    def __str__(self) -> str:
        return f"cell {self.cell!r} (log {self.log}, key {self.key[:16]})"


def fingerprint(public_key: bytes) -> str:
    """SHA-256 in hex."""
    return sha256(public_key).hexdigest()


def identity_of(key: VerifierKey) -> Identity:
    return Identity(cell_of(key.name), key.name, fingerprint(key.public_key))


def cell_of(log: str) -> str:
    """``eu-1`` of ``domicile.eu-1/audit``."""
    return log.partition("/")[0].removeprefix("domicile.")


def key_beside(log: Path) -> VerifierKey | None:
    """The verifier key of the folder that the log `log` is in, with those its succession links to it; None if there
    is none. Raises StoreError if the files there contradict each other."""
    try:
        text = log.with_name(VKEY).read_text(encoding="ascii")
        return with_successors(VerifierKey.parse(text), notes_in(log.parent))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, AuditError) as error:
        raise StoreError(f"{log.with_name(VKEY)} cannot be used: {error}; put back the key set's") from error


def check_identity(found: Identity, key: VerifierKey, what: str) -> None:
    """Raises ForeignDatabaseError, naming both sides, if the database `what` with the identity `found` is not of the
    log of `key`."""
    mine = identity_of(key)
    if found.log == mine.log and found.key in map(fingerprint, key.public_keys):
        return
    if found.log == mine.log:
        raise ForeignDatabaseError(
            f"{what} belongs to another installation of cell {found.cell!r}: its log began under key {found.key[:16]},"
            f" this data folder holds key {mine.key[:16]}, and no succession links the two; use that installation's key"
            " set (domicile init --keys), or another database"
        )
    raise ForeignDatabaseError(
        f"{what} belongs to {found}, this data folder to {mine}; name the data folder of cell {found.cell!r} by --data"
        f" or DOMICILE_DATA, or set the URLs of the databases of cell {mine.cell!r}"
    )


def check_founder(note: str | None, key: VerifierKey, what: str) -> None:
    """Check that the first checkpoint `note` of a record without an identity was signed by this log's keys.

    Raises ForeignDatabaseError.
    """
    if note is None:
        return
    origin = note.partition("\n")[0]
    try:
        if origin.rpartition("/")[0] != key.name:
            raise NoteError("it is of another log")
        open_checkpoint(note, origin, key.public_keys)
    except NoteError as error:
        raise ForeignDatabaseError(
            f"{what} belongs to another installation: its first checkpoint is of {origin} and was not signed by the key"
            f" of {key.name} ({error}); name that installation's data folder by --data or DOMICILE_DATA"
        ) from error
