"""RFC 6962 Merkle tree: hashes, the frontier that grows it, inclusion and consistency proofs.

Pure functions over bytes; storage lives in `audit.storage.store`, signing in `audit.tree.tlog_checkpoint`. Proofs are
planned as ranges of leaves first and hashed second, so the holder of the hashes (a list, a table, tiles) answers for
each range.
"""

from collections.abc import Callable, Iterable, Sequence
from hashlib import sha256

from audit.errors import ProofError

HASH_SIZE = 32
_SIZES = frozenset({HASH_SIZE})
EMPTY_ROOT = sha256(b"").digest()  # RFC 6962 §2.1: the root of no leaves

Range = tuple[int, int]
RangeHash = Callable[[int, int], bytes]
"""Root of the leaves [start, end)."""


def leaf_hash(entry: bytes) -> bytes:
    """Hash of one log entry, domain-separated from nodes (RFC 6962 §2.1)."""
    return sha256(b"\x00" + entry).digest()


def node_hash(left: bytes, right: bytes) -> bytes:
    return sha256(b"\x01" + left + right).digest()


class Frontier:
    """The right edge of a growing tree: the roots of its perfect subtrees, largest first ("compact range").

    One hash for each set bit of the size, so 32 bytes times log2(size) are all that appending needs.
    """

    __slots__ = ("_roots", "size")

    def __init__(self, size: int = 0, roots: Iterable[bytes] = ()) -> None:
        self.size = size
        self._roots = list(roots)
        if size < 0 or len(self._roots) != size.bit_count() or not _SIZES.issuperset(map(len, self._roots)):
            raise ProofError(f"not the frontier of a tree of {size} leaves")

    @classmethod
    def from_bytes(cls, size: int, data: bytes) -> "Frontier":
        """Read what `bytes()` gave. Raises ProofError if the length does not fit the size."""
        return cls(size, [data[at : at + HASH_SIZE] for at in range(0, len(data), HASH_SIZE)])

    def __bytes__(self) -> bytes:
        return b"".join(self._roots)

    def copy(self) -> "Frontier":
        return Frontier(self.size, self._roots)

    def append(self, leaf: bytes) -> None:
        """Add the hash of one leaf; merges the subtrees that it completes (amortised one node hash)."""
        size = self.size
        while size & 1:
            leaf = node_hash(self._roots.pop(), leaf)
            size >>= 1
        self._roots.append(leaf)
        self.size += 1

    def root(self) -> bytes:
        """Merkle tree hash of all leaves so far."""
        if not self._roots:
            return EMPTY_ROOT
        root = self._roots[-1]
        for left in reversed(self._roots[:-1]):
            root = node_hash(left, root)
        return root


def tree_hash(leaves: Iterable[bytes]) -> bytes:
    """Root over the given leaf hashes (RFC 6962 §2.1, MTH)."""
    frontier = Frontier()
    for leaf in leaves:
        frontier.append(leaf)
    return frontier.root()


def inclusion_ranges(index: int, size: int) -> list[Range]:
    """The ranges whose roots prove leaf `index` in a tree of `size`, nearest first (RFC 6962 §2.1.1, PATH).

    Raises ProofError if the leaf is not in the tree.
    """
    if not 0 <= index < size:
        raise ProofError(f"leaf {index} is not in a tree of {size}")
    ranges: list[Range] = []
    start, end = 0, size
    while end - start > 1:
        middle = start + _split(end - start)
        if index < middle:
            ranges.append((middle, end))
            end = middle
        else:
            ranges.append((start, middle))
            start = middle
    return ranges[::-1]


def consistency_ranges(old: int, new: int) -> list[Range]:
    """The ranges whose roots prove that a tree of `new` leaves extends one of `old` (RFC 6962 §2.1.2, PROOF).

    Raises ProofError unless 0 < old <= new.
    """
    if not 0 < old <= new:
        raise ProofError(f"no consistency proof leads from {old} to {new} leaves")
    ranges: list[Range] = []
    start, end = 0, new
    while old != end:
        middle = start + _split(end - start)
        if old <= middle:
            ranges.append((middle, end))
            end = middle
        else:
            ranges.append((start, middle))
            start = middle
    if start:  # the old tree is not itself a node on the path, so its last subtree must be given
        ranges.append((start, end))
    return ranges[::-1]


