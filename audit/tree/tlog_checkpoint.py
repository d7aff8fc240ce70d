"""Checkpoints (C2SP tlog-checkpoint): a log's signed promise of its size and root.

One key signs for every tree of a log. The tree of tenant ``acme`` in the log ``example.com/audit`` has the origin
``example.com/audit/acme``, which is also the key's name in the signature line, as the specification recommends.
"""

import re
from base64 import b64decode, b64encode
from dataclasses import dataclass

from audit.errors import NoteError
from audit.tree.merkle import HASH_SIZE
from audit.tree.note import NoteSigner, VerifierKey, open_note, sign_note

_SIZE = re.compile(r"0|[1-9][0-9]{0,18}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """`root` is the RFC 6962 root (32 bytes) of the first `size` leaves of the log called `origin`."""

    origin: str
    size: int
    root: bytes

    def text(self) -> str:
        return f"{self.origin}\n{self.size}\n{b64encode(self.root).decode()}\n"

    @classmethod
    def parse(cls, text: str) -> "Checkpoint":
        """Read the text of a checkpoint note; extension lines are passed over. Raises NoteError."""
        lines = text.split("\n")
        if len(lines) < 4 or lines[-1] or not all(lines[:-1]):
            raise NoteError("a checkpoint has at least three lines, none empty")
        origin, size, root = lines[:3]
        if not _SIZE.fullmatch(size):
            raise NoteError("the size of a checkpoint must be a plain decimal number")
        try:
            digest = b64decode(root, validate=True)
        except ValueError as error:
            raise NoteError("the root of a checkpoint must be base64") from error
        if len(digest) != HASH_SIZE or b64encode(digest).decode() != root:
            raise NoteError(f"the root of a checkpoint must be {HASH_SIZE} bytes in base64")
        return cls(origin, int(size), digest)


def origin_of(log_name: str, tenant: str) -> str:
    return f"{log_name}/{tenant}"


def tenant_of(log_name: str, origin: str) -> str | None:
    """The tenant whose tree `origin` is, None if it is not one of that log's."""
    name, slash, tenant = origin.rpartition("/")
    return tenant if slash and name == log_name else None


def sign_checkpoint(checkpoint: Checkpoint, signer: NoteSigner) -> str:
    """The note. Raises SignerError if the signer cannot sign now."""
    return sign_note(checkpoint.text(), checkpoint.origin, signer)


def keys_of(origin: str, public_key: bytes | tuple[bytes, ...]) -> list[VerifierKey]:
    return [VerifierKey(origin, one) for one in ((public_key,) if isinstance(public_key, bytes) else public_key)]


def open_checkpoint(note: str, origin: str, public_key: bytes | tuple[bytes, ...]) -> Checkpoint:
    """The checkpoint in `note`, which must be of the log `origin` and signed by its key, or by one of several.

    Raises NoteError, saying which of the two is not so.
    """
    checkpoint = Checkpoint.parse(open_note(note, keys_of(origin, public_key)))
    if checkpoint.origin != origin:
        raise NoteError(
            f"the checkpoint is of {checkpoint.origin}, not of {origin}; give the checkpoint of this tenant"
        )
    return checkpoint
