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
from audit.new_file import PUBLIC, make_private_folder, replace_file, said_of
from audit.note import ED25519, NoteSigner, VerifierKey, fixed
from audit.succession import FOLDER, notes_in, successors, with_kin

DEFAULT_NAME = "domicile.local/audit"

_KEY_FILE = re.compile(r"PRIVATE\+KEY\+(?P<name>[^+\s]+)\+(?P<id>[0-9a-f]{8})\+(?P<key>[A-Za-z0-9+/]+=*)\n?")


class Signer(NoteSigner, Protocol):
    """A note signer that also knows the name of the log it signs for."""

    @property
    def name(self) -> str: ...


def key_of(signer: Signer) -> VerifierKey:
    """The verifier key of a signer, with the keys that its succession links to it."""
    now = fixed(signer)
    return with_kin(VerifierKey(signer.name, now.public_key), getattr(now, "successions", ()))


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
            signer = cls.parse(path.read_text(encoding="ascii"), path)
            signer.successions = notes_in(path.parent)
            _settle_vkey(path, signer)
        except (OSError, UnicodeDecodeError) as error:
            raise SignerError(f"the signing key {path.name} cannot be used: {said_of(error, path.parent)}") from error
        return signer

    @classmethod
    def parse(cls, text: str, path: Path) -> "FileSigner":
        """The signer whose key file `path` has the content `text`. Raises SignerError."""
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
        return FileSigner.parse(content.decode("ascii"), Path("signer.key"))
    except UnicodeDecodeError as error:
        raise SignerError("signer.key is not a signing key") from error


class FollowingSigner:
    """The key in a file as it is now: once another process has put its successor there, that one signs.

    A key that no succession links to the one before is refused, and so is everything else that is not its successor.
    """

    def __init__(self, path: Path, signer: FileSigner) -> None:
        self._path = path
        self._signer = signer
        self._seen = self._state()

    @classmethod
    def open(cls, path: Path, *, name: str = DEFAULT_NAME) -> "FollowingSigner":
        """As `FileSigner.open`."""
        return cls(path, FileSigner.open(path, name=name))

    def current(self) -> FileSigner:
        """The signer with the key of now. Any thread may ask. Raises SignerError."""
        if (state := self._state()) != self._seen:
            signer = FileSigner.open(self._path, name=self._signer.name)
            before = self._signer.public_key
            if signer.name != self._signer.name or before not in key_of(signer).public_keys:
                raise SignerError(
                    f"{self._path.name} was replaced by a key that no succession links to the one before; put the key"
                    " of this installation back"
                )
            self._signer, self._seen = signer, state
        return self._signer

    def _state(self) -> tuple[tuple[int, int] | None, ...]:
        return tuple(_stamp_of(each) for each in (self._path, self._path.parent / FOLDER))

    @property
    def name(self) -> str:
        return self._signer.name

    @property
    def public_key(self) -> bytes:
        return self.current().public_key

    @property
    def verifier_key(self) -> VerifierKey:
        return self.current().verifier_key

    @property
    def successions(self) -> list[str]:
        return self.current().successions

    def sign(self, message: bytes) -> bytes:
        return self.current().sign(message)


def _stamp_of(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    return found.st_ino, found.st_mtime_ns


def _settle_vkey(path: Path, signer: FileSigner) -> None:
    """Write the verifier key beside the key file `path`, or replace that of a predecessor, as after a rotation that was
    interrupted. Raises SignerError if the one there is no predecessor's: the two files are of different generations."""
    vkey = path.with_suffix(".vkey")
    try:
        kept = VerifierKey.parse(vkey.read_text(encoding="ascii"))
    except FileNotFoundError:
        write_vkey(path, signer.verifier_key)
        return
    except NoteError as error:
        raise SignerError(f"{vkey} is not a verifier key; remove it, and it is written anew") from error
    if kept == signer.verifier_key:
        return
    try:
        follows = signer.public_key in successors(kept.public_key, signer.name, signer.successions)
    except NoteError as error:
        raise SignerError(f"a key succession beside {path.name} does not hold: {error}") from error
    if kept.name != signer.name or not follows:
        raise SignerError(
            f"{vkey} is not of the key in {path.name}: the key set is an older one than this folder, or another"
            " installation's; take the newest key set of this installation over with: domicile init --keys"
        )
    write_vkey(path, signer.verifier_key)


def write_vkey(path: Path, key: VerifierKey) -> None:
    """Beside the key file `path`, replaced whole. Raises OSError."""
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
