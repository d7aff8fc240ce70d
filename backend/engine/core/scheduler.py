"""Which sequences run in the next step, and with how many tokens each.

Continuous batching (Yu et al. 2022, Orca) under one token budget, with chunked prefill mixed into decode (Agrawal et
al. 2023, Sarathi). There are no phases: each sequence has tokens that are not computed yet, one when decoding, many
when new or preempted. Running ones come first, every decode is kept its one token, and the rest of the budget goes to
prompts in order, up to what a pace lets through (`backend.engine.pacing`). When blocks run out, the last in order is
preempted: its blocks are freed and all its tokens are computed again later.

With a host tier (`host_tier`) a sequence may wait once more before it runs, while blocks are copied (LOADING), and a
preempted one is swapped if two copies are faster than to compute it again and the tier has room: the tier then keeps
its blocks until it is back or over. What was not kept is computed.

Who waits is admitted by priority, then by how little its project was served (`fairness`), then by arrival. One of a
better priority does not wait for those of a worse: they are preempted until it fits, so batch work stands still while
interactive work needs the place.
"""

import sys
import time
from bisect import insort
from collections import deque
from dataclasses import dataclass
from heapq import heapify, heappop, heappush

from backend.engine.core.block_manager import BlockManager, Recall
from backend.engine.core.fairness import FairShare
from backend.engine.core.sequence import Sequence, Status
from backend.engine.pacing import PromptPace

PART_STEP = 1024  # tokens: see `_part`
PROMPT_ROWS = 512


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

    @property
    def prompt_rows(self) -> range:
        """Which of its tokens have one of the prompt behind them whose log probability is asked for, and not known."""
        sequence = self.sequence
        if sequence.params.prompt_logprobs is None:
            return range(0)
        known = len(sequence.prompt_logprobs) - sequence.num_computed
        return range(max(0, known), min(self.num_tokens, sequence.num_prompt - 1 - sequence.num_computed))


