"""The anchor tree: its leaves are the checkpoints of all other trees.

Witnesses and time-stamping authorities need to see its checkpoint alone, so what they cost does not grow with tenants.
From a record the proof leads over the tenant's checkpoint and its leaf in the anchor tree to the anchor's checkpoint.
"""

import asyncio
import time
from dataclasses import dataclass, field
from hashlib import sha256

from audit.errors import NoteError, ProofError, VerificationFailed
from audit.events.anchor import AnchorLinked
from audit.events.base import ANCHOR_TENANT
from audit.events.leaf import decode_leaf
from audit.events.privacy import CheckpointAnchored
from audit.keys.signer import key_of
from audit.log.receipt import Receipt
from audit.private.audit_context import AuditContext
from audit.storage.store import Reader
from audit.tree.merkle import inclusion_proof, leaf_hash, tree_hash, verify_inclusion
from audit.tree.note import VerifierKey
from audit.tree.tlog_checkpoint import Checkpoint, open_checkpoint, origin_of

LINK_EVERY_S = 3600.0
"""How often the log's own tree vouches for the anchor, while that grows."""


@dataclass(frozen=True, slots=True)
class Anchored:
    """`leaf` number `seq` of the anchor tree vouches for a tenant's checkpoint; `note` is the anchor's own."""

    note: str
    checkpoint: Checkpoint
    leaf: bytes
    seq: int
    proof: tuple[bytes, ...]


def digest(checkpoint: Checkpoint) -> str:
    return sha256(checkpoint.text().encode()).hexdigest()


@dataclass(slots=True)
class Anchors:
    """What is anchored already, as far as it was read: the first `size` leaves. Kept from one turn to the next.

    `linked_at` is the monotonic time of the last `system.anchored` of this process.
    """

    size: int = 0
    linked_at: float | None = None
    digests: set[str] = field(default_factory=set)


async def anchor(context: AuditContext, anchors: Anchors | None = None) -> list[Receipt]:
    """Record the last checkpoint of every tree that was signed again since it was last anchored.

    The log's own tree records how far the anchor reaches, at most every LINK_EVERY_S in one process.
    """
    anchors = anchors or Anchors()
    fresh = await asyncio.to_thread(_fresh, context, anchors)
    receipts = [await context.record(CheckpointAnchored(checkpoint_sha256=found)) for found in fresh]
    if receipts and (anchors.linked_at is None or time.monotonic() - anchors.linked_at >= LINK_EVERY_S):
        last = receipts[-1]
        await context.record(AnchorLinked(size=last.seq + 1, leaf_hash=last.leaf_hash.hex()))
        anchors.linked_at = time.monotonic()
    return receipts


def _fresh(context: AuditContext, anchors: Anchors) -> list[str]:
    key = key_of(context.signer)
    with context.reading() as reader:
        anchors.digests.update(anchored_digests(reader, anchors.size))
        if ANCHOR_TENANT in reader.tenants():
            anchors.size = reader.head(ANCHOR_TENANT)[0]
        fresh = []
        for tenant in reader.tenants():
            last = None if tenant == ANCHOR_TENANT else reader.last_checkpoint(tenant)
            if last is not None:
                found = digest(open_checkpoint(last.note, origin_of(key.name, tenant), key.public_keys))
                if found not in anchors.digests:
                    fresh.append(found)
    return fresh


def prove(reader: Reader, key: VerifierKey, checkpoint: Checkpoint) -> Anchored:
    """That the anchor tree vouches for `checkpoint`.

    Raises VerificationFailed if it does not, or not yet under a checkpoint of its own.
    """
    wanted = digest(checkpoint)
    origin = origin_of(key.name, ANCHOR_TENANT)
    seq = anchored_digests(reader).get(wanted)
    if seq is None:
        raise VerificationFailed(
            f"the checkpoint of {checkpoint.origin} of size {checkpoint.size} is not anchored"
            "; run `domicile audit anchor`"
        )
    for one in reader.checkpoints(ANCHOR_TENANT):
        if one.size > seq:
            try:
                over = open_checkpoint(one.note, origin, key.public_keys)
            except NoteError as error:
                raise VerificationFailed(
                    f"the anchor's checkpoint of size {one.size} does not hold: {error}"
                    "; check the key given by --public-key"
                ) from error
            proof = inclusion_proof(
                seq, over.size, lambda start, end: tree_hash(reader.leaf_hashes(ANCHOR_TENANT, start, end))
            )
            leaf = next(reader.leaves(ANCHOR_TENANT, seq, seq + 1)).payload
            found = Anchored(one.note, over, leaf, seq, tuple(proof))
            verify_anchored(found, checkpoint, key)
            return found
    raise VerificationFailed(
        f"the leaf for the checkpoint of {checkpoint.origin} is not under a checkpoint yet"
        "; try again when the next checkpoint is signed"
    )


def verify_anchored(anchored: Anchored, checkpoint: Checkpoint, key: VerifierKey) -> None:
    """Raises VerificationFailed unless the anchor's signed checkpoint vouches for `checkpoint`."""
    try:
        over = open_checkpoint(anchored.note, origin_of(key.name, ANCHOR_TENANT), key.public_keys)
        verify_inclusion(leaf_hash(anchored.leaf), anchored.seq, over.size, anchored.proof, over.root)
    except (NoteError, ProofError) as error:
        raise VerificationFailed(f"the anchor does not hold: {error}; run `domicile audit verify`") from error
    event = decode_leaf(anchored.leaf).event
    if not isinstance(event, CheckpointAnchored) or event.checkpoint_sha256 != digest(checkpoint):
        raise VerificationFailed(
            f"the anchor vouches for another checkpoint than that of {checkpoint.origin}; run `domicile audit verify`"
        )


def anchored_digests(reader: Reader, start: int = 0) -> dict[str, int]:
    """What is anchored by the leaves from `start` on, and in which."""
    if ANCHOR_TENANT not in reader.tenants():
        return {}
    found: dict[str, int] = {}
    for stored in reader.leaves(ANCHOR_TENANT, start):
        event = decode_leaf(stored.payload).event
        if isinstance(event, CheckpointAnchored):
            found.setdefault(event.checkpoint_sha256, stored.seq)
    return found
