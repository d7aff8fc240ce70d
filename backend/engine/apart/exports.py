"""Blocks of prompts that are computed here for another backend.

A prompt that is exported is an ordinary sequence of one token. As its chunks are computed, its blocks become readable,
and are held until they are read, though the sequence may have ended. They are read chunk by chunk, on a GPU by a stream
of its own, while the next chunk is computed; a layer at a time inside a chunk would break captured steps apart.
"""

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from backend.engine.apart.frame import FRAME_BYTES, BlockFrame, Further, blocks_of, framed
from backend.engine.core.block_manager import BlockManager
from backend.engine.core.runner import BlockBytes, Moment, PendingBlocks
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


@dataclass(slots=True)
class _Export:
    """One prompt. first: block from which on it is exported, of each table: of a window from where it reaches from the
    prompt's last token. end: behind the last. held: of each table ids from `first` on, as far as they are computed.
    ended: how its sequence has, None before."""

    first: list[int]
    end: int
    computed: int
    held: list[list[int]]
    to_read: deque[tuple[int, int, int, Moment]] = field(default_factory=deque)  # layer, first, count
    reading: deque[_Reading] = field(default_factory=deque)
    ended: bool | None = None


class Exports:
    def __init__(self, blocks: BlockManager, pages: Callable[[], BlockBytes | None]) -> None:
        """pages: of the cache as it is now."""
        self._blocks = blocks
        self._pages = pages
        self._exports: dict[int, _Export] = {}

    def __bool__(self) -> bool:
        return bool(self._exports)

    def begin(self, sequence: Sequence, first: int) -> None:
        """``first``: block of the prompt from which on it is exported; the last block is that of the token before the
        prompt's last one."""
        windows, size = self._blocks.windows, self._blocks.block_size
        firsts = [max(first, reached_from(window, sequence.num_prompt - 1, size)) for window in windows]
        end = blocks_of(sequence.num_prompt, size)
        self._exports[sequence.id] = _Export(firsts, end, first, [[] for _ in windows])

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
            export.to_read.extend((*place, moment) for place in _places(pages, export.first, begin, until))
            self._read_ahead(export, pages)

    def ended(self, id: int, *, well: bool) -> None:
        """Its sequence has ended; ``well``: with a token."""
        export = self._exports.get(id)
        if export is not None and export.ended is None:
            export.ended = well

    def take(self, id: int, most_bytes: int) -> tuple[list[BlockFrame], Further] | None:
        """The next frames, at least one if there is any; None if there is none yet."""
        export, pages = self._exports.get(id), self._pages()
        if export is None or export.ended is False or pages is None:
            self.drop(id)
            return [], Further.FAILED
        frames: list[BlockFrame] = []
        size = 0
        while export.reading and export.reading[0].pending.arrived and size < most_bytes:
            read = export.reading.popleft()
            frames.append(framed(read.layer, read.first, read.count, *read.pending.take()))
            size += frames[-1].size
            self._read_ahead(export, pages)
        if export.ended and not export.reading and not export.to_read:
            self.drop(id)
            return frames, Further.NOTHING if export.computed == export.end else Further.FAILED
        return (frames, Further.MORE) if frames else None

    def drop(self, id: int) -> None:
        """Forget it, and let go of its blocks once no copy reads them. Harmless for an unknown one."""
        export = self._exports.pop(id, None)
        if export is None:
            return
        for read in export.reading:
            read.pending.take()  # waits: the block may be zeroed next
        for held in export.held:
            self._blocks.let_go(held)

    def _read_ahead(self, export: _Export, pages: BlockBytes) -> None:
        while export.to_read and len(export.reading) < AHEAD:
            layer, first, count, moment = export.to_read.popleft()
            table = pages.groups.tables[layer]
            ids = export.held[table][first - export.first[table] :][:count]
            export.reading.append(_Reading(layer, first, count, pages.read(layer, ids, moment)))


def _places(pages: BlockBytes, firsts: list[int], begin: int, end: int) -> Iterator[tuple[int, int, int]]:
    """Layer, first block and number of blocks of each frame. firsts: of each table."""
    step = max(1, FRAME_BYTES // sum(pages.block_bytes))
    for layer, table in enumerate(pages.groups.tables):
        for at in range(max(begin, firsts[table]), end, step):
            yield layer, at, min(step, end - at)
