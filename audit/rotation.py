"""Rotation of the signing key in a file: the old key introduces the new one in every tree, then makes way.

A gateway that runs on the same folder signs with the new key from its next checkpoint on. One on another host signs
with the old key until it is given the new key set (`domicile init --keys`): both are trusted, by the succession, which
is written into the record too.
"""

import os
from collections.abc import Awaitable, Callable
from pathlib import Path

from audit.anchor_event import KeyRotated
from audit.errors import SignerError
from audit.event_base import ANCHOR_TENANT
from audit.log import AuditLog
from audit.note import VerifierKey
from audit.secret_file import create_secret
from audit.signer import FileSigner, write_vkey
from audit.store import Reader
from audit.succession import FOLDER, digest, file_name, sign_succession, successors

OpenLog = Callable[[FileSigner], Awaitable[AuditLog]]


async def rotate(
    path: Path,
    open_log: OpenLog,
    open_reader: Callable[[], Reader],
    *,
    at: str,
    actor: str,
    reason: str = "scheduled",
    publish: Callable[[str], None] = lambda note: None,
) -> VerifierKey:
    """Put a new key in the place of the one in the file `path`; returns it. `at` is now, RFC 3339.

    Every tree, and the anchor also before its first record, gets one ``log.key_rotated``, under a checkpoint of the old
    key; the new key signs what comes after it. `publish` writes the note of the succession into the record,
    where gateways on other hosts find it.

    Interrupted before the file is replaced, the old key goes on and a later rotation makes another new one. Raises
    AuditError in one of its kinds.
    """
    draft = path.with_name(f"{path.name}.next")
    draft.unlink(missing_ok=True)
    old = FileSigner.open(path)
    if successors(old.public_key, old.name, old.successions):
        raise SignerError(
            f"the key in {path.name} was replaced on another host already; take that host's key set over first:"
            " domicile init --keys"
        )
    new = FileSigner.open(draft, name=old.name)
    note = sign_succession(old.name, old, new, at)
    event = {
        "actor": actor,
        "old_key": str(VerifierKey(old.name, old.public_key)),
        "new_key": str(VerifierKey(new.name, new.public_key)),
        "succession_sha256": digest(note),
    }
    try:
        await _tell(open_log, old, open_reader, event | {"reason": reason})  # closing signs it, by the old key
        publish(note)
        create_secret(path.parent / FOLDER / file_name(note), note.encode())
        os.replace(draft, path)
        write_vkey(path, VerifierKey(new.name, new.public_key))
    except OSError as error:
        raise SignerError(f"the new key cannot be put in place: {error}") from error
    finally:
        draft.unlink(missing_ok=True)
        draft.with_suffix(".vkey").unlink(missing_ok=True)
    return VerifierKey(new.name, new.public_key)


async def _tell(
    open_log: OpenLog, signer: FileSigner, open_reader: Callable[[], Reader], event: dict[str, str]
) -> None:
    async with await open_log(signer) as log:
        reader = open_reader()
        try:
            tenants = {*reader.tenants(), ANCHOR_TENANT}  # gateways on several hosts may begin the anchor at any moment
        finally:
            reader.close()
        for tenant in sorted(tenants):
            await log.append(KeyRotated.model_validate({"tenant": tenant, **event}))
