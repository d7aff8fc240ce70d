"""Blocks of prompts that are computed here for another backend.

A prompt that is exported is an ordinary sequence of one token. As its chunks are computed, its blocks become readable,
and are held until they are read, though the sequence may have ended. They are read chunk by chunk, on a GPU by a stream
of its own, while the next chunk is computed; a layer at a time inside a chunk would break captured steps apart.
"""

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from backend.engine.apart.frame import FRAME_BYTES, Frame, Further, blocks_of, framed, placed
from backend.engine.apart.windows import OwnWindow, Windows
from backend.engine.core.block_manager import BlockManager
from backend.engine.core.runner import BlockBytes, Moment, PendingBlocks, PlacedBlocks
from backend.engine.core.scheduler import Scheduled
from backend.engine.core.sequence import Sequence
from backend.models.layer_groups import reached_from

AHEAD = 2
"""Frames of a prompt that are read before they are asked for."""


@dataclass(frozen=True, slots=True)
class _Reading:
    layer: int
    first: int
    count: int
    pending: PendingBlocks


@dataclass(frozen=True, slots=True)
class _Placing:
    """The same into a slot of a window."""

    layer: int
    first: int
    count: int
    slot: int
    size: int
    pending: PlacedBlocks


@dataclass(slots=True)
class _Export:
    """One prompt. first: block from which on it is exported, of each table: of one with an attention window from where
    that reaches from the prompt's last token. end: behind the last. held: of each table ids from `first` on, as far as
    they are computed. ended: how its sequence has, None before. window: that it goes through; None: it goes in frames.
    slots: of the window, with the bytes that are or will be in each, until they are freed. over: all was taken, and its
    blocks are let go; what is in slots has still to be read."""

    first: list[int]
    end: int
    computed: int
    held: list[list[int]]
    to_read: deque[tuple[int, int, int, Moment]] = field(default_factory=deque)  # layer, first, count
    reading: deque[_Reading | _Placing] = field(default_factory=deque)
    ended: bool | None = None
    window: OwnWindow | None = None
    slots: dict[int, int] = field(default_factory=dict)
    over: bool = False


