"""Receipts: a record's reference in one line, ``tenant/seq/leaf hash``, and its check against the log."""

import re
from dataclasses import dataclass
from functools import partial

from audit.errors import AuditError, NoteError, ProofError, StoreError, VerificationFailed
from audit.storage.store import Reader, StoredLeaf
from audit.storage.tiles import Folder, TiledTree
from audit.tree.merkle import RangeHash, inclusion_proof, leaf_hash, tree_hash, verify_inclusion
from audit.tree.note import VerifierKey
from audit.tree.tlog_checkpoint import Checkpoint, open_checkpoint, origin_of

_RECEIPT = re.compile(
    r"(?P<tenant>[a-z0-9_][a-z0-9_-]{0,62})/(?P<seq>0|[1-9][0-9]{0,18})/(?P<hash>[0-9a-f]{64})", re.ASCII
)


@dataclass(frozen=True, slots=True)
class Receipt:
    """`seq` is the index of the leaf in its tenant's tree, `leaf_hash` its RFC 6962 hash (32 bytes)."""

    tenant: str
    seq: int
    leaf_hash: bytes

    def __str__(self) -> str:
        return f"{self.tenant}/{self.seq}/{self.leaf_hash.hex()}"

    @classmethod
    def parse(cls, text: str) -> "Receipt":
        """Raises AuditError if `text` is no receipt."""
        match = _RECEIPT.fullmatch(text.strip())
        if match is None:
            raise AuditError("this is not a receipt; give tenant/seq/hash, the hash in 64 hexadecimal digits")
        return cls(match["tenant"], int(match["seq"]), bytes.fromhex(match["hash"]))


@dataclass(frozen=True, slots=True)
class Inclusion:
    """Proof that a record is under a signed checkpoint (RFC 6962 §2.1.1); `proof` are hashes, nearest first."""

    leaf: StoredLeaf
    checkpoint: Checkpoint
    proof: tuple[bytes, ...]


def verify_receipt(reader: Reader, key: VerifierKey, receipt: Receipt, tiles: Folder | None = None) -> Inclusion:
    """Prove that the record of `receipt` is in the log and under a checkpoint that `key` signed.

    With the published `tiles` of its tree over the record, the proof reads a few of them; otherwise every leaf hash.
    Raises VerificationFailed, saying what is not so, and StoreError if the data cannot be read.
    """
    leaf = next(reader.leaves(receipt.tenant, receipt.seq, receipt.seq + 1), None)
    if leaf is None or leaf.seq != receipt.seq:
        raise VerificationFailed(
            f"the log has no record {receipt.seq} of tenant {receipt.tenant}; check that the receipt is of this log"
        )
    held = leaf_hash(leaf.payload) if leaf.payload else leaf.leaf_hash  # an expired record has its hash alone
    if held != receipt.leaf_hash:
        raise VerificationFailed(
            f"record {receipt.seq} is not the one that the receipt was given for"
            "; keep the receipt, and run `domicile audit verify`"
        )
    range_hash: RangeHash = partial(_range_hash, reader, receipt.tenant)
    published = _published(key, receipt, tiles)
    if tiles is not None and published is not None:
        range_hash = TiledTree(tiles, published.size).range_hash
    checkpoint = published or _covering(reader, key, receipt)
    try:
        proof = inclusion_proof(receipt.seq, checkpoint.size, range_hash)
        verify_inclusion(receipt.leaf_hash, receipt.seq, checkpoint.size, proof, checkpoint.root)
    except ProofError as error:
        raise VerificationFailed(
            f"record {receipt.seq} is not under the checkpoint of size {checkpoint.size}, so the log was "
            "changed; keep the receipt and a copy of the log"
        ) from error
    except OSError as error:
        raise StoreError(f"a published tile cannot be read: {error}; restore it, or use the log itself") from error
    return Inclusion(leaf, checkpoint, tuple(proof))


def _range_hash(reader: Reader, tenant: str, start: int, end: int) -> bytes:
    return tree_hash(reader.leaf_hashes(tenant, start, end))


def _published(key: VerifierKey, receipt: Receipt, tiles: Folder | None) -> Checkpoint | None:
    """The checkpoint that tiles were published under, if it is over the record."""
    note = None if tiles is None else tiles.checkpoint()
    if note is None:
        return None
    try:
        checkpoint = open_checkpoint(note, origin_of(key.name, receipt.tenant), key.public_keys)
    except NoteError as error:
        raise VerificationFailed(
            f"the published checkpoint does not hold: {error}; check the key given by --public-key"
        ) from error
    return checkpoint if checkpoint.size > receipt.seq else None


def _covering(reader: Reader, key: VerifierKey, receipt: Receipt) -> Checkpoint:
    """The first checkpoint over the record: the shortest proof."""
    for _, size, note in reader.checkpoints(receipt.tenant):
        if size <= receipt.seq:
            continue
        try:
            checkpoint = open_checkpoint(note, origin_of(key.name, receipt.tenant), key.public_keys)
        except NoteError as error:
            raise VerificationFailed(
                f"the checkpoint of size {size} does not hold: {error}; check the key given by --public-key"
            ) from error
        if checkpoint.size > receipt.seq:
            return checkpoint
    raise VerificationFailed(
        f"record {receipt.seq} is in the log, but not yet under a signed checkpoint"
        "; try again when the next checkpoint is signed"
    )
