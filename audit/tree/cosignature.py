"""Cosignatures (C2SP tlog-cosignature, Ed25519): a witness's word that a log it sees has only ever grown.

A cosignature is a line in the note beside the log's own signature: key id, 8 bytes of time, and the signature of
``cosignature/v1``, the time, and the text of the checkpoint. A verifier key reads ``name+key id+base64(0x04 || key)``.
"""

from base64 import b64decode, b64encode
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import sha256

from audit.errors import NoteError
from audit.events.stamp import rfc3339
from audit.tree.note import KEY_SIZE, NoteSigner, VerifierKey

COSIGNATURE = b"\x04"  # signature type of tlog-cosignature
TIME_SIZE = 8
SIGNATURE_SIZE = 64

_LINE = "\u2014 "


@dataclass(frozen=True, slots=True)
class WitnessKey:
    name: str
    public_key: bytes

    @property
    def key_id(self) -> bytes:
        return sha256(self.name.encode() + b"\n" + COSIGNATURE + self.public_key).digest()[:4]

    def __str__(self) -> str:
        return f"{self.name}+{self.key_id.hex()}+{b64encode(COSIGNATURE + self.public_key).decode()}"

    @classmethod
    def parse(cls, text: str) -> "WitnessKey":
        """Raises NoteError for another algorithm, a wrong length, or an id that is not this key's."""
        parts = text.strip().split("+", 2)
        if len(parts) != 3:
            raise NoteError("a witness key has another form; give name+key id+base64")
        name, key_id, encoded = parts
        try:
            raw = b64decode(encoded, validate=True)
        except ValueError as error:
            raise NoteError("not base64") from error
        if raw[:1] != COSIGNATURE or len(raw) != KEY_SIZE + 1:
            raise NoteError("not an Ed25519 witness key")
        key = cls(VerifierKey(name, raw[1:]).name, raw[1:])
        if key_id != key.key_id.hex():
            raise NoteError(f"the key id {key_id!r} is not that of the key")
        return key


def cosign(text: str, name: str, signer: NoteSigner, now: int) -> str:
    """The line by which the witness `name` signs the checkpoint `text` at `now` (seconds). Raises SignerError."""
    key = WitnessKey(name, signer.public_key)
    signature = signer.sign(_message(text, now))
    encoded = b64encode(key.key_id + now.to_bytes(TIME_SIZE, "big") + signature).decode()
    return f"{_LINE}{name} {encoded}\n"


def cosigned_at(note: str, key: WitnessKey) -> int:
    """When the witness signed this checkpoint, in seconds since the epoch.

    Raises NoteError if it did not, or its signature is wrong.
    """
    body, blank, block = note.rpartition("\n\n")
    for line in block.splitlines() if blank else ():
        name, space, encoded = line.removeprefix(_LINE).partition(" ")
        if not line.startswith(_LINE) or not space or name != key.name:
            continue
        try:
            raw = b64decode(encoded, validate=True)
        except ValueError as error:
            raise NoteError("a signature line is malformed") from error
        if raw[:4] != key.key_id:
            continue
        now = int.from_bytes(raw[4 : 4 + TIME_SIZE], "big")
        if not VerifierKey(key.name, key.public_key).verifies(raw[4 + TIME_SIZE :], _message(body + "\n", now)):
            raise NoteError(f"the cosignature of {key.name} is wrong")
        return now
    raise NoteError(f"the witness {key.name} did not sign it")


def cosigners(note: str, log: str) -> Iterator[tuple[str, str]]:
    """Name and time (RFC 3339) of each cosignature on a checkpoint of `log`, unchecked: that takes a witness's key."""
    for line in note.rpartition("\n\n")[2].splitlines():
        name, _, encoded = line.removeprefix(_LINE).partition(" ")
        try:
            raw = b64decode(encoded, validate=True)
        except ValueError:
            continue
        if name != log and len(raw) == 4 + TIME_SIZE + SIGNATURE_SIZE:
            yield name, rfc3339(int.from_bytes(raw[4 : 4 + TIME_SIZE], "big") * 1000)


def _message(text: str, now: int) -> bytes:
    return f"cosignature/v1\ntime {now}\n{text}".encode()