class Exports:
    def __init__(
        self, blocks: BlockManager, pages: Callable[[], BlockBytes | None], windows: Windows | None = None
    ) -> None:
        """pages: of the cache as it is now. windows: None: there are none."""
        self._blocks = blocks
        self._windows = windows
        self._pages = pages
        self._exports: dict[int, _Export] = {}

    def __bool__(self) -> bool:
        return bool(self._exports)

    def begin(self, sequence: Sequence, first: int, window: bytes = b"") -> None:
        """``first``: block of the prompt from which on it is exported; the last block is that of the token before the
        prompt's last one. ``window``: id of the one that it goes through; none: it goes in frames, as it does for one
        that is not known."""
        own = self._windows.own(window) if self._windows is not None and window else None
        reach, size = self._blocks.windows, self._blocks.block_size
        firsts = [max(first, reached_from(each, sequence.num_prompt - 1, size)) for each in reach]
        end = blocks_of(sequence.num_prompt, size)
        self._exports[sequence.id] = _Export(firsts, end, first, [[] for _ in reach], window=own)

    def launched(self, batch: list[Scheduled]) -> None:
        """A step was launched, and ``num_computed`` of its sequences raised: hold what it completes."""
        pages = self._pages()
        if not self._exports or pages is None:
            return
        moment: Moment | None = None
        for sequence in (scheduled.sequence for scheduled in batch):
            export = self._exports.get(sequence.id)
            if export is None:
                continue
            whole = sequence.num_computed >= sequence.num_prompt - 1
            until = export.end if whole else min(export.end, sequence.num_computed // self._blocks.block_size)
            if until <= export.computed:
                continue
            moment = moment or pages.now()
            begin, export.computed = export.computed, until
            for first, own, held in zip(export.first, sequence.block_tables, export.held, strict=True):
                ids = own[max(first, begin) : until]
                self._blocks.hold(ids)
                held += ids
            places = _places(pages, export.first, begin, until, _most_bytes(export))
            export.to_read.extend((*place, moment) for place in places)
            self._read_ahead(export, pages)

    def ended(self, id: int, *, well: bool) -> None:
        """Its sequence has ended; ``well``: with a token."""
        export = self._exports.get(id)
        if export is not None and export.ended is None:
            export.ended = well

    def take(self, id: int, most_bytes: int) -> tuple[list[Frame], Further] | None:
        """The next frames, at least one if there is any; None if there is none yet."""
        export, pages = self._exports.get(id), self._pages()
        if export is None or export.ended is False or pages is None:
            self.drop(id)
            return [], Further.FAILED
        self._read_ahead(export, pages)  # slots may have been freed by another prompt
        frames: list[Frame] = []
        size = 0
        while export.reading and export.reading[0].pending.arrived and size < most_bytes:
            frames.append(_frame(export, export.reading.popleft()))
            size += frames[-1].size
            self._read_ahead(export, pages)
        if export.ended and not export.reading and not export.to_read:
            further = Further.NOTHING if export.computed == export.end else Further.FAILED
            self._let_go(export)
            export.over = True
            if not export.slots:
                self.drop(id)
            return frames, further
        return (frames, Further.MORE) if frames else None

    def free(self, id: int, slot: int) -> None:
        """The other backend has read this slot. Harmless for an unknown one."""
        export, pages = self._exports.get(id), self._pages()
        if export is None or pages is None or slot not in export.slots:
            return
        if any(isinstance(each, _Placing) and each.slot == slot for each in export.reading):
            return  # it was not handed out yet
        self._give_back(export, pages, slot)
        if export.over and not export.slots:
            self.drop(id)

    def drop(self, id: int) -> None:
        """Forget it, and let go of its blocks once no copy reads them. Harmless for an unknown one."""
        export, pages = self._exports.pop(id, None), self._pages()
        if export is None:
            return
        for read in export.reading:
            read.pending.take()  # waits: the block may be zeroed next
        for slot in list(export.slots):
            if pages is not None:
                self._give_back(export, pages, slot)
        self._let_go(export)

    def _let_go(self, export: _Export) -> None:
        for held in export.held:
            self._blocks.let_go(held)
            held.clear()

    def _give_back(self, export: _Export, pages: BlockBytes, slot: int) -> None:
        """Zeroed."""
        size = export.slots.pop(slot)
        if export.window is not None:
            pages.clear(export.window.window, slot, size)
            export.window.free.append(slot)

    def _read_ahead(self, export: _Export, pages: BlockBytes) -> None:
        window = export.window
        while export.to_read and window is not None and window.free:
            layer, first, count, moment = export.to_read.popleft()
            slot, size = window.free.pop(), count * sum(pages.block_bytes)
            export.slots[slot] = size
            window.used[slot] = max(size, window.used.get(slot, 0))
            reading = pages.read_into(layer, _ids(export, pages, layer, first, count), moment, window.window, slot)
            export.reading.append(_Placing(layer, first, count, slot, size, reading))
        while export.to_read and window is None and len(export.reading) < AHEAD:
            layer, first, count, moment = export.to_read.popleft()
            pending = pages.read(layer, _ids(export, pages, layer, first, count), moment)
            export.reading.append(_Reading(layer, first, count, pending))


def _ids(export: _Export, pages: BlockBytes, layer: int, first: int, count: int) -> list[int]:
    table = pages.groups.tables[layer]
    return export.held[table][first - export.first[table] :][:count]


def _frame(export: _Export, read: _Reading | _Placing) -> Frame:
    if isinstance(read, _Reading):
        return framed(read.layer, read.first, read.count, *read.pending.take())
    assert export.window is not None  # noqa: S101 -- else there is no slot
    window, sum = export.window.handle.id, read.pending.take()
    return placed(read.layer, read.first, read.count, window, read.slot, read.size, sum)


def _most_bytes(export: _Export) -> int:
    return FRAME_BYTES if export.window is None else export.window.handle.slot_bytes


def _places(
    pages: BlockBytes, firsts: list[int], begin: int, end: int, most_bytes: int
) -> Iterator[tuple[int, int, int]]:
    """Layer, first block and number of blocks of each frame. firsts: of each table."""
    step = max(1, most_bytes // sum(pages.block_bytes))
    for layer, table in enumerate(pages.groups.tables):
        for at in range(max(begin, firsts[table]), end, step):
            yield layer, at, min(step, end - at)
