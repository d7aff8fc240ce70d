"""Which sequences run in the next step, and with how many tokens each.

Continuous batching (Yu et al. 2022, Orca) under one token budget, with chunked prefill mixed into decode (Agrawal et
al. 2023, Sarathi). There are no phases: each sequence has tokens that are not computed yet, one when decoding, many
when new or preempted. Running ones come first, every decode is kept its one token, and the rest of the budget goes to
prompts in order. When blocks run out, the last in order is preempted: its blocks are freed and all its tokens are
computed again later.
"""

from bisect import insort
from dataclasses import dataclass

from backend.engine.block_manager import BlockManager
from backend.engine.sequence import Sequence, Status


@dataclass(frozen=True, slots=True)
class Scheduled:
    """`sequence` computes its next `num_tokens` tokens. It samples if they are its last.

    admitted: it comes from the waiting queue, so the device's tables hold nothing of it yet.
    """

    sequence: Sequence
    num_tokens: int
    admitted: bool = False

    @property
    def samples(self) -> bool:
        return self.num_tokens == self.sequence.num_uncomputed


class Scheduler:
    def __init__(self, blocks: BlockManager, *, max_num_seqs: int, max_num_batched_tokens: int) -> None:
        self.blocks = blocks
        self.max_num_seqs = max_num_seqs
        self.budget = max_num_batched_tokens
        self.waiting: list[Sequence] = []  # in order
        self.running: list[Sequence] = []  # in order
        self._free_rows = list(range(max_num_seqs))
        self.num_preemptions = 0
        self.prefix_queries = 0  # tokens looked up in the prefix cache, and found there
        self.prefix_hits = 0

    def add(self, sequence: Sequence) -> None:
        insort(self.waiting, sequence, key=_order)

    def schedule(self) -> list[Scheduled]:
        """The next step's batch; empty only if nothing can run."""
        batch, preempted = self._schedule_running()
        if not preempted:
            batch += self._admit(self.budget - sum(s.num_tokens for s in batch))
        return batch

    def _schedule_running(self) -> tuple[list[Scheduled], bool]:
        batch: list[Scheduled] = []
        preempted = False
        budget = self.budget
        decodes_left = sum(s.num_runnable == 1 for s in self.running)
        at = 0
        while at < len(self.running):  # preemption shortens the list behind `at`
            sequence = self.running[at]
            runnable = sequence.num_runnable
            decodes_left -= runnable == 1
            num_tokens = min(runnable, budget - decodes_left)
            if num_tokens <= 0:
                at += 1
                continue
            while not self.blocks.grow(sequence, num_tokens):
                victim = self.running[-1]
                decodes_left -= victim is not sequence and victim.num_runnable == 1
                self.preempt(victim)
                preempted = True
                if victim is sequence:
                    return batch, preempted
            self.blocks.publish(sequence, num_tokens)
            batch.append(Scheduled(sequence, num_tokens))
            budget -= num_tokens
            at += 1
        return batch, preempted

    def _admit(self, budget: int) -> list[Scheduled]:
        batch: list[Scheduled] = []
        for sequence in list(self.waiting):
            if budget <= 0 or len(self.running) >= self.max_num_seqs:
                break
            if sequence.waits_for_leader or sequence.num_pending:
                continue  # pending: preempted, with a token of it still to come from the device
            found = self.blocks.adopt_prefix(sequence)
            num_tokens = min(sequence.num_uncomputed, budget)
            if not self.blocks.grow(sequence, num_tokens):
                self.blocks.release(sequence)
                break
            if sequence.num_cached is None:  # counted once, when it really runs for the first time
                sequence.num_cached = found
                self.prefix_queries += sequence.num_prompt
                self.prefix_hits += found
            sequence.leader = None
            sequence.status = Status.RUNNING
            sequence.row = self._free_rows.pop()
            self.waiting.remove(sequence)
            insort(self.running, sequence, key=_order)
            self.blocks.publish(sequence, num_tokens)
            batch.append(Scheduled(sequence, num_tokens, admitted=True))
            budget -= num_tokens
        return batch

    def preempt(self, sequence: Sequence) -> None:
        """Back to waiting, to be computed anew. For a running sequence."""
        self._leave(sequence)
        sequence.status = Status.WAITING
        self.num_preemptions += 1
        self.add(sequence)

    def finish(self, sequence: Sequence) -> None:
        """Forget it, wherever it is, and free its blocks. Harmless when already finished."""
        if sequence.status is Status.FINISHED:
            return
        if sequence.status is Status.RUNNING:
            self._leave(sequence)
        else:
            self.waiting.remove(sequence)
        sequence.status = Status.FINISHED

    def _leave(self, sequence: Sequence) -> None:
        self.running.remove(sequence)
        self.blocks.release(sequence)
        if sequence.row is not None:
            self._free_rows.append(sequence.row)
            sequence.row = None


def _order(sequence: Sequence) -> tuple[int, int]:
    return sequence.order
