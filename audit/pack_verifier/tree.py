"""The tree over the records: its hashes, its growth to the right, proofs of inclusion (RFC 6962, RFC 9162)."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

from audit.pack_verifier.fault import Broken

HASH_SIZE = 32


def leaf_hash(entry: bytes) -> bytes:
    return hashlib.sha256(b"\x00" + entry).digest()


def node_hash(left: bytes, right: bytes) -> bytes:
    return hashlib.sha256(b"\x01" + left + right).digest()


class Tree:
    """The perfect subtrees of what was appended, largest first."""

    def __init__(self) -> None:
        self.size = 0
        self.stack: list[tuple[int, bytes]] = []

    def append(self, subtree: bytes, height: int = 0) -> None:
        self.size += 1 << height
        while self.stack and self.stack[-1][0] == height:
            subtree, height = node_hash(self.stack.pop()[1], subtree), height + 1
        self.stack.append((height, subtree))

    def root(self) -> bytes:
        if not self.stack:
            return hashlib.sha256(b"").digest()
        root = self.stack[-1][1]
        for _, left in reversed(self.stack[:-1]):
            root = node_hash(left, root)
        return root


def aligned(start: int, end: int) -> Iterator[int]:
    """Heights of the perfect subtrees that make up the leaves from `start` to `end`."""
    while start < end:
        height = (end - start).bit_length() - 1
        if start:
            height = min(height, (start & -start).bit_length() - 1)
        yield height
        start += 1 << height


def root_from_inclusion(leaf: bytes, index: int, size: int, proof: list[bytes]) -> bytes:
    """RFC 9162 section 2.1.3.2. Raises Broken if the proof is of another shape than the tree's."""
    if any(len(node) != HASH_SIZE for node in (leaf, *proof)):
        raise Broken("its proof is not of hashes")
    if not 0 <= index < size:
        raise Broken("its record is not under the checkpoint")
    node, last, root = index, size - 1, leaf
    for sibling in proof:
        if last == 0:
            raise Broken("its proof is too long")
        if node & 1 or node == last:
            root = node_hash(sibling, root)
            while not node & 1 and node:
                node, last = node >> 1, last >> 1
        else:
            root = node_hash(root, sibling)
        node, last = node >> 1, last >> 1
    if last:
        raise Broken("its proof is too short")
    return root
