import json
from base64 import b64decode
from hashlib import sha256
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from audit.errors import ProofError
from audit.tree.merkle import (
    EMPTY_ROOT,
    Frontier,
    consistency_proof,
    inclusion_proof,
    leaf_hash,
    node_hash,
    tree_hash,
    verify_consistency,
    verify_inclusion,
)
from tests.audit.conftest import VECTORS

INCLUSION = [json.loads(line) for line in (VECTORS / "merkle/inclusion.jsonl").read_text().splitlines()]
CONSISTENCY = [json.loads(line) for line in (VECTORS / "merkle/consistency.jsonl").read_text().splitlines()]
KNOWN = json.loads((VECTORS / "merkle/rfc6962_known.json").read_text())
LEAVES = [leaf_hash(bytes.fromhex(leaf)) for leaf in KNOWN["leaf_inputs_hex"]]


def decoded(hashes: list[str] | None) -> list[bytes]:
    return [b64decode(text) for text in hashes or []]


@pytest.mark.parametrize("v", INCLUSION, ids=lambda v: v["file"])
def test_public_inclusion_vectors_are_judged_as_their_authors_say(v: dict[str, Any]) -> None:
    arguments = b64decode(v["leafHash"]), v["leafIdx"], v["treeSize"], decoded(v["proof"]), b64decode(v["root"])
    if v["wantErr"]:
        with pytest.raises(ProofError):
            verify_inclusion(*arguments)
    else:
        verify_inclusion(*arguments)


@pytest.mark.parametrize("v", CONSISTENCY, ids=lambda v: v["file"])
def test_public_consistency_vectors_are_judged_as_their_authors_say(v: dict[str, Any]) -> None:
    arguments = v["size1"], v["size2"], decoded(v["proof"]), b64decode(v["root1"]), b64decode(v["root2"])
    if v["wantErr"]:
        with pytest.raises(ProofError):
            verify_consistency(*arguments)
    else:
        verify_consistency(*arguments)


def test_hashes_and_roots_known_from_the_rfc_come_out() -> None:
    assert KNOWN["empty_root"] == EMPTY_ROOT.hex()
    for hasher in KNOWN["hasher"]:
        if hasher["kind"] == "node":
            assert node_hash(hasher["left_utf8"].encode(), hasher["right_utf8"].encode()).hex() == hasher["hash"]
        else:
            assert leaf_hash(hasher.get("leaf_utf8", "").encode()).hex() == hasher["hash"]
    for size, root in enumerate(KNOWN["roots_for_size_1_to_8"], start=1):
        assert tree_hash(LEAVES[:size]).hex() == root


def hashes(count: int) -> list[bytes]:
    return [sha256(number.to_bytes(4)).digest() for number in range(count)]


@given(st.integers(1, 300), st.data())
@settings(max_examples=60, deadline=None)
def test_every_leaf_of_any_tree_is_proven_and_no_other_passes_for_it(size: int, data: st.DataObject) -> None:
    leaves = hashes(size)
    index = data.draw(st.integers(0, size - 1))
    root = tree_hash(leaves)
    proof = inclusion_proof(index, size, lambda start, end: tree_hash(leaves[start:end]))
    verify_inclusion(leaves[index], index, size, proof, root)
    with pytest.raises(ProofError):
        verify_inclusion(leaf_hash(b"another"), index, size, proof, root)
    if size > 1:
        with pytest.raises(ProofError):
            verify_inclusion(leaves[index], (index + 1) % size, size, proof, root)
        with pytest.raises(ProofError):
            verify_inclusion(leaves[index], index, size, proof[:-1], root)


@given(st.integers(1, 300), st.data())
@settings(max_examples=60, deadline=None)
def test_any_tree_is_consistent_with_what_it_grew_from_and_with_nothing_else(new: int, data: st.DataObject) -> None:
    leaves = hashes(new)
    old = data.draw(st.integers(1, new))
    old_root, new_root = tree_hash(leaves[:old]), tree_hash(leaves)
    proof = consistency_proof(old, new, lambda start, end: tree_hash(leaves[start:end]))
    verify_consistency(old, new, proof, old_root, new_root)
    rewritten = tree_hash([leaf_hash(b"rewritten"), *leaves[1:old]])
    with pytest.raises(ProofError):
        verify_consistency(old, new, proof, rewritten, new_root)
    with pytest.raises(ProofError):
        verify_consistency(old, new, [*proof, old_root], old_root, new_root)


@given(st.integers(0, 200), st.integers(0, 60))
@settings(max_examples=40, deadline=None)
def test_a_frontier_read_back_grows_into_the_same_tree(before: int, after: int) -> None:
    leaves = hashes(before + after)
    frontier = Frontier()
    for leaf in leaves[:before]:
        frontier.append(leaf)
    frontier = Frontier.from_bytes(frontier.size, bytes(frontier))
    for leaf in leaves[before:]:
        frontier.append(leaf)
    assert frontier.size == len(leaves)
    assert frontier.root() == tree_hash(leaves)
    assert len(bytes(frontier)) == 32 * frontier.size.bit_count()


@pytest.mark.parametrize(("size", "data"), [(0, bytes(32)), (3, bytes(32)), (1, bytes(31)), (-1, bytes(32)), (1, b"")])
def test_bytes_that_are_no_frontier_of_that_size_are_refused(size: int, data: bytes) -> None:
    with pytest.raises(ProofError):
        Frontier.from_bytes(size, data)


@pytest.mark.parametrize(("index", "size"), [(0, 0), (5, 5), (-1, 5)])
def test_a_leaf_outside_the_tree_has_no_proof(index: int, size: int) -> None:
    with pytest.raises(ProofError):
        inclusion_proof(index, size, lambda start, end: bytes(32))


@pytest.mark.parametrize(("old", "new"), [(0, 5), (6, 5), (-1, 5)])
def test_a_tree_extends_neither_nothing_nor_a_larger_one(old: int, new: int) -> None:
    with pytest.raises(ProofError):
        consistency_proof(old, new, lambda start, end: bytes(32))
