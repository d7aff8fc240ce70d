"""What vouches for the log from outside it, and how that is proven in an evidence pack.

    record ─> tenant's checkpoint ─> leaf in the anchor tree ─> anchor's checkpoint ─> { witness, timestamp }

Witnessed checkpoints and timestamp tokens are in folders beside the log, as `domicile audit witness submit` and
`domicile audit timestamp` put them there.
"""

import json
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from audit.errors import NoteError
from audit.events.base import ANCHOR_TENANT
from audit.log.walk import parsed
from audit.storage.attested_files import TIMESTAMPS, WITNESSED, AttestedFile
from audit.storage.store import Reader, SignedCheckpoint
from audit.tree.cosignature import cosigners
from audit.tree.merkle import inclusion_proof, tree_hash
from audit.tree.note import VerifierKey
from audit.tree.tlog_checkpoint import Checkpoint, open_checkpoint, origin_of
from audit.witness.anchor import digest

MAX_LISTED = 24


@dataclass(frozen=True, slots=True)
class AnchorAttestation:
    """A checkpoint of the anchor tree with an attestation by another party: `note` with cosignatures, or with a `token`
    (DER, RFC 3161) over its text."""

    note: str
    token: bytes | None = None


def attestations(files: Sequence[AttestedFile]) -> list[AnchorAttestation]:
    """Those in the files of other parties; unchecked, the verifier checks them."""
    by_path = {one.path: one for one in files}
    noted = [one for one in files if one.folder == WITNESSED and one.name.startswith("_anchor-")]
    found = [AnchorAttestation(one.text) for one in noted]
    for token in files:
        note = by_path.get(f"{TIMESTAMPS}/{Path(token.name).stem}.note")
        if token.folder == TIMESTAMPS and token.name.endswith(".tsr") and note is not None:
            found.append(AnchorAttestation(note.text, token.content))
    return found


def last_stamped(folder: Path) -> float | None:
    """When the last token was put beside the log in `folder`, in seconds since the epoch; None if there is none."""
    return max((token.stat().st_mtime for token in (folder / TIMESTAMPS).glob("*.tsr")), default=None)


def anchor_proofs(
    reader: Reader, key: VerifierKey, tenant: str, first: int, end: int, size: int, given: list[AnchorAttestation]
) -> dict[str, str | bytes]:
    """The files that lead from a checkpoint over the pack's records to what vouches for it; none if nothing does.

    The checkpoint is the last anchored one whose root the verifier rebuilds: of a size within the range, or `size`.
    """
    if ANCHOR_TENANT not in reader.tenants():
        return {}
    leaves = {
        str(parsed(stored.payload).get("checkpoint_sha256")): (stored.seq, stored.payload)
        for stored in reader.leaves(ANCHOR_TENANT)
        if b'"checkpoint.anchored"' in stored.payload
    }
    for note, checkpoint in _rebuilt(reader, key, tenant, first, end, size):
        if (found := leaves.get(digest(checkpoint))) is not None:
            return _files(reader, key, note, *found, given)
    return {}


def attested_by(reader: Reader, given: list[AnchorAttestation]) -> list[tuple[str, str, str, int]]:
    """Who vouched, by what, when, and for how many leaves of the anchor, as the log has it: the last timestamps, what
    failed since, and the witnesses of `given`."""
    if ANCHOR_TENANT not in reader.tenants():
        return []
    rows: deque[tuple[str, str, str, int]] = deque(maxlen=MAX_LISTED)
    failed: list[dict[str, Any]] = []
    for stored in reader.leaves(ANCHOR_TENANT):
        if b'"checkpoint.timestamp' not in stored.payload:
            continue
        event = parsed(stored.payload)
        if event.get("type") == "checkpoint.timestamped":
            rows.append((str(event["tsa"]), "timestamp (RFC 3161)", str(event["gen_time"]), event["size"]))
            failed = []
        else:
            failed.append(event)
    if failed:
        last = failed[-1]
        what = f"no timestamp since, {len(failed)} attempts failed: {last['reason']}"
        rows.append((str(last["tsa"]), what, str(last["ts"]), last["size"]))
    for voucher in given:
        text, size = voucher.note.partition("\n\n")[0], int(voucher.note.splitlines()[1])
        rows.extend((name, "cosignature", at, size) for name, at in cosigners(voucher.note, text.splitlines()[0]))
    return list(rows)


def _rebuilt(
    reader: Reader, key: VerifierKey, tenant: str, first: int, end: int, size: int
) -> Iterator[tuple[str, Checkpoint]]:
    """Newest first."""
    fit: list[SignedCheckpoint] = [
        one for one in reader.checkpoints(tenant) if first < one.size <= end or one.size == size
    ]
    for one in reversed(fit):
        try:
            yield one.note, open_checkpoint(one.note, origin_of(key.name, tenant), key.public_keys)
        except NoteError:
            continue  # `audit verify` is to complain


def _files(
    reader: Reader, key: VerifierKey, note: str, seq: int, leaf: bytes, given: list[AnchorAttestation]
) -> dict[str, str | bytes]:
    files: dict[str, str | bytes] = {}
    told: list[dict[str, Any]] = []
    last = reader.last_checkpoint(ANCHOR_TENANT)
    for voucher in [*([] if last is None else [AnchorAttestation(last.note)]), *given]:
        try:
            over = open_checkpoint(voucher.note, origin_of(key.name, ANCHOR_TENANT), key.public_keys)
        except NoteError:
            continue
        if over.size <= seq or over.size > reader.head(ANCHOR_TENANT)[0]:
            continue
        proof = inclusion_proof(
            seq, over.size, lambda start, end: tree_hash(reader.leaf_hashes(ANCHOR_TENANT, start, end))
        )
        one: dict[str, Any] = {"note": voucher.note, "proof": [node.hex() for node in proof]}
        if voucher.token is not None:
            one["token"] = f"proofs/timestamps/{sha256(voucher.token).hexdigest()[:16]}.tsr"
            files[one["token"]] = voucher.token
        told.append(one)
    if told:
        body = {"checkpoint": note, "seq": seq, "leaf": leaf.decode(), "vouchers": told}
        files["proofs/anchor.json"] = json.dumps(body)
    return files
