"""Receipts: what a caller holds of a record, ``tenant/seq/leaf hash`` in one line, and how the log answers for it."""

import re
from dataclasses import dataclass

from audit.checkpoint import Checkpoint, open_checkpoint, origin_of
from audit.errors import AuditError, NoteError, ProofError, VerificationFailed
from audit.merkle import inclusion_proof, leaf_hash, tree_hash, verify_inclusion
from audit.note import VerifierKey
from audit.store import Reader, StoredLeaf

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
            raise AuditError("a receipt reads tenant/seq/hash, the hash in 64 hexadecimal digits")
        return cls(match["tenant"], int(match["seq"]), bytes.fromhex(match["hash"]))


@dataclass(frozen=True, slots=True)
class Inclusion:
    """Proof that a record is under a signed checkpoint (RFC 6962 §2.1.1); `proof` are hashes, nearest first."""

    leaf: StoredLeaf
    checkpoint: Checkpoint
    proof: tuple[bytes, ...]


def verify_receipt(reader: Reader, key: VerifierKey, receipt: Receipt) -> Inclusion:
    """Prove that the record of `receipt` is in the log and under a checkpoint that `key` signed.

    Raises VerificationFailed, saying what is not so, and StoreError if the data cannot be read.
    """
    leaf = next(reader.leaves(receipt.tenant, receipt.seq), None)
    if leaf is None or leaf.seq != receipt.seq:
        raise VerificationFailed(f"the log has no record {receipt.seq} of tenant {receipt.tenant}")
    if leaf_hash(leaf.payload) != receipt.leaf_hash:
        raise VerificationFailed(f"record {receipt.seq} is not the one that the receipt was given for")
    checkpoint = _covering(reader, key, receipt)

    def range_hash(start: int, end: int) -> bytes:
        return tree_hash(reader.leaf_hashes(receipt.tenant, start, end))

    proof = inclusion_proof(receipt.seq, checkpoint.size, range_hash)
    try:
        verify_inclusion(receipt.leaf_hash, receipt.seq, checkpoint.size, proof, checkpoint.root)
    except ProofError as error:
        raise VerificationFailed(
            f"record {receipt.seq} is not under the checkpoint of size {checkpoint.size}: the log was changed"
        ) from error
    return Inclusion(leaf, checkpoint, tuple(proof))


def _covering(reader: Reader, key: VerifierKey, receipt: Receipt) -> Checkpoint:
    """The first checkpoint over the record: the shortest proof."""
    for _, size, note in reader.checkpoints(receipt.tenant):
        if size <= receipt.seq:
            continue
        try:
            checkpoint = open_checkpoint(note, origin_of(key.name, receipt.tenant), key.public_key)
        except NoteError as error:
            raise VerificationFailed(f"the checkpoint of size {size} does not hold: {error}") from error
        if checkpoint.size > receipt.seq:
            return checkpoint
    raise VerificationFailed(f"record {receipt.seq} is in the log, but not yet under a signed checkpoint")
