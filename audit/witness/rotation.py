"""Rotation of the signing key: the old key introduces the new one in every tree, then makes way.

A gateway that runs on the same folder signs with the new key from its next checkpoint on. One on another host signs
with the old key until it is given the new key set (`domicile init --keys`): both are trusted, by the succession, which
is written into the record too.

Where the two keys are kept is the caller's to say (`Replacement`): in files, or in a key service.
"""

import os
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

from audit.errors import SignerError
from audit.events.anchor import KeyRotated
from audit.events.base import ANCHOR_TENANT
from audit.files.folder_lock import FolderInUse, lock_folder_now
from audit.files.new_file import describe_error, sync_folder
from audit.files.secret_file import create_secret, read_secret
from audit.keys.signer import FileSigner, LogSigner, draft_pattern, parse_signer, write_vkey
from audit.keys.succession import FOLDER, digest, file_name, sign_succession, successors
from audit.log.audit_log import AuditLog
from audit.storage.store import Reader
from audit.tree.note import VerifierKey

OpenLog = Callable[[LogSigner], Awaitable[AuditLog]]


@dataclass(frozen=True, slots=True)
class Replacement:
    """The key that signs and the one that is to take over from it.

    `put_in_place` makes the new key the one that signs, once the record names it; it raises OSError. `discard` removes
    what a rotation leaves that ended before its succession was published.
    """

    old: LogSigner
    new: LogSigner
    put_in_place: Callable[[], None]
    discard: Callable[[], None] = lambda: None


def in_file(path: Path, old: LogSigner | None = None) -> Replacement:
    """By a new key in the file `path`; `old` is the one in the file, or one that is kept elsewhere.

    To be called under the lock of the log's folder, which `rotate` holds. Raises SignerError.
    """
    if old is None:
        _settle_drafts(path)
        old = FileSigner.open(path)
    new = FileSigner.generate(old.name)
    try:
        draft = new.write_draft(path)  # before the record names the key: a full disk must not lose it then
    except OSError as error:
        raise SignerError(
            f"the new key cannot be written: {describe_error(error, path.parent)}; let this process write there"
        ) from error

    def put_in_place() -> None:
        os.replace(draft, path)
        sync_folder(path.parent)
        write_vkey(path, new.verifier_key)

    return Replacement(old, new, put_in_place, lambda: draft.unlink(missing_ok=True))


def _settle_drafts(path: Path) -> None:
    """Finish a rotation that was interrupted after the succession was published: the draft that holds the successor of
    the key in `path` takes its place. Other drafts are removed. Raises SignerError."""
    try:
        for draft in path.parent.glob(draft_pattern(path)):
            now = FileSigner.open(path)
            try:
                kept = parse_signer(read_secret(draft))
            except (SignerError, OSError):
                kept = None
            if kept is not None and kept.public_key in successors(now.public_key, now.name, now.successions):
                os.replace(draft, path)
                sync_folder(path.parent)
                write_vkey(path, kept.verifier_key)
            else:
                draft.unlink(missing_ok=True)
    except OSError as error:
        raise SignerError(
            f"an interrupted rotation cannot be finished: {error}; let this process write to the data folder"
        ) from error


async def rotate(
    folder: Path,
    replace_by: Callable[[], Replacement],
    open_log: OpenLog,
    open_reader: Callable[[], Reader],
    *,
    at: str,
    actor: str,
    reason: str = "scheduled",
    publish: Callable[[str], None] = lambda note: None,
) -> VerifierKey:
    """Let the new key take over; returns it. `folder` holds the log, `at` is now, RFC 3339. `replace_by` is called once
    no other process replaces the key of this folder.

    Every tree, and the anchor also before its first record, gets one ``log.key_rotated``, under a checkpoint of the old
    key; the new key signs what comes after it. `publish` writes the note of the succession into the record,
    where gateways on other hosts find it.

    Interrupted before the succession is published, the old key stays in use and a later rotation takes another new one;
    after that, a later rotation first finishes this one. Raises AuditError in one of its kinds.
    """
    try:
        with lock_folder_now(folder):
            return await _rotate_alone(folder, replace_by(), open_log, open_reader, at, actor, reason, publish)
    except FolderInUse as error:
        raise SignerError(
            f"another rotation of the signing key is under way in {folder}; wait until it has ended, and run this one"
            " again only if the key is to be replaced once more"
        ) from error
    except OSError as error:
        raise SignerError(
            f"the new key cannot be put in place: {error}; let this process write to the data folder"
        ) from error


async def _rotate_alone(
    folder: Path,
    replacement: Replacement,
    open_log: OpenLog,
    open_reader: Callable[[], Reader],
    at: str,
    actor: str,
    reason: str,
    publish: Callable[[str], None],
) -> VerifierKey:
    old, new = replacement.old, replacement.new
    try:
        if successors(old.public_key, old.name, old.successions):
            raise SignerError(
                "the key that signs here was replaced on another host already; take that host's key set over first:"
                " domicile init --keys"
            )
        note = sign_succession(old.name, old, new, at)
        event = {
            "actor": actor,
            "old_key": str(old.verifier_key),
            "new_key": str(new.verifier_key),
            "succession_sha256": digest(note),
        }
        await _record_rotation(
            open_log, old, open_reader, event | {"reason": reason}
        )  # closing signs it, by the old key
        publish(note)
    except BaseException:
        replacement.discard()
        raise
    create_secret(folder / FOLDER / file_name(note), note.encode())  # from here on the new key is not given up
    replacement.put_in_place()
    return new.verifier_key


async def _record_rotation(
    open_log: OpenLog, signer: LogSigner, open_reader: Callable[[], Reader], event: dict[str, str]
) -> None:
    async with await open_log(signer) as log:
        reader = open_reader()
        try:
            tenants = {*reader.tenants(), ANCHOR_TENANT}  # gateways on several hosts may begin the anchor at any moment
        finally:
            reader.close()
        for tenant in sorted(tenants):
            await log.append(KeyRotated.model_validate({"tenant": tenant, **event}))