class Scheduler:
    def __init__(
        self,
        blocks: BlockManager,
        *,
        max_num_seqs: int,
        max_num_batched_tokens: int,
        whole: bool = False,
        pace: PromptPace | None = None,
    ) -> None:
        """whole: no prompt is cut into chunks; none may be longer than a step then, and there is no pace. pace: of
        prompt tokens beside decodes; None: as many as there is room for."""
        assert not (whole and pace)  # noqa: S101
        self.blocks = blocks
        self.pace = pace
        self.whole = whole
        self.max_num_seqs = max_num_seqs
        self.budget = max_num_batched_tokens
        self.waiting: list[Sequence] = []  # in order
        self.running: list[Sequence] = []  # in order
        self.loading: list[Sequence] = []  # first come, first served
        self._free_rows = list(range(max_num_seqs))
        self.num_preemptions = 0
        self.num_swaps = 0  # preemptions whose blocks the host tier keeps
        self.prefix_queries = 0  # tokens looked up in the prefix cache, and found there
        self.prefix_hits = 0
        self.shares = FairShare()

    def add(self, sequence: Sequence) -> None:
        self.shares.join(sequence.project)
        self._queue(sequence)

    def _queue(self, sequence: Sequence) -> None:
        insort(self.waiting, sequence, key=_order)

    def schedule(self) -> list[Scheduled]:
        """The next step's batch; empty only if nothing can run."""
        self._make_way()
        room = self._prompt_room()
        decoding = {s.id for s in self.running if s.num_runnable == 1}
        batch, preempted = self._schedule_running(room)
        room -= sum(s.num_tokens for s in batch if s.sequence.id not in decoding)
        if not preempted:
            landed = self._land(min(room, self.budget - sum(s.num_tokens for s in batch)))
            batch += landed
            room -= sum(s.num_tokens for s in landed)
            batch += self._admit(min(room, self.budget - sum(s.num_tokens for s in batch)))
        return batch

    def _prompt_room(self) -> int:
        """Prompt tokens that this step may take."""
        if self.pace is None:
            return self.budget
        runnable = [s.num_runnable for s in self.running]
        waiting = sum(s.num_uncomputed for s in (*self.loading, *self.waiting) if not s.is_held)
        return self.pace.share(runnable.count(1), sum(n for n in runnable if n > 1) + waiting)

    def _make_way(self) -> None:
        """Preempt those of worse priority for the first in the queue, if it then fits."""
        urgent = next((s for s in self.waiting if not s.is_held), None)
        if urgent is None or not self.running or self.running[-1].priority <= urgent.priority:
            return
        worse = [s for s in self.running if s.priority > urgent.priority]
        room = self.blocks.num_free + sum(len(self.blocks.private(s)) for s in worse)
        needed = self.blocks.missing(urgent, min(urgent.num_uncomputed, self.budget))
        if (recall := self.blocks.recallable(urgent)) is not None:
            needed = max(needed, self.blocks.needed(recall))
        if needed > room:
            return
        while worse and (len(self.running) + len(self.loading) >= self.max_num_seqs or needed > self.blocks.num_free):
            self.preempt(worse.pop())

    def _schedule_running(self, room: int) -> tuple[list[Scheduled], bool]:
        """room: for tokens of prompts."""
        batch: list[Scheduled] = []
        preempted = False
        budget = self.budget
        decodes_left = sum(s.num_runnable == 1 for s in self.running)
        at = 0
        while at < len(self.running):  # preemption shortens the list behind `at`
            sequence = self.running[at]
            runnable = sequence.num_runnable
            decodes_left -= runnable == 1
            most = min(budget - decodes_left, _most(sequence))
            if runnable > 1:
                most = min(most, room)
            num_tokens = _part(sequence, runnable, most)
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
            batch.append(self._run(sequence, num_tokens))
            budget -= num_tokens
            room -= num_tokens if runnable > 1 else 0
            at += 1
        return batch, preempted

    def _run(self, sequence: Sequence, num_tokens: int, *, admitted: bool = False) -> Scheduled:
        scheduled = Scheduled(sequence, num_tokens, admitted)
        self.blocks.publish(sequence, num_tokens)
        self.shares.charge(sequence.project, num_tokens - scheduled.samples, int(scheduled.samples))
        return scheduled

    def _admit(self, budget: int) -> list[Scheduled]:
        batch: list[Scheduled] = []
        queues: dict[tuple[int, bytes], deque[Sequence]] = {}
        for sequence in self.waiting:
            if not sequence.is_held:
                queues.setdefault((sequence.priority, sequence.project), deque()).append(sequence)
        heads = [self._rank(queue[0]) for queue in queues.values()]
        heapify(heads)
        while heads and budget > 0 and len(self.running) + len(self.loading) < self.max_num_seqs:
            queue = queues[heappop(heads)[-1]]
            sequence = queue.popleft()
            recall = None if self._forks(sequence) else self.blocks.recallable(sequence)
            if recall is not None:
                if not self._recalled(sequence, recall):
                    break
            else:
                scheduled = self._admitted(sequence, budget)
                if scheduled is None:
                    break
                batch.append(scheduled)
                budget -= scheduled.num_tokens
            if queue:
                heappush(heads, self._rank(queue[0]))
        return batch

    def _rank(self, sequence: Sequence) -> tuple[int, int, int, tuple[int, bytes]]:
        """Place in the queue, and which of the queues it heads."""
        priority, project = sequence.priority, sequence.project
        return priority, self.shares.served(project), sequence.arrival, (priority, project)

    def _forks(self, sequence: Sequence) -> bool:
        leader = sequence.leader
        if leader is None or leader.status is not Status.RUNNING or not sequence.may_adopt:
            return False
        return self.blocks.can_fork(leader, sequence)  # else it finds its prompt in the prefix cache, or computes it

    def _recalled(self, sequence: Sequence, recall: Recall) -> bool:
        """It waits for blocks from the host from now on; False if there is no room for them."""
        if recall.load is None:
            if not self.blocks.has_room(recall):
                return False
            self.waiting.remove(sequence)
            sequence.load = self.blocks.recall(sequence, recall)
            sequence.status = Status.LOADING
            self.loading.append(sequence)
        else:
            sequence.load = recall.load
        return True

    def _land(self, budget: int) -> list[Scheduled]:
        """Run those whose blocks have come from the host."""
        batch: list[Scheduled] = []
        for sequence in [s for s in self.loading if s.load is not None and s.load.over]:
            num_tokens = _part(sequence, sequence.num_uncomputed, min(budget, _most(sequence)))
            if num_tokens <= 0:
                break
            self.loading.remove(sequence)
            if not self.blocks.grow(sequence, num_tokens):
                self.blocks.release(sequence)
                sequence.status, sequence.load = Status.WAITING, None
                self._queue(sequence)
                continue
            batch.append(self._started(sequence, num_tokens, sequence.num_computed))
            budget -= num_tokens
        return batch

    def _admitted(self, sequence: Sequence, budget: int) -> Scheduled | None:
        """It runs from now on; None if there are no blocks for it."""
        leader = sequence.leader
        forks = self._forks(sequence)
        if forks and leader is not None and not self.blocks.fork(leader, sequence):
            return None
        found = sequence.num_computed if forks else self._found(sequence)
        num_tokens = _part(sequence, sequence.num_uncomputed, min(budget, _most(sequence)))
        cut = self.whole and num_tokens < sequence.num_uncomputed
        if cut or not self.blocks.grow(sequence, num_tokens):
            self.blocks.release(sequence)
            return None
        self.waiting.remove(sequence)
        return self._started(sequence, num_tokens, found, forks=forks)

    def _started(self, sequence: Sequence, num_tokens: int, found: int, *, forks: bool = False) -> Scheduled:
        """It is in no queue any more, and runs. found: tokens that it has not to compute."""
        if sequence.started is None:  # counted once, when it really runs for the first time
            sequence.num_cached = found
            sequence.started = time.monotonic()
            if not forks:
                self.prefix_queries += sequence.num_prompt
                self.prefix_hits += found
        sequence.leader = sequence.load = None
        self._unkeep(sequence)
        sequence.status = Status.RUNNING
        sequence.row = self._free_rows.pop()
        insort(self.running, sequence, key=_order)
        return self._run(sequence, num_tokens, admitted=True)

    def _found(self, sequence: Sequence) -> int:
        """Tokens of its prompt that it need not have computed, which the prefix cache had: now, or before its blocks
        came from another backend."""
        return sequence.num_cached or 0 if sequence.block_table else self.blocks.adopt_prefix(sequence)

    def preempt(self, sequence: Sequence) -> None:
        """Return a running sequence to the waiting queue; it is swapped or recomputed."""
        self._keep(sequence)
        self._leave(sequence)
        sequence.status = Status.WAITING
        self.num_preemptions += 1
        self._queue(sequence)

    def finish(self, sequence: Sequence) -> None:
        """Forget it, wherever it is, and free its blocks. Harmless when already finished."""
        if sequence.status is Status.FINISHED:
            return
        if sequence.status is Status.RUNNING:
            self._leave(sequence)
        elif sequence.status is Status.LOADING:
            self.loading.remove(sequence)
            if self.blocks.tier is not None and sequence.load is not None:
                self.blocks.tier.end(sequence.load)  # before its blocks are used again
            self.blocks.release(sequence)
        else:
            self.waiting.remove(sequence)
            self.blocks.release(sequence)  # those that came, or were to come, from another backend
        self._unkeep(sequence)
        sequence.status = Status.FINISHED
        self.shares.leave(sequence.project)

    def _keep(self, sequence: Sequence) -> None:
        """Have the tier keep the blocks of one that is preempted, if that is faster than to compute them again."""
        tier, names = self.blocks.tier, self.blocks.named(sequence)
        if tier is not None and names and sequence.may_adopt and tier.pays(copies=2) and tier.can_keep(names):
            sequence.kept = names
            tier.keep(names)
            self.num_swaps += 1

    def _unkeep(self, sequence: Sequence) -> None:
        if sequence.kept and self.blocks.tier is not None:
            self.blocks.tier.unkeep(sequence.kept)
            sequence.kept = []

    def _leave(self, sequence: Sequence) -> None:
        self.running.remove(sequence)
        self.blocks.release(sequence)
        if sequence.row is not None:
            self._free_rows.append(sequence.row)
            sequence.row = None


def _part(sequence: Sequence, left: int, most: int) -> int:
    """Tokens that a step computes of the `left` ones. A large part that is not the last ends at a multiple of
    PART_STEP: a card has a faster kernel for what follows such a history (`gpu.paged_layers`)."""
    if left <= most or most < 2 * PART_STEP:
        return min(left, most)
    return most - (sequence.num_computed + most) % PART_STEP


def _most(sequence: Sequence) -> int:
    """Tokens of it that one step computes at most: each row of logits of a prompt takes the memory of a vocabulary."""
    return sys.maxsize if sequence.may_adopt else PROMPT_ROWS


def _order(sequence: Sequence) -> tuple[int, int]:
    return sequence.order
