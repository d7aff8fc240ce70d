"""The verifier's own tree, by public vectors and against the tree that the log is written with."""

import json
from base64 import b64decode
from typing import Any

import pytest

from audit.pack_verifier.fault import Broken
from audit.pack_verifier.tree import Tree, aligned, leaf_hash, root_from_inclusion
from audit.tree import merkle
from tests.audit.conftest import VECTORS

INCLUSION = [json.loads(line) for line in (VECTORS / "merkle/inclusion.jsonl").read_text().splitlines()]
LEAVES = [leaf_hash(bytes([number])) for number in range(70)]


def decoded(hashes: list[str] | None) -> list[bytes]:
    return [b64decode(text) for text in hashes or []]


@pytest.mark.parametrize("v", INCLUSION, ids=lambda v: v["file"])
def test_public_inclusion_vectors_are_judged_as_their_authors_say(v: dict[str, Any]) -> None:
    leaf, root, nodes = b64decode(v["leafHash"]), b64decode(v["root"]), decoded(v["proof"])
    try:
        holds = root_from_inclusion(leaf, v["leafIdx"], v["treeSize"], nodes) == root
    except Broken:
        holds = False
    assert holds is not v["wantErr"]


def test_the_tree_grows_like_that_of_the_log() -> None:
    tree = Tree()
    assert tree.root() == merkle.EMPTY_ROOT
    for size, leaf in enumerate(LEAVES, 1):
        tree.append(leaf)
        assert (tree.size, tree.root()) == (size, merkle.tree_hash(LEAVES[:size]))


@pytest.mark.parametrize("first", [0, 1, 2, 7, 8, 33, 64, 70])
def test_perfect_subtrees_before_and_after_a_range_stand_for_their_leaves(first: int) -> None:
    tree = Tree()
    for start, end in ((0, first), (first, len(LEAVES))):
        for height in aligned(start, end):
            tree.append(merkle.tree_hash(LEAVES[start : start + (1 << height)]), height)
            start += 1 << height
        assert start == end
    assert tree.root() == merkle.tree_hash(LEAVES)


def test_a_proof_of_another_leaf_or_another_place_leads_elsewhere() -> None:
    proof = merkle.inclusion_proof(5, 70, lambda start, stop: merkle.tree_hash(LEAVES[start:stop]))
    root = merkle.tree_hash(LEAVES)
    assert root_from_inclusion(LEAVES[5], 5, 70, proof) == root
    assert root_from_inclusion(LEAVES[6], 5, 70, proof) != root
    assert root_from_inclusion(LEAVES[5], 4, 70, proof) != root
    for index, size in ((70, 70), (-1, 70), (5, 0)):
        with pytest.raises(Broken, match="not under the checkpoint"):
            root_from_inclusion(LEAVES[5], index, size, proof)
