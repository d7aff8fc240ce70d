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
from audit.files.secret_file import create_secret
from audit.keys.signer import FileSigner, LogSigner, write_vkey
from audit.keys.succession import FOLDER, digest, file_name, sign_succession, successors
from audit.log.audit_log import AuditLog
from audit.storage.store import Reader
from audit.tree.note import VerifierKey

OpenLog = Callable[[LogSigner], Awaitable[AuditLog]]


@dataclass(frozen=True, slots=True)
class Replacement:
    """The key that signs and the one that is to take over from it.

    `put_in_place` makes the new key the one that signs, once the record names it; it raises OSError. `discard` removes
    what a rotation leaves that is not needed, however it ended.
    """

    old: LogSigner
    new: LogSigner
    put_in_place: Callable[[], None]
    discard: Callable[[], None] = lambda: None


def in_file(path: Path, old: LogSigner | None = None) -> Replacement:
    """By a new key in the file `path`; `old` is the one in the file, or one that is kept elsewhere.

    Raises SignerError.
    """
    draft = path.with_name(f"{path.name}.next")

    def discard() -> None:
        draft.unlink(missing_ok=True)
        draft.with_suffix(".vkey").unlink(missing_ok=True)

    discard()
    old = FileSigner.open(path) if old is None else old
    new = FileSigner.open(draft, name=old.name)

    def put_in_place() -> None:
        os.replace(draft, path)
        write_vkey(path, new.verifier_key)

    return Replacement(old, new, put_in_place, discard)


async def rotate(
    folder: Path,
    replacement: Replacement,
    open_log: OpenLog,
    open_reader: Callable[[], Reader],
    *,
    at: str,
    actor: str,
    reason: str = "scheduled",
    publish: Callable[[str], None] = lambda note: None,
) -> VerifierKey:
    """Let the new key take over; returns it. `folder` holds the log, `at` is now, RFC 3339.

    Every tree, and the anchor also before its first record, gets one ``log.key_rotated``, under a checkpoint of the old
    key; the new key signs what comes after it. `publish` writes the note of the succession into the record,
    where gateways on other hosts find it.

    Interrupted before the new key is in place, the old key goes on and a later rotation takes another new one. Raises
    AuditError in one of its kinds.
    """
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
        create_secret(folder / FOLDER / file_name(note), note.encode())
        replacement.put_in_place()
    except OSError as error:
        raise SignerError(
            f"the new key cannot be put in place: {error}; let this process write to the data folder"
        ) from error
    finally:
        replacement.discard()
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
