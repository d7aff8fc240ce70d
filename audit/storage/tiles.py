"""C2SP tlog-tiles: a tree as static files, 256 hashes or entries each, that any web server or object store can hold.

    checkpoint                          the signed note
    tile/<level>/<index>[.p/<width>]    hashes: level 0 of leaves, level n of full tiles below
    tile/entries/<index>[.p/<width>]    entries, each with its length as 16 bits before it

A full tile never changes; the one at the right edge is partial and named by its width. Any proof reads a few tiles a
level, so log256(size) of them. Whoever publishes need not be trusted: what is read is held against the signed root.
"""

import os
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path

from audit.errors import ProofError, StoreError
from audit.files.new_file import PUBLIC, draft_of, make_public_folder
from audit.storage.store import Reader
from audit.tree.merkle import HASH_SIZE, Frontier, node_hash, tree_hash
from audit.tree.tlog_checkpoint import Checkpoint

TILE_WIDTH = 256
TILE_HEIGHT = 8
TILES = "tiles"
"""Where trees are published by default: a folder beside the log, with one a tenant in it."""
MAX_LEVEL = 63 // TILE_HEIGHT

Fetch = Callable[[str], bytes]
"""The content at a path of the log. Raises FileNotFoundError or another OSError."""


def tile_path(level: int | str, index: int, width: int = TILE_WIDTH) -> str:
    """Path of a tile; `level` is 0 to 63 // 8, or ``entries``. Groups of three digits, all but the last with x."""
    groups = [f"{index % 1000:03d}"]
    while index := index // 1000:
        groups.insert(0, f"x{index % 1000:03d}")
    partial = f".p/{width}" if width < TILE_WIDTH else ""
    return f"tile/{level}/{'/'.join(groups)}{partial}"


def width_of(level: int, index: int, size: int) -> int:
    """How many hashes tile `index` of `level` has in a tree of `size` leaves, 0 if there is none."""
    return max(0, min(TILE_WIDTH, (size >> TILE_HEIGHT * level) - index * TILE_WIDTH))


def encode_entries(entries: Iterable[bytes]) -> bytes:
    """An entry bundle. Raises StoreError for an entry over 65,535 bytes."""
    bundle = bytearray()
    for entry in entries:
        if len(entry) >= 1 << 16:
            raise StoreError(f"an entry of {len(entry)} bytes does not fit a bundle; run `domicile audit verify`")
        bundle += len(entry).to_bytes(2, "big") + entry
    return bytes(bundle)


def decode_entries(bundle: bytes) -> list[bytes]:
    """Raises ProofError if it is cut short."""
    entries, at = [], 0
    while at < len(bundle):
        length = int.from_bytes(bundle[at : at + 2], "big")
        entry = bundle[at + 2 : at + 2 + length]
        if at + 2 > len(bundle) or len(entry) != length:
            raise ProofError("an entry bundle is cut short")
        entries.append(entry)
        at += 2 + length
    return entries


