"""Rank 0's running sequences, as the other ranks see them.

For each sequence of a batch, rank 0 sends what has changed since its last message: a flat list of integers, whose
length does not depend on the model, so that a step costs the host little. Blocks that a window has passed stay in the
tables of the others, which do not read them: where a window begins follows from how many tokens are computed.

A sequence is identified by its row in the device's tables, of which there are `max_num_seqs`; its tokens are deleted
when it ends.
"""

from collections.abc import Iterator
from collections.abc import Sequence as Items
from dataclasses import dataclass, field

from backend.engine.core.progress import TokenLogprobs
from backend.engine.core.scheduler import Scheduled
from backend.engine.core.sequence import Sequence, Status
from backend.engine.parallel.step_messages import Admission

KNOWN = TokenLogprobs(0.0, 0, [])  # in the place of what only rank 0 needs


@dataclass(slots=True)
class _Told:
    sequence: Sequence
    tokens: int = 0
    blocks: int = 0


@dataclass
class Originals:
    """Rank 0's side: what the others were told of, by row."""

    _told: dict[int, _Told] = field(default_factory=dict)

    def gone(self) -> list[int]:
        """Rows whose sequence is over, or was preempted, since this was last asked."""
        rows = [row for row, told in self._told.items() if _over(told.sequence, row)]
        for row in rows:
            del self._told[row]
        return rows

    def admitted(self, batch: list[Scheduled]) -> list[Admission]:
        """Those of the batch that the others do not know yet. Call it before `words`."""
        found = []
        for scheduled in batch:
            sequence, row = scheduled.sequence, _row_of(scheduled.sequence)
            told = self._told.get(row)
            if scheduled.admitted or told is None or told.sequence is not sequence:
                self._told[row] = _Told(sequence)
                found.append(
                    Admission(
                        row, sequence.id, sequence.num_prompt, sequence.params, sorted(sequence.ends), sequence.adapter
                    )
                )
        return found

    def words(self, batch: Items[tuple[Sequence, int, bool]]) -> list[int]:
        """batch: sequence, number of tokens that it computes, whether it is new to the tables."""
        words: list[int] = []
        for sequence, num_tokens, admitted in batch:
            told = self._told[_row_of(sequence)]
            tokens, tables = sequence.tokens[told.tokens :], sequence.block_tables
            blocks = len(sequence.block_table) - told.blocks
            words += (
                sequence.row or 0, num_tokens, int(admitted), sequence.num_computed, sequence.num_pending,
                len(sequence.prompt_logprobs), len(tokens), len(tables), blocks,
            )  # fmt: skip
            words += tokens
            for table in tables:
                words += table[told.blocks :]
            told.tokens += len(tokens)
            told.blocks += blocks
        return words


HEAD = 9  # words before a sequence's tokens and blocks


@dataclass
class Mirrors:
    """Another rank's side: the sequences of rank 0, by row."""

    _sequences: dict[int, Sequence] = field(default_factory=dict)

    def forget(self, rows: list[int]) -> None:
        for row in rows:
            self._sequences.pop(row, None)

    def forget_all(self) -> None:
        self._sequences.clear()

    def admit(self, admitted: list[Admission]) -> None:
        for new in admitted:
            sequence = Sequence(new.id, [], new.params, arrival=0, ends=frozenset(new.ends), adapter=new.adapter)
            sequence.num_prompt = new.num_prompt
            sequence.row, sequence.status = new.row, Status.RUNNING
            self._sequences[new.row] = sequence

    def read(self, words: list[int]) -> Iterator[tuple[Sequence, int, bool]]:
        """As `Originals.words` was given them, brought up to date."""
        at = 0
        while at < len(words):
            row, num_tokens, admitted, computed, pending, known, tokens, tables, blocks = words[at : at + HEAD]
            at += HEAD
            sequence = self._sequences[row]
            sequence.num_computed, sequence.num_pending = computed, pending
            sequence.tokens += words[at : at + tokens]
            at += tokens
            sequence.block_tables += [[] for _ in range(tables - len(sequence.block_tables))]
            for table in sequence.block_tables:
                table += words[at : at + blocks]
                at += blocks
            if known != len(sequence.prompt_logprobs):
                sequence.prompt_logprobs = [KNOWN] * known
            yield sequence, num_tokens, bool(admitted)


def _over(sequence: Sequence, row: int) -> bool:
    return sequence.status is Status.FINISHED or sequence.row != row


def _row_of(sequence: Sequence) -> int:
    if sequence.row is None:
        raise RuntimeError(f"sequence {sequence.id} is not running")
    return sequence.row
