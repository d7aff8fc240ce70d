"""Who signs checkpoints: a protocol, and the default signer that keeps its Ed25519 key in a file.

A signer in another process, in an HSM or behind a key service has the same three members.
"""

import os
import re
import secrets
from base64 import b64decode, b64encode
from pathlib import Path
from typing import Protocol

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from audit.errors import NoteError, SignerError
from audit.new_file import PUBLIC, make_private_folder, replace_file
from audit.note import ED25519, NoteSigner, VerifierKey
from audit.succession import notes_in, with_kin

DEFAULT_NAME = "domicile.local/audit"

_KEY_FILE = re.compile(r"PRIVATE\+KEY\+(?P<name>[^+\s]+)\+(?P<id>[0-9a-f]{8})\+(?P<key>[A-Za-z0-9+/]+=*)\n?")


class Signer(NoteSigner, Protocol):
    """A note signer that also knows the name of the log it signs for."""

    @property
    def name(self) -> str: ...


def key_of(signer: Signer) -> VerifierKey:
    """The verifier key of a signer, with the keys that its succession links to it."""
    return with_kin(VerifierKey(signer.name, signer.public_key), successions_of(signer))


def successions_of(signer: Signer) -> list[str]:
    """The notes that lead to its key and from it; a signer elsewhere may have none."""
    return list(getattr(signer, "successions", ()))


class FileSigner:
    """An Ed25519 key in a file of mode 0600, in the private-key form of Go's sumdb/note; its vkey lies beside it, and
    so do the notes of the key's `successions`."""

    def __init__(self, name: str, key: Ed25519PrivateKey) -> None:
        self._key = key
        self._verifier = VerifierKey(name, key.public_key().public_bytes_raw())
        self.successions: list[str] = []

    @classmethod
    def open(cls, path: Path, *, name: str = DEFAULT_NAME) -> "FileSigner":
        """Read the key at `path`, or create it there under `name` (a key that exists keeps its own name).

        Raises SignerError if the file is no key, may be read by others, or cannot be written.
        """
        try:
            if not path.exists():
                _create(path, name)
            if path.stat().st_mode & 0o077:
                raise SignerError(f"others than its owner may read {path.name}: run chmod 600 on it")
            signer = cls._parse(path.read_text(encoding="ascii"), path)
            vkey = path.with_suffix(".vkey")
            if not vkey.exists():
                write_vkey(path, signer.verifier_key)
            signer.successions = notes_in(path.parent)
        except (OSError, UnicodeDecodeError) as error:
            raise SignerError(f"the signing key {path.name} cannot be used: {error}") from error
        return signer

    @classmethod
    def _parse(cls, text: str, path: Path) -> "FileSigner":
        match = _KEY_FILE.fullmatch(text)
        if match is None:
            raise SignerError(f"{path.name} is not a signing key")
        try:
            raw = b64decode(match["key"], validate=True)
            if raw[:1] != ED25519:
                raise SignerError(f"{path.name} is not an Ed25519 key")
            signer = cls(match["name"], Ed25519PrivateKey.from_private_bytes(raw[1:]))
        except (ValueError, NoteError) as error:
            raise SignerError(f"{path.name} is not a signing key") from error
        if signer.verifier_key.key_id.hex() != match["id"]:
            raise SignerError(f"{path.name} is damaged: its key id is not that of its key")
        return signer

    @property
    def name(self) -> str:
        return self._verifier.name

    @property
    def public_key(self) -> bytes:
        return self._verifier.public_key

    @property
    def verifier_key(self) -> VerifierKey:
        return self._verifier

    def sign(self, message: bytes) -> bytes:
        return self._key.sign(message)


def parse_signer(content: bytes) -> FileSigner:
    """The key in the content of a key file. Raises SignerError."""
    try:
        return FileSigner._parse(content.decode("ascii"), Path("signer.key"))
    except UnicodeDecodeError as error:
        raise SignerError("signer.key is not a signing key") from error


def write_vkey(path: Path, key: VerifierKey) -> None:
    """Beside the key file `path`. Raises OSError."""
    replace_file(path.with_suffix(".vkey"), f"{key}\n".encode(), PUBLIC)


def _create(path: Path, name: str) -> None:
    """Write a new key so that of several processes starting at once, all end up with the same one."""
    key = Ed25519PrivateKey.generate()
    verifier = VerifierKey(name, key.public_key().public_bytes_raw())
    encoded = b64encode(ED25519 + key.private_bytes_raw()).decode()
    make_private_folder(path.parent)
    draft = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(fd, "w", encoding="ascii") as file:
            file.write(f"PRIVATE+KEY+{name}+{verifier.key_id.hex()}+{encoded}\n")
            file.flush()
            os.fsync(file.fileno())
        try:
            os.link(draft, path)
        except FileExistsError:
            return
    finally:
        draft.unlink(missing_ok=True)
