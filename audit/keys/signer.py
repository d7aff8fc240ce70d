"""Who signs checkpoints: a protocol, and the default signer that keeps its Ed25519 key in a file.

A signer in another process, in an HSM or behind a key service has the same three members.
"""

import os
import re
import secrets
from base64 import b64decode, b64encode
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from audit.errors import NoteError, SignerError
from audit.files.new_file import PUBLIC, describe_error, make_private_folder, replace_file
from audit.keys.succession import FOLDER, notes_in, successors, with_successors
from audit.tree.note import ED25519, NoteSigner, VerifierKey, fixed

DEFAULT_NAME = "domicile.local/audit"

_KEY_FILE = re.compile(r"PRIVATE\+KEY\+(?P<name>[^+\s]+)\+(?P<id>[0-9a-f]{8})\+(?P<key>[A-Za-z0-9+/]+=*)\n?")


class Signer(NoteSigner, Protocol):
    """A note signer that also knows the name of the log it signs for."""

    @property
    def name(self) -> str: ...


class LogSigner(Signer, Protocol):
    """One key of a log; `successions` are the notes that lead to it and from it."""

    successions: list[str]

    @property
    def verifier_key(self) -> VerifierKey: ...


def key_of(signer: Signer) -> VerifierKey:
    """The verifier key of a signer, with the keys that its succession links to it."""
    now = fixed(signer)
    return with_successors(VerifierKey(signer.name, now.public_key), getattr(now, "successions", ()))


def successions_of(signer: Signer) -> list[str]:
    """The notes that lead to its key and from it; a signer elsewhere may have none."""
    return list(getattr(signer, "successions", ()))


class FileSigner:
    """An Ed25519 key in a file of mode 0600, in the private-key form of Go's sumdb/note; its vkey is next to it, and
    so do the notes of the key's `successions`."""

    def __init__(self, name: str, key: Ed25519PrivateKey) -> None:
        self._key = key
        self._verifier = VerifierKey(name, key.public_key().public_bytes_raw())
        self.successions: list[str] = []

    @classmethod
    def open(cls, path: Path, *, name: str = DEFAULT_NAME) -> "FileSigner":
        """Read the key at `path`, or create it there under `name` (a key that exists keeps its own name).

        Raises SignerError if the file is no key, may be read by others, or cannot be written; if it is absent and its
        verifier key is there, since another key would not verify the log.
        """
        try:
            if not path.exists():
                # A process that makes both now makes the key first, so a second look finds it.
                if path.with_suffix(".vkey").exists() and not path.exists():
                    raise SignerError(
                        f"the signing key {path.name} is not beside its verifier key; put it back with the key set"
                        " (domicile init --keys), or, where it is in Vault, set secrets.vault.signing_key"
                    )
                if not path.exists():
                    _create(path, name)
            if path.stat().st_mode & 0o077:
                raise SignerError(f"others than its owner may read {path.name}; run chmod 600 on it")
            signer = cls.parse(path.read_text(encoding="ascii"), path)
            signer.successions = notes_in(path.parent)
            _settle_vkey(path, signer)
        except (OSError, UnicodeDecodeError) as error:
            raise SignerError(
                f"the signing key {path.name} cannot be used: {describe_error(error, path.parent)}"
                "; let this process read it"
            ) from error
        return signer

    @classmethod
    def parse(cls, text: str, path: Path) -> "FileSigner":
        """The signer whose key file `path` has the content `text`. Raises SignerError."""
        match = _KEY_FILE.fullmatch(text)
        if match is None:
            raise SignerError(
                f"{path.name} is not a signing key; put the key set back with: domicile init --keys KEY_SET"
            )
        try:
            raw = b64decode(match["key"], validate=True)
            if raw[:1] != ED25519:
                raise SignerError(
                    f"{path.name} is not an Ed25519 key; put the key set back with: domicile init --keys KEY_SET"
                )
            signer = cls(match["name"], Ed25519PrivateKey.from_private_bytes(raw[1:]))
        except (ValueError, NoteError) as error:
            raise SignerError(
                f"{path.name} is not a signing key; put the key set back with: domicile init --keys KEY_SET"
            ) from error
        if signer.verifier_key.key_id.hex() != match["id"]:
            raise SignerError(
                f"the key file {path.name} is damaged, its key id is not that of its key; put the key set back "
                "with: domicile init --keys KEY_SET"
            )
        return signer

    @classmethod
    def generate(cls, name: str) -> "FileSigner":
        """A new key, in no file yet."""
        return cls(name, Ed25519PrivateKey.generate())

    def write_draft(self, path: Path) -> Path:
        """Write the key durably into a new file beside `path`, whose name cannot be guessed. Raises OSError."""
        encoded = b64encode(ED25519 + self._key.private_bytes_raw()).decode()
        draft = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
        fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(fd, "w", encoding="ascii") as file:
            os.fchmod(file.fileno(), 0o600)
            file.write(f"PRIVATE+KEY+{self.name}+{self._verifier.key_id.hex()}+{encoded}\n")
            file.flush()
            os.fsync(file.fileno())
        return draft

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
        raise SignerError("signer.key is not a signing key; restore the key set from a backup") from error


