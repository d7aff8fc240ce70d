"""Tiles: the public vectors, trees of awkward sizes against the definition, and folders that were tampered with."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from audit.errors import ProofError, StoreError, VerificationFailed
from audit.log.receipt import verify_receipt
from audit.storage.store import StoredLeaf
from audit.storage.tiles import Folder, TiledTree, decode_entries, encode_entries, forget, publish, tile_path, width_of
from audit.tree.merkle import (
    consistency_proof,
    inclusion_proof,
    leaf_hash,
    tree_hash,
    verify_consistency,
    verify_inclusion,
)
from audit.tree.tlog_checkpoint import Checkpoint
from tests.audit.conftest import VECTORS, Home, accepted

VECTOR = VECTORS / "tlog-tiles" / "log"
CHECKPOINTS = {
    size: Checkpoint.parse((VECTOR / f"checkpoint.{size}").read_text().partition("\n\n")[0] + "\n")
    for size in range(1, 16)
}


class Leaves:
    """Just enough of a reader: numbered entries of one tree."""

    def __init__(self, size: int) -> None:
        self.payloads = [f"entry {number}".encode() for number in range(size)]

    def leaves(self, tenant: str, start: int = 0, end: int | None = None) -> Iterator[StoredLeaf]:
        for seq in range(len(self.payloads))[start:end]:
            yield StoredLeaf(seq, leaf_hash(self.payloads[seq]), self.payloads[seq])

    def note(self, size: int | None = None) -> str:
        kept = self.payloads[:size]
        return Checkpoint("log/acme", len(kept), tree_hash(map(leaf_hash, kept))).text() + "\n\u2014 nobody AAAAAAA=\n"


def written(folder: Path) -> dict[str, bytes]:
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


@pytest.mark.parametrize("size", range(1, 16))
def test_public_tiles_lead_to_the_public_checkpoints(size: int) -> None:
    tree = TiledTree(Folder(VECTOR), size)
    assert tree.root() == CHECKPOINTS[size].root
    entries = list(tree.entries())
    assert tree_hash(map(leaf_hash, entries)) == CHECKPOINTS[size].root
    for old in range(1, size + 1):
        proof = consistency_proof(old, size, tree.range_hash)
        verify_consistency(old, size, proof, CHECKPOINTS[old].root, CHECKPOINTS[size].root)


def test_our_tiles_of_the_public_entries_are_the_public_tiles(tmp_path: Path) -> None:
    entries = Leaves(0)
    entries.payloads = [bundle for bundle in decode_entries((VECTOR / "tile/entries/000.p/15").read_bytes())]
    folder = Folder(tmp_path)
    for size in range(1, 16):
        publish(entries, "acme", (VECTOR / f"checkpoint.{size}").read_text(), folder)  # type: ignore[arg-type]
    ours, theirs = written(tmp_path), written(VECTOR)
    assert {name: theirs[name] for name in ours if name != "checkpoint"} == {
        name: content for name, content in ours.items() if name != "checkpoint"
    }
    assert len(ours) == 31
    assert json.loads((VECTORS / "tlog-tiles" / "entries.json").read_text())


@pytest.mark.parametrize(
    ("index", "path"),
    [(0, "000"), (67, "067"), (999, "999"), (1000, "x001/000"), (1234067, "x001/x234/067"), (256, "256")],
)
def test_paths_are_those_of_the_specification(index: int, path: str) -> None:
    assert tile_path(0, index) == f"tile/0/{path}"
    assert tile_path("entries", index, 17) == f"tile/entries/{path}.p/17"


@pytest.mark.parametrize("size", [1, 255, 256, 257, 512, 1023, 65_536, 65_537])
def test_a_published_tree_of_any_size_has_its_root_and_short_proofs(tmp_path: Path, size: int) -> None:
    leaves = Leaves(size)
    folder = Folder(tmp_path)
    assert publish(leaves, "acme", leaves.note(), folder) == size  # type: ignore[arg-type]
    read: list[str] = []

    def counting(name: str) -> bytes:
        read.append(name)
        return folder(name)

    root = tree_hash(map(leaf_hash, leaves.payloads))
    for index in {0, size // 2, size - 1}:
        read.clear()
        proof = inclusion_proof(index, size, TiledTree(counting, size).range_hash)
        verify_inclusion(leaf_hash(leaves.payloads[index]), index, size, proof, root)
        assert len(read) <= 2 * 3  # two tiles a level at most, three levels


def test_publishing_again_reads_what_was_added_and_comes_to_the_same_files(tmp_path: Path) -> None:
    leaves = Leaves(66_000)
    step, once = Folder(tmp_path / "step"), Folder(tmp_path / "once")
    for size in (5, 256, 300, 65_536):
        publish(leaves, "acme", leaves.note(size), step)  # type: ignore[arg-type]
    assert publish(leaves, "acme", leaves.note(), step) == 66_000 - 65_536  # type: ignore[arg-type]
    publish(leaves, "acme", leaves.note(), once)  # type: ignore[arg-type]
    ours = written(step.path)
    assert {name: ours[name] for name in written(once.path)} == written(once.path)


def test_leaves_that_were_not_signed_or_are_missing_are_not_published(tmp_path: Path) -> None:
    leaves = Leaves(300)
    folder = Folder(tmp_path)
    publish(leaves, "acme", leaves.note(10), folder)  # type: ignore[arg-type]
    before = folder.checkpoint()
    note = leaves.note()
    leaves.payloads[4] = b"forged"
    with pytest.raises(ProofError, match="not those"):
        publish(leaves, "acme", note, folder)  # type: ignore[arg-type]
    del leaves.payloads[299]
    with pytest.raises(StoreError, match="lacks record 299"):
        publish(leaves, "acme", note, folder)  # type: ignore[arg-type]
    assert folder.checkpoint() == before


def test_a_tile_cut_short_is_refused(tmp_path: Path) -> None:
    shutil.copytree(VECTOR, tmp_path / "log")
    tile = tmp_path / "log/tile/0/000.p/9"
    tile.write_bytes(tile.read_bytes()[:-1])
    with pytest.raises(ProofError, match="not 9 hashes"):
        TiledTree(Folder(tmp_path / "log"), 9).root()


@pytest.mark.parametrize("bundle", [b"\x00", b"\x00\x02a", b"\x00\x01ab"])
def test_a_bundle_cut_short_is_refused(bundle: bytes) -> None:
    with pytest.raises(ProofError):
        decode_entries(bundle)


def test_a_bundle_holds_empty_and_largest_entries_and_none_larger() -> None:
    entries = [b"", b"x" * 65_535]
    assert decode_entries(encode_entries(entries)) == entries
    with pytest.raises(StoreError):
        encode_entries([b"x" * 65_536])


def test_a_tree_has_no_tile_beyond_its_end() -> None:
    assert [width_of(0, index, 257) for index in range(3)] == [256, 1, 0]
    assert [width_of(1, index, 257) for index in range(2)] == [1, 0]
    with pytest.raises(ProofError):
        TiledTree(Folder(VECTOR), 9).range_hash(8, 10)


async def test_a_receipt_is_proven_by_published_tiles_and_refused_by_forged_ones(home: Home, tmp_path: Path) -> None:
    async with await home.open() as log:
        receipts = [await log.append(accepted(f"r{number}")) for number in range(9)]
    reader = home.reader()
    folder = Folder(tmp_path / "tiles")
    last = list(reader.checkpoints("acme"))[-1]
    publish(reader, "acme", last.note, folder)
    for receipt in receipts:
        assert verify_receipt(reader, home.key, receipt, folder).checkpoint.size == 9
    tile = folder.path / tile_path(0, 0, 9)
    tile.write_bytes(bytes(32) + tile.read_bytes()[32:])
    with pytest.raises(VerificationFailed, match="not under the checkpoint"):
        verify_receipt(reader, home.key, receipts[1], folder)
    tile.unlink()
    with pytest.raises(StoreError, match="tile cannot be read"):
        verify_receipt(reader, home.key, receipts[1], folder)
    folder.write("checkpoint", last.note.replace("\n9\n", "\n8\n").encode())
    with pytest.raises(VerificationFailed, match="does not hold"):
        verify_receipt(reader, home.key, receipts[1], folder)
    reader.close()


def test_what_has_expired_is_taken_out_of_every_bundle_and_the_hashes_stay(tmp_path: Path) -> None:
    leaves, folder = Leaves(600), Folder(tmp_path)
    for size in (300, 600):
        publish(leaves, "acme", leaves.note(size), folder)
    before = written(tmp_path)
    gone = [*range(256), 258, 599]
    for seq in gone:
        leaves.payloads[seq] = b""
    forget(leaves, "acme", folder, gone)
    after = written(tmp_path)
    assert tile_path("entries", 0) not in after
    for name, width in ((tile_path("entries", 1), 256), (tile_path("entries", 1, 44), 44)):
        left = decode_entries(after[name])
        assert len(left) == width and [at for at, entry in enumerate(left) if not entry] == [2]
    assert decode_entries(after[tile_path("entries", 2, 88)])[-1] == b""
    assert {name: data for name, data in before.items() if "/entries/" not in name} == {
        name: data for name, data in after.items() if "/entries/" not in name
    }
    forget(leaves, "acme", folder, gone)
    assert written(tmp_path) == after


def test_nothing_is_written_of_what_was_never_published(tmp_path: Path) -> None:
    forget(Leaves(9), "acme", Folder(tmp_path / "tiles"), [1, 2])
    assert written(tmp_path) == {}
