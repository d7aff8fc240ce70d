"""The succession of a log's keys: how a verifier who holds one of them comes to trust the others, and no stranger.

A succession is a signed note of four lines, ``<log name> key succession``, the old verifier key, the new one and the
time, signed by both under the name of the log. Its SHA-256 is in a leaf of every tree (``log.key_rotated``) that is
still under a checkpoint of the old key. A holder of the old key follows it forward, a holder of the new one
back; a key that no link reaches came from nowhere and is refused.
"""

from collections.abc import Iterable
from dataclasses import replace
from hashlib import sha256
from pathlib import Path

from audit.errors import NoteError
from audit.files.secret_file import create_secret
from audit.tree.note import NoteSigner, VerifierKey, open_note, sign_note

FOLDER = "succession"
"""Beside the log: one note a rotation."""

_WHAT = "key succession"


def sign_succession(name: str, old: NoteSigner, new: NoteSigner, at: str) -> str:
    """The note, signed by both. Raises SignerError."""
    keys = (VerifierKey(name, old.public_key), VerifierKey(name, new.public_key))
    text = f"{name} {_WHAT}\n{keys[0]}\n{keys[1]}\n{at}\n"
    first, second = sign_note(text, name, old), sign_note(text, name, new)
    return first + second.removeprefix(f"{text}\n")


def open_succession(note: str, name: str) -> tuple[bytes, bytes]:
    """The old and the new public key. Raises NoteError if it is of another log or not signed by both."""
    lines = note.split("\n")
    if len(lines) < 4 or lines[0] != f"{name} {_WHAT}":
        raise NoteError(f"the note is no key succession of {name}")
    old, new = VerifierKey.parse(lines[1]), VerifierKey.parse(lines[2])
    if (old.name, new.name) != (name, name) or old.public_key == new.public_key:
        raise NoteError("a key succession leads from one key of the log to another")
    for key in (old, new):
        open_note(note, [key])
    return old.public_key, new.public_key


def digest(note: str) -> str:
    return sha256(note.encode()).hexdigest()


def with_successors(key: VerifierKey, notes: Iterable[str]) -> VerifierKey:
    """`key` and every key of its name that the successions `notes` link to it. Raises NoteError for one that does not
    hold: who keeps such a note beside a log has something to explain."""
    links = [open_succession(note, key.name) for note in notes]
    known = [key.public_key]
    while fresh := [
        there
        for one, other in links
        for here, there in ((one, other), (other, one))
        if here in known and there not in known
    ]:
        known.append(fresh[0])
    return replace(key, kin=tuple(known[1:]))


def successors(public_key: bytes, name: str, notes: Iterable[str]) -> list[bytes]:
    """The keys that took over from `public_key`, one after the other, the newest last. Raises NoteError."""
    links = dict(open_succession(note, name) for note in notes)
    found: list[bytes] = []
    while (following := links.get(found[-1] if found else public_key)) is not None and following not in found:
        found.append(following)
    return found


def keep_notes(folder: Path, name: str, notes: Iterable[str], *, known: Iterable[bytes]) -> bool:
    """Write those of `notes` that are not in `folder` yet and that link to a key of `known`; whether there were any.

    A note of another log, or one that neither leads from a known key nor to one, is left out. Raises NoteError for a
    note whose signatures do not hold, OSError.
    """
    here, trusted = set(notes_in(folder)), set(known)
    waiting = {note: open_succession(note, name) for note in notes if note not in here}
    written = False
    while linked := [note for note, keys in waiting.items() if trusted.intersection(keys)]:
        for note in linked:
            trusted.update(waiting.pop(note))
            create_secret(folder / FOLDER / file_name(note), note.encode())
            written = True
    return written


def file_name(note: str) -> str:
    """File name of a succession's note: the day it was made, and the id of the new key."""
    lines = note.split("\n")
    return f"{lines[3][:10]}-{VerifierKey.parse(lines[2]).key_id.hex()}.note"


def notes_in(folder: Path) -> list[str]:
    """The successions beside a log in `folder`, in the order of their names."""
    return [file.read_text(encoding="utf-8") for file in sorted((folder / FOLDER).glob("*.note"))]
