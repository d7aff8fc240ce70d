"""Prompts whose blocks another backend computes: room for them, their bytes, and what becomes of those that fail.

A sequence that waits for blocks is held in the queue. As soon as there is room, blocks are allocated, `make_room`
reports it, and frames are written into them. When all frames have arrived, the sequence is admitted with all but the
last token of its prompt computed. If a frame is missing or does not fit, all blocks are dropped and zeroed, and the
sequence computes its prompt itself: it never continues from a part.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass

from backend.engine.apart.frame import Frame, PlacedFrame, blocks_of
from backend.engine.apart.windows import Windows
from backend.engine.core.block_manager import BlockManager
from backend.engine.core.runner import BlockBytes
from backend.engine.core.sequence import Sequence
from backend.models.layer_groups import reached_from


@dataclass(slots=True)
class _Import:
    """first, end: blocks of the prompt that are to come; known with the room for them. next: in each layer, the block
    that is to come next; of one with a window the first is the one where it begins at the prompt's last token."""

    sequence: Sequence
    first: int = 0
    end: int = 0
    next: list[int] | None = None

    @property
    def is_whole(self) -> bool:
        return self.next is not None and all(at == self.end for at in self.next)


@dataclass(frozen=True, slots=True)
class Room:
    """Blocks `first` to `end` of a prompt are to be fetched; none if both are equal, since all are here."""

    id: int
    first: int
    end: int


class Imports:
    def __init__(
        self, blocks: BlockManager, pages: Callable[[], BlockBytes | None], windows: Windows | None = None
    ) -> None:
        """pages: of the cache as it is now. windows: None: there are none."""
        self._blocks = blocks
        self._windows = windows
        self._pages = pages
        self._imports: dict[int, _Import] = {}

    def __bool__(self) -> bool:
        return bool(self._imports)

    def begin(self, sequence: Sequence) -> None:
        """It is held until `end`."""
        sequence.fetching = True
        self._imports[sequence.id] = _Import(sequence)

    def make_room(self, running: int) -> list[Room]:
        """Blocks for those that have none yet, first come first served, as long as one block is left for each that
        runs. Zero what is dirty before the first frame is written."""
        found = []
        for one in self._imports.values():
            if one.next is not None:
                continue
            room = self._room(one, running)
            if room is None:
                break
            found.append(room)
        for room in found:
            if room.first == room.end:
                self.end(room.id, whole=True)
        return found

    def _room(self, one: _Import, running: int) -> Room | None:
        pages, sequence = self._pages(), one.sequence
        if pages is None or not sequence.may_adopt:
            one.first = one.end = 0
            one.next = []
            return Room(sequence.id, 0, 0)
        cached = self._blocks.adopt_prefix(sequence)
        if not self._blocks.reserve(sequence, running * len(self._blocks.windows)):
            self._blocks.release(sequence)
            return None
        windows, size = self._blocks.windows, self._blocks.block_size
        one.first = cached // size
        one.end = max(one.first, blocks_of(sequence.num_prompt, size))
        firsts = [max(one.first, reached_from(window, sequence.num_prompt - 1, size)) for window in windows]
        one.next = [min(one.end, firsts[table]) for table in pages.groups.tables]
        return Room(sequence.id, one.first, one.end)

    def write(self, id: int, frame: Frame) -> str:
        """Write a frame of the prompt; returns why it was not taken, "" if it was. Frames of an unknown prompt are
        dropped: it was aborted meanwhile. Behind it the slot of a frame that lies in a window may be reused."""
        one, pages = self._imports.get(id), self._pages()
        if one is None or one.next is None or pages is None:
            return ""
        if not isinstance(frame, PlacedFrame) and not frame.is_whole:
            return "the checksum of a frame is wrong"
        if not _is_due(frame, one, pages):
            return "a frame is not the one that is due"
        table = one.sequence.block_tables[pages.groups.tables[frame.layer]]
        ids = table[frame.first : frame.first + frame.count]
        if isinstance(frame, PlacedFrame):
            if why := self._write_placed(frame, ids, pages):
                return why
        else:
            pages.write(frame.layer, ids, frame.keys, frame.values)
        one.next[frame.layer] += frame.count
        return ""

    def _write_placed(self, frame: PlacedFrame, ids: list[int], pages: BlockBytes) -> str:
        window = None if self._windows is None else self._windows.opened(frame.window)
        if window is None:
            return "a frame lies in a window that is not mapped here"
        if not 0 <= frame.slot < window.handle.slots or frame.size > window.handle.slot_bytes:
            return "a frame is not the one that is due"
        if not pages.write_from(frame.layer, ids, window, frame.slot, frame.sum):
            return "the checksum of a frame is wrong"
        return ""

    def end(self, id: int, *, whole: bool) -> bool:
        """No frame follows. The sequence is held no longer. Returns whether all blocks have come; if not, or if not
        ``whole``, they are dropped. False for an unknown one."""
        one = self._imports.pop(id, None)
        if one is None:
            return False
        sequence, came = one.sequence, whole and one.is_whole
        sequence.fetching = False
        if not came:
            self._blocks.release(sequence)
        elif sequence.block_table:
            sequence.num_cached = sequence.num_computed
            sequence.num_computed = max(sequence.num_computed, sequence.num_prompt - 1)
        return came

    def drop(self, ids: Collection[int]) -> None:
        """Their sequences are forgotten, and their blocks with them."""
        for id in ids:
            self._imports.pop(id, None)


def _is_due(frame: Frame, one: _Import, pages: BlockBytes) -> bool:
    """Whether it is the next of its layer, and has as many bytes as its blocks."""
    keys, values = pages.block_bytes
    if isinstance(frame, PlacedFrame):
        as_large = frame.size == (keys + values) * frame.count
    else:
        as_large = (len(frame.keys), len(frame.values)) == (keys * frame.count, values * frame.count)
    return (
        one.next is not None
        and 0 <= frame.layer < len(one.next)
        and frame.count > 0
        and frame.first == one.next[frame.layer]
        and frame.first + frame.count <= one.end
        and as_large
    )
