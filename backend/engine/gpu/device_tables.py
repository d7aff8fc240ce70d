"""What the device knows of running requests, and how the host keeps it up to date without waiting.

All tables are in one stretch of memory. A step's changes are collected on the host, sent in one copy from pinned memory
and spread by one kernel (`kernels.staged_writes`); with no changes, nothing is sent. A buffer in flight is never
touched again before it has arrived: there are several, taken in turn.
"""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from backend.engine.core.sequence import Sequence
from backend.engine.core.speculation import MAX_ROWS
from backend.kernels.interface import Kernels
from backend.kernels.sampling.row_state import SEGMENT_WORDS, MarkRows, RowState, SamplingRows
from backend.marks.scheme import KEY_BYTES

KEY_WORDS = KEY_BYTES // 4
BUFFERS = 4  # two steps can be in flight; the others are slack

Words = NDArray[np.int32]


class DeviceTables:
    """Rows of requests, and the description of the step that is next.

    Attributes:
        state, sampling, marks: one row a running sequence (`Sequence.row`).
        step_rows: [rows] int32, the row of each sequence of the step, -1 behind its last.
        query_start: [rows + 1] int32, where the tokens of each begin in the flat batch.
        prefill_start: [rows + 1] int32, the same for its prefills alone, counted from the first of them.
        adapters: [rows] int32, slot of each running sequence's adapter, -1 for none.
        shared_length: [1] int32, tokens that all sequences of the step have in the same blocks.
        check_rows, check_offsets: [MAX_ROWS] int32, of a step that checks guesses: the row of each draw, -1 behind the
            last, and how far behind the row's computed tokens it stands.
    """

    def __init__(
        self, rows: int, max_len: int, block_size: int, kernels: Kernels, device: torch.device, tables: int = 1
    ) -> None:
        """tables: block tables of a sequence (`LayerGroups`)."""
        self._kernels = kernels
        self._rows, self._tables = rows, tables
        self._max_len, self._max_blocks = max_len, -(-max_len // block_size)
        shapes = {
            "seeds": (rows, 2),  # int64 in two words; first, so that it is aligned
            "step_rows": (rows,),
            "query_start": (rows + 1,),
            "prefill_start": (rows + 1,),
            "shared_length": (1,),
            "check_rows": (MAX_ROWS,),
            "check_offsets": (MAX_ROWS,),
            "tokens": (rows, max_len),
            "known": (rows,),
            "computed": (rows,),
            "block_tables": (rows, self._max_blocks) if tables == 1 else (tables, rows, self._max_blocks),
            "temperature": (rows,),
            "top_k": (rows,),
            "top_p": (rows,),
            "min_p": (rows,),
            "adapters": (rows,),
            "answer_start": (rows,),
            "mark_keys": (rows, KEY_WORDS),
        }
        sizes = {name: int(np.prod(shape)) for name, shape in shapes.items()}
        self._memory = torch.zeros(sum(sizes.values()), dtype=torch.int32, device=device)
        self._start: dict[str, int] = {}
        view: dict[str, Tensor] = {}
        at = 0
        for name, shape in shapes.items():
            self._start[name] = at
            view[name] = self._memory[at : at + sizes[name]].view(shape)
            at += sizes[name]
        self.step_rows, self.query_start = view["step_rows"], view["query_start"]
        self.prefill_start, self.shared_length = view["prefill_start"], view["shared_length"]
        self.check_rows, self.check_offsets = view["check_rows"], view["check_offsets"]
        self.state = RowState(view["tokens"], view["known"], view["computed"], view["block_tables"])
        self.sampling = SamplingRows(
            temperature=view["temperature"].view(torch.float32),
            seeds=view["seeds"].view(torch.int64).squeeze(1),
            top_k=view["top_k"],
            top_p=view["top_p"].view(torch.float32),
            min_p=view["min_p"].view(torch.float32),
        )
        self.adapters = view["adapters"]
        self.marks = MarkRows(view["answer_start"], view["mark_keys"])
        self._writes: list[tuple[int, Words]] = []
        self._advances: dict[int, list[tuple[int, Words]]] = {}  # by row, until they are sent
        self._blocks_sent = [0] * rows
        self._described: dict[str, Words] = {}
        self._buffers = [_Buffer(4096, device) for _ in range(BUFFERS)]
        self._turn = 0

    def forget(self) -> None:
        """Reset all tables, on the device and in the staging buffers. No sequence may be running."""
        self._memory.zero_()
        self._writes, self._advances, self._described = [], {}, {}
        self._blocks_sent = [0] * len(self._blocks_sent)
        for buffer in self._buffers:
            buffer.clear()

    def admit(self, sequence: Sequence) -> None:
        """Everything of a sequence that was not running."""
        row = row_of(sequence)
        self._advances.pop(row, None)  # of the row's former sequence: writes of one flush have no order
        params = sequence.params
        computed = (
            sequence.num_computed
        )  # what comes before is never asked for, but that marks look at the whole answer
        first = computed if params.mark is None else min(computed, sequence.num_prompt)
        self._write("tokens", row * self._max_len + first, sequence.tokens[first:])
        self._write("known", row, [len(sequence.tokens)])
        self._write("computed", row, [computed])
        self._blocks_sent[row] = 0
        self.extend(sequence)
        seed = np.array([params.seed % (1 << 64)], dtype=np.uint64).view(np.int32)
        self._writes.append((self._start["seeds"] + 2 * row, seed))
        temperature = 0.0 if params.greedy else params.temperature
        for name, value in (("temperature", temperature), ("top_p", params.top_p), ("min_p", params.min_p)):
            self._writes.append((self._start[name] + row, np.array([value], dtype=np.float32).view(np.int32)))
        self._write("top_k", row, [params.top_k])
        self._write("adapters", row, [sequence.adapter])
        self._admit_mark(sequence)

    def _admit_mark(self, sequence: Sequence) -> None:
        row, mark = row_of(sequence), sequence.params.mark
        marked = mark is not None and not sequence.params.greedy
        self._write("answer_start", row, [sequence.num_prompt if marked else 0])
        if mark is not None:
            self._writes.append((self._start["mark_keys"] + KEY_WORDS * row, np.frombuffer(mark.key, dtype=np.int32)))

    def extend(self, sequence: Sequence) -> None:
        """The blocks it was given since it was last heard of. Those that a window has passed stay in the device's
        tables: kernels read what the window reaches."""
        row = row_of(sequence)
        sent, held = self._blocks_sent[row], len(sequence.block_table)
        if sent < held:
            for at in range(self._tables):
                place = (at * self._rows + row) * self._max_blocks + sent
                self._write("block_tables", place, sequence.block_tables[at][sent:])
            self._blocks_sent[row] = held

    def write_tokens(self, sequence: Sequence, at: int, tokens: list[int]) -> None:
        """Tokens of a running sequence from place `at` on; how many are known stays as it was."""
        if tokens:
            self._write("tokens", row_of(sequence) * self._max_len + at, tokens)

    def advance(self, sequence: Sequence, tokens: list[int]) -> None:
        """Append tokens that the host took in itself, all but the last of them computed."""
        row, known = row_of(sequence), len(sequence.tokens) + len(tokens)
        others, self._writes = self._writes, []
        self.write_tokens(sequence, len(sequence.tokens), tokens)
        self._write("known", row, [known])
        self._write("computed", row, [known - 1])
        self._advances[row], self._writes = self._writes, others

    def describe(self, name: str, words: Words) -> None:
        """Set the front of one of the tables that describe a step, named as its attribute; nothing is sent if it is so
        already."""
        before = self._described.get(name)
        if before is None or len(before) < len(words) or not np.array_equal(before[: len(words)], words):
            self._writes.append((self._start[name], words))
            self._described[name] = words

    def flush(self) -> None:
        """Send what was collected; the device has it before the next launch."""
        writes = [*self._writes, *(write for of_row in self._advances.values() for write in of_row)]
        if not writes:
            return
        self._writes, self._advances = [], {}
        head = SEGMENT_WORDS * len(writes)
        size = head + sum(len(words) for _, words in writes)
        self._turn = (self._turn + 1) % BUFFERS
        buffer = self._buffers[self._turn].claim(size)
        packed, at = buffer.host_words, head
        for i, (target, words) in enumerate(writes):
            packed[3 * i : 3 * i + 3] = target, len(words), at
            packed[at : at + len(words)] = words
            at += len(words)
        self._kernels.write_segments(self._memory, buffer.send(size), len(writes))

    def _write(self, name: str, offset: int, values: list[int]) -> None:
        self._writes.append((self._start[name] + offset, np.array(values, dtype=np.int32)))


class _Buffer:
    """A stretch of pinned memory and its mirror on the device."""

    def __init__(self, words: int, device: torch.device) -> None:
        self._device = device
        self._sent = torch.cuda.Event() if device.type == "cuda" else None  # type: ignore[no-untyped-call]
        self._allocate(words)

    def _allocate(self, words: int) -> None:
        self._host = torch.empty(words, dtype=torch.int32, pin_memory=self._sent is not None)
        self._mirror = torch.empty(words, dtype=torch.int32, device=self._device)
        self.host_words: Words = self._host.numpy()

    def clear(self) -> None:
        self.claim(0)
        self._host.zero_()
        self._mirror.zero_()

    def claim(self, words: int) -> "_Buffer":
        """Wait until its last content has arrived, and see that it holds `words`."""
        if self._sent is not None:
            self._sent.synchronize()
        if words > len(self._host):
            self._allocate(1 << (words - 1).bit_length())
        return self

    def send(self, words: int) -> Tensor:
        mirror = self._mirror[:words]
        mirror.copy_(self._host[:words], non_blocking=True)
        if self._sent is not None:
            self._sent.record()
        return mirror


def row_of(sequence: Sequence) -> int:
    if sequence.row is None:
        raise RuntimeError(f"sequence {sequence.id} is not running")
    return sequence.row