def _split(size: int) -> int:
    """The largest power of two below `size`."""
    return 1 << (size - 1).bit_length() - 1


def inclusion_proof(index: int, size: int, range_hash: RangeHash) -> list[bytes]:
    return [range_hash(start, end) for start, end in inclusion_ranges(index, size)]


def consistency_proof(old: int, new: int, range_hash: RangeHash) -> list[bytes]:
    return [range_hash(start, end) for start, end in consistency_ranges(old, new)]


def root_from_inclusion(leaf: bytes, index: int, size: int, proof: Sequence[bytes]) -> bytes:
    """Fold `proof` from `leaf` at `index` up to the root of a tree of `size` leaves.

    RFC 9162 §2.1.3.2. Raises ProofError if a hash has the wrong size or the
    proof is too long, too short or out of range.
    """
    if any(len(h) != HASH_SIZE for h in (leaf, *proof)):
        raise ProofError(f"every hash must be {HASH_SIZE} bytes")
    if not 0 <= index < size:
        raise ProofError(f"leaf {index} is not in a tree of {size}")
    node, last = index, size - 1
    root = leaf
    for sibling in proof:
        if last == 0:
            raise ProofError("proof is longer than the path to the root")
        if node & 1 or node == last:
            root = node_hash(sibling, root)
            while not node & 1 and node:  # climb over levels where this node is a lone right edge
                node, last = node >> 1, last >> 1
        else:
            root = node_hash(root, sibling)
        node, last = node >> 1, last >> 1
    if last:
        raise ProofError("proof ends below the root")
    return root


def verify_inclusion(leaf: bytes, index: int, size: int, proof: Sequence[bytes], root: bytes) -> None:
    """Raises ProofError unless `proof` leads from `leaf` at `index` to `root`."""
    if root_from_inclusion(leaf, index, size, proof) != root:
        raise ProofError("proof leads to another root")


def verify_consistency(old: int, new: int, proof: Sequence[bytes], old_root: bytes, new_root: bytes) -> None:
    """Raises ProofError unless `proof` shows that the tree of `new` leaves extends that of `old`.

    RFC 9162 §2.1.4.2. An empty old tree is refused: everything extends nothing, so such a proof proves nothing.
    """
    if not 0 < old <= new:
        raise ProofError(f"no consistency proof leads from {old} to {new} leaves")
    if old == new:
        if proof or old_root != new_root:
            raise ProofError("trees of one size must have one root and need no proof")
        return
    if any(len(h) != HASH_SIZE for h in (old_root, new_root, *proof)):
        raise ProofError(f"every hash must be {HASH_SIZE} bytes")
    path = list(proof)
    if old & (old - 1) == 0:  # a perfect old tree is itself the first node of the path
        path.insert(0, old_root)
    if not path:
        raise ProofError("proof is empty")
    old_seen, new_seen = _roots_from_consistency(old, new, path)
    if old_seen != old_root:
        raise ProofError("proof leads to another old root")
    if new_seen != new_root:
        raise ProofError("proof leads to another new root")


def _roots_from_consistency(old: int, new: int, path: Sequence[bytes]) -> tuple[bytes, bytes]:
    """Fold `path` up to the roots of the trees of `old` and of `new` leaves.

    RFC 9162 §2.1.4.2, steps 3 to 6. `path` begins with a perfect subtree of both trees. Raises ProofError if it is
    too long or too short.
    """
    node, last = old - 1, new - 1
    while node & 1:  # climb to the subtree that the path begins with
        node, last = node >> 1, last >> 1
    old_seen = new_seen = path[0]
    for sibling in path[1:]:
        if last == 0:
            raise ProofError("proof is longer than the path to the root")
        if node & 1 or node == last:
            old_seen = node_hash(sibling, old_seen)
            new_seen = node_hash(sibling, new_seen)
            while not node & 1 and node:
                node, last = node >> 1, last >> 1
        else:
            new_seen = node_hash(new_seen, sibling)
        node, last = node >> 1, last >> 1
    if last:
        raise ProofError("proof ends below the root")
    return old_seen, new_seen
