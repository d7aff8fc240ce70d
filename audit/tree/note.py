"""Signed notes (C2SP signed-note) with Ed25519 keys: text, a blank line, signature lines."""

import binascii
from base64 import b64decode, b64encode
from collections.abc import Iterable
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Protocol

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from audit.errors import NoteError

ED25519 = b"\x01"  # signature type of signed-note
KEY_SIZE = 32
MAX_NOTE_SIZE = 1_000_000  # characters; a verifier bounds what it parses
MAX_SIGNATURES = 100

_SIGNATURE_PREFIX = "\u2014 "


class NoteSigner(Protocol):
    """Holder of one Ed25519 key. `sign` may block (a file, an HSM, another process) and may raise SignerError."""

    @property
    def public_key(self) -> bytes: ...

    def sign(self, message: bytes) -> bytes: ...


def fixed(signer: NoteSigner) -> NoteSigner:
    """The signer with the key that it has now: one that follows a rotation could change between two uses."""
    current = getattr(signer, "current", None)
    return signer if current is None else current()


@dataclass(frozen=True, slots=True)
class VerifierKey:
    """A named Ed25519 public key, written ``name+key id+base64(type || key)`` ("vkey")."""

    name: str
    public_key: bytes
    kin: tuple[bytes, ...] = field(default=(), compare=False)
    """Other keys of the same name that are trusted with it (`audit.keys.succession`)."""

    @property
    def public_keys(self) -> tuple[bytes, ...]:
        return self.public_key, *self.kin

    def __post_init__(self) -> None:
        if not _is_key_name(self.name):
            raise NoteError("a key name must be non-empty, without spaces, control characters or '+'")
        if len(self.public_key) != KEY_SIZE:
            raise NoteError(f"an Ed25519 key is {KEY_SIZE} bytes, not {len(self.public_key)}")

    @property
    def key_id(self) -> bytes:
        """4 bytes that distinguish keys of one name; security does not depend on them."""
        return sha256(self.name.encode() + b"\n" + ED25519 + self.public_key).digest()[:4]

    def __str__(self) -> str:
        return f"{self.name}+{self.key_id.hex()}+{b64encode(ED25519 + self.public_key).decode()}"

    @classmethod
    def parse(cls, text: str) -> "VerifierKey":
        """Raises NoteError for another algorithm, a wrong length, or an id that is not this key's."""
        parts = text.strip().split("+", 2)
        if len(parts) != 3:
            raise NoteError("a verifier key has another form; give name+key id+base64")
        name, key_id, encoded = parts
        key = _decode(encoded)
        if key[:1] != ED25519:
            raise NoteError("not an Ed25519 key")
        verifier = cls(name, key[1:])
        if key_id != verifier.key_id.hex():
            raise NoteError(f"the key id {key_id!r} is not that of the key")
        return verifier

    def verifies(self, signature: bytes, message: bytes) -> bool:
        try:
            Ed25519PublicKey.from_public_bytes(self.public_key).verify(signature, message)
        except (InvalidSignature, ValueError):
            return False
        return True


def sign_note(text: str, name: str, signer: NoteSigner) -> str:
    """The note that says `text` under `signer`'s key, which goes by `name` here.

    Raises NoteError if the text is no note text, SignerError if the signer cannot sign.
    """
    _check_text(text)
    signer = fixed(signer)
    key = VerifierKey(name, signer.public_key)
    signature = b64encode(key.key_id + signer.sign(text.encode())).decode()
    return f"{text}\n{_SIGNATURE_PREFIX}{name} {signature}\n"


def open_note(note: str, keys: Iterable[VerifierKey]) -> str:
    """The text of `note`, signed by at least one of `keys`.

    Signatures of unknown keys are passed over, so that keys can rotate and witnesses cosign. Raises NoteError if the
    note is malformed, no known key signed it, or a known key's signature is wrong.
    """
    if len(note) > MAX_NOTE_SIZE:
        raise NoteError("the note is too large")
    body, blank, block = note.rpartition("\n\n")
    text = body + "\n"
    if not blank or not block.endswith("\n"):
        raise NoteError("the note has no signatures")
    _check_text(text)
    lines = block[:-1].split("\n")
    if len(lines) > MAX_SIGNATURES:
        raise NoteError("the note has too many signatures")
    known = {(key.name, key.key_id): key for key in keys}
    verified = False
    for line in lines:
        name, signature = _parse_signature(line)
        key = known.get((name, signature[:4]))
        if key is None:
            continue
        if not key.verifies(signature[4:], text.encode()):
            raise NoteError(f"the signature of {name} is wrong")
        verified = True
    if not verified:
        raise NoteError("no known key signed the note")
    return text


def _parse_signature(line: str) -> tuple[str, bytes]:
    name, space, encoded = line.removeprefix(_SIGNATURE_PREFIX).partition(" ")
    if not line.startswith(_SIGNATURE_PREFIX) or not space or not _is_key_name(name):
        raise NoteError("a signature line is malformed")
    signature = _decode(encoded)
    if len(signature) < 5:
        raise NoteError("a signature line is malformed")
    return name, signature


def _check_text(text: str) -> None:
    if not text.endswith("\n"):
        raise NoteError("the text of a note must end in a newline")
    if any(char < " " and char != "\n" for char in text):
        raise NoteError("the text of a note must not hold control characters")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise NoteError("the text of a note must be valid UTF-8") from error


def _is_key_name(name: str) -> bool:
    return bool(name) and not any(char.isspace() or char < " " or char == "+" for char in name)


def _decode(encoded: str) -> bytes:
    try:
        return b64decode(encoded, validate=True)
    except (binascii.Error, ValueError) as error:
        raise NoteError("not base64") from error