class FollowingSigner:
    """The key of a log as it is now: once another process has put its successor in place, that one signs.

    A key that no succession links to the one before is refused, and so is everything else that is not its successor.
    If the successor is kept elsewhere (in a file instead of Vault, or the reverse), the key of before signs until this
    process is started with the configuration of the new one: verifiers trust both.
    """

    def __init__(self, public: Path, watched: Sequence[Path], reopen: Callable[[], LogSigner]) -> None:
        """`public` is the file of the verifier key; `reopen` opens the key of now, and is called again when `public`,
        one of `watched` or the successions beside it change. Raises SignerError."""
        self._public = public
        self._watched = (*watched, public, public.parent / FOLDER)
        self._reopen = reopen
        self._signer = reopen()
        self._seen = self._state()

    @classmethod
    def open(cls, path: Path, *, name: str = DEFAULT_NAME) -> "FollowingSigner":
        """The key in the file `path`, as `FileSigner.open`."""
        return cls(path.with_suffix(".vkey"), [path], lambda: FileSigner.open(path, name=name))

    def current(self) -> LogSigner:
        """The signer with the key of now. Any thread may ask. Raises SignerError."""
        if (state := self._state()) != self._seen:
            self._signer, self._seen = self._successor(), state
        return self._signer

    def _successor(self) -> LogSigner:
        before = self._signer
        try:
            signer = self._reopen()
        except SignerError:
            notes = notes_in(self._public.parent)
            if not _follows(self._public, before, notes):
                raise
            before.successions = notes
            return before
        if signer.name != before.name or before.public_key not in key_of(signer).public_keys:
            raise SignerError(
                f"the key of {self._public.name} was replaced by one that no succession links to the one before; put"
                " the key of this installation back"
            )
        return signer

    def _state(self) -> tuple[tuple[int, int] | None, ...]:
        return tuple(_stamp_of(each) for each in self._watched)

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


def _follows(public: Path, before: LogSigner, notes: list[str]) -> bool:
    """Whether the verifier key in the file `public` is of a successor of the key `before`."""
    try:
        key = VerifierKey.parse(public.read_text(encoding="ascii"))
        return key.public_key in successors(before.public_key, before.name, notes)
    except (OSError, ValueError, NoteError):
        return False


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
        raise SignerError(f"{vkey} is not a verifier key; remove it, and it is written again") from error
    if kept == signer.verifier_key:
        return
    try:
        follows = signer.public_key in successors(kept.public_key, signer.name, signer.successions)
    except NoteError as error:
        raise SignerError(
            f"a key succession beside {path.name} does not hold: {error}; restore the succession notes from a backup"
        ) from error
    if kept.name != signer.name or not follows:
        raise SignerError(
            f"{vkey} is not of the key in {path.name}: the key set is an older one than this folder, or another"
            " installation's; take the newest key set of this installation over with: domicile init --keys"
        )
    write_vkey(path, signer.verifier_key)


def write_vkey(path: Path, key: VerifierKey) -> None:
    """Beside the key file `path`, replaced whole. Raises OSError."""
    replace_file(path.with_suffix(".vkey"), f"{key}\n".encode(), PUBLIC)


def draft_pattern(path: Path) -> str:
    """Glob of the drafts of the key file `path`, in its folder."""
    return f".{path.name}.*"


def _create(path: Path, name: str) -> None:
    """Write a new key so that of several processes starting at once, all end up with the same one."""
    make_private_folder(path.parent)
    draft = FileSigner.generate(name).write_draft(path)
    try:
        os.link(draft, path)
    except FileExistsError:
        return
    finally:
        draft.unlink(missing_ok=True)