class TiledTree:
    """A tree of `size` leaves read from tiles; `range_hash` serves `inclusion_proof` and `consistency_proof`."""

    def __init__(self, fetch: Fetch, size: int) -> None:
        self._fetch = fetch
        self._size = size
        self._tiles: dict[str, bytes] = {}

    def range_hash(self, start: int, end: int) -> bytes:
        """Root of the leaves [start, end), as RFC 6962 splits them. Raises ProofError, OSError."""
        if not 0 <= start < end <= self._size:
            raise ProofError(f"leaves {start} to {end} are not in a tree of {self._size}")
        span = end - start
        if span & (span - 1) == 0 and start % span == 0:
            return self._perfect(start, span.bit_length() - 1)
        middle = start + (1 << (span - 1).bit_length() - 1)
        return node_hash(self.range_hash(start, middle), self.range_hash(middle, end))

    def root(self) -> bytes:
        return self.range_hash(0, self._size) if self._size else Frontier().root()

    def entries(self) -> Iterator[bytes]:
        """Every entry in order. Raises ProofError, OSError."""
        for index in range(-(-self._size // TILE_WIDTH)):
            width = width_of(0, index, self._size)
            bundle = decode_entries(self._fetch(tile_path("entries", index, width)))
            if len(bundle) != width:
                raise ProofError(f"entry bundle {index} holds {len(bundle)} entries, not {width}")
            yield from bundle

    def _perfect(self, start: int, height: int) -> bytes:
        """Root of the perfect subtree of 2**height leaves at `start`, out of one tile."""
        level, above = divmod(height, TILE_HEIGHT)
        first = start >> TILE_HEIGHT * level
        index, offset = divmod(first, TILE_WIDTH)
        tile = self._tile(level, index)
        hashes = [tile[at * HASH_SIZE : (at + 1) * HASH_SIZE] for at in range(offset, offset + (1 << above))]
        return tree_hash(hashes)

    def _tile(self, level: int, index: int) -> bytes:
        width = width_of(level, index, self._size)
        path = tile_path(level, index, width)
        if path not in self._tiles:
            tile = self._fetch(path)
            if len(tile) != width * HASH_SIZE:
                raise ProofError(f"{path} holds {len(tile)} bytes, not {width} hashes")
            self._tiles[path] = tile
        return self._tiles[path]


class Folder:
    """Tiles in a folder; may be called as `Fetch`."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __call__(self, name: str) -> bytes:
        return (self.path / name).read_bytes()

    def checkpoint(self) -> str | None:
        """The note published here, None if there is none yet."""
        try:
            return (self.path / "checkpoint").read_text(encoding="utf-8")
        except FileNotFoundError:
            return None

    def write(self, name: str, content: bytes) -> None:
        """Put a file in place whole: readers see the old one or the new one."""
        target = self.path / name
        make_public_folder(target.parent)
        with draft_of(target, PUBLIC) as (draft, file):  # not synced: `publish` writes a lost tile again
            file.write(content)
            file.flush()
            os.replace(draft, target)

    def bundles(self, index: int) -> Iterator[tuple[int, str]]:
        """Width and path of what is published of entry bundle `index`: the full one, and partial ones of before."""
        full = tile_path("entries", index)
        if (self.path / full).is_file():
            yield TILE_WIDTH, full
        for partial in sorted((self.path / f"{full}.p").glob("[0-9]*")):
            yield int(partial.name), f"{full}.p/{partial.name}"

    def remove(self, name: str) -> None:
        (self.path / name).unlink(missing_ok=True)


def publish(reader: Reader, tenant: str, note: str, folder: Folder) -> int:
    """Write the tiles of the tree that the checkpoint `note` signs, then `note`; returns how many leaves were read.

    Goes on from what is there, so publishing again costs what was added. Raises StoreError if the log lacks a leaf,
    ProofError if the leaves are not those that were signed: then the published checkpoint stays the old one.
    """
    checkpoint = _unverified(note)
    size = checkpoint.size
    known = folder.checkpoint()
    before = 0 if known is None else _unverified(known).size
    start = min(before, size) // TILE_WIDTH * TILE_WIDTH
    hashes, entries, read = bytearray(), list[bytes](), 0
    for leaf in reader.leaves(tenant, start):
        if leaf.seq >= size:
            break
        if leaf.seq != start + read:
            raise StoreError(f"the log lacks record {start + read} of tenant {tenant}; run `domicile audit verify`")
        read += 1
        hashes += leaf.leaf_hash
        entries.append(leaf.payload)
        if len(entries) == TILE_WIDTH:
            _write_leaves(folder, leaf.seq // TILE_WIDTH, hashes, entries)
            hashes, entries = bytearray(), []
    if start + read != size:
        raise StoreError(f"the log lacks record {start + read} of tenant {tenant}; run `domicile audit verify`")
    if entries:
        _write_leaves(folder, size // TILE_WIDTH, hashes, entries)
    _write_above(folder, start, size)
    if TiledTree(folder, size).root() != checkpoint.root:
        raise ProofError(
            f"the records of tenant {tenant} are not those that the checkpoint of size {size} signs"
            "; run `domicile audit verify`"
        )
    folder.write("checkpoint", note.encode())
    return read


def forget(reader: Reader, tenant: str, folder: Folder, expired: Iterable[int]) -> None:
    """Take the content of the records `expired`, in order, out of what is published; tiles of hashes stay.

    A bundle in which a record is left is rewritten, with nothing in the place of those that are gone; another is
    deleted. Raises StoreError, OSError.
    """
    for index in dict.fromkeys(seq // TILE_WIDTH for seq in expired):
        for width, name in list(folder.bundles(index)):
            left = [leaf.payload for leaf in islice(reader.leaves(tenant, index * TILE_WIDTH), width)]
            if any(left):
                folder.write(name, encode_entries(left))
            else:
                folder.remove(name)


def _write_leaves(folder: Folder, index: int, hashes: bytearray, entries: list[bytes]) -> None:
    folder.write(tile_path(0, index, len(entries)), bytes(hashes))
    folder.write(tile_path("entries", index, len(entries)), encode_entries(entries))


def _write_above(folder: Folder, start: int, size: int) -> None:
    """The levels above the leaves, from the first tile that may have changed since the tree had `start` leaves."""
    for level in range(1, MAX_LEVEL + 1):
        index = start >> TILE_HEIGHT * (level + 1)
        while width := width_of(level, index, size):
            below = range(index * TILE_WIDTH, index * TILE_WIDTH + width)
            tile = b"".join(_root_of(folder(tile_path(level - 1, child))) for child in below)
            folder.write(tile_path(level, index, width), tile)
            index += 1


def _root_of(tile: bytes) -> bytes:
    return tree_hash(tile[at : at + HASH_SIZE] for at in range(0, len(tile), HASH_SIZE))


def _unverified(note: str) -> Checkpoint:
    """What the note says; whether it is signed is for those who read what is published."""
    return Checkpoint.parse(note.partition("\n\n")[0] + "\n")
