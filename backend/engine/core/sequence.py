"""One sequence: a prompt that is growing an answer."""

from enum import Enum, auto
from typing import Any

from backend.engine.core.grammar import GrammarMatcher
from backend.engine.core.host_tier import Load
from backend.engine.core.progress import TokenLogprobs
from backend.engine.core.restriction import Restriction
from backend.engine.core.sampling import SamplingParams

NO_BLOCK = -1
"""In a block table: no layer reads these tokens any more."""


class Status(Enum):
    WAITING = auto()
    LOADING = auto()  # its blocks are on their way from the host
    RUNNING = auto()
    FINISHED = auto()


class Sequence:
    """Mutable, owned by the engine.

    ``tokens`` is prompt and answer; the first ``num_computed`` have their keys and values in the cache, in the blocks
    of ``block_tables``, which are equally long: one for each group of layers that keep the same tokens
    (`models.layer_groups`), with NO_BLOCK where a window has passed. Preemption sets ``num_computed`` back to 0 and
    forgets the blocks; the tokens stay, and are all computed again.

    The device may be ahead: ``num_pending`` tokens more were drawn there, or are being drawn, and their ids have not
    come back yet. They count as tokens wherever only their number matters.
    """

    __slots__ = (
        "adapter",
        "arrival",
        "block_hashes",
        "block_tables",
        "cache_root",
        "chain",
        "ends",
        "fetching",
        "id",
        "kept",
        "leader",
        "load",
        "matcher",
        "max_length",
        "num_cached",
        "num_computed",
        "num_pending",
        "num_prompt",
        "params",
        "partial",
        "priority",
        "project",
        "prompt_logprobs",
        "restriction",
        "row",
        "started",
        "status",
        "tokens",
    )

    def __init__(
        self,
        id: int,
        prompt: list[int],
        params: SamplingParams,
        *,
        arrival: int,
        priority: int = 0,
        leader: "Sequence | None" = None,
        cache_root: bytes = b"",
        project: bytes = b"",
        matcher: GrammarMatcher | None = None,
        restriction: Restriction | None = None,
        max_length: int | None = None,
        ends: frozenset[int] = frozenset(),
        adapter: int = -1,
    ) -> None:
        """
        Args:
            priority: lower runs first.
            leader: a sequence of the same prompt to wait for, whose blocks it then shares.
            cache_root: sequences of different roots never share blocks.
            project: for whom it runs; see `fairness`.
            matcher: follows the grammar that the answer has to match.
            restriction: what may not be drawn beside.
            max_length: tokens, prompt and answer, at which it ends; by default what prompt and ``max_tokens`` make.
            ends: tokens that end it.
            adapter: slot of the one that it is computed with, -1 for none.
        """
        self.id = id
        self.tokens = list(prompt)
        self.num_prompt = len(prompt)
        self.params = params
        self.arrival = arrival
        self.priority = priority
        self.leader = leader
        self.cache_root = cache_root
        self.project = project
        self.matcher = matcher
        self.restriction = restriction
        full = len(prompt) + params.max_tokens
        self.max_length = full if max_length is None else min(full, max_length)
        self.ends = ends
        self.adapter = adapter
        self.fetching = False  # another backend computes its prompt; see `engine.apart`
        self.prompt_logprobs: list[TokenLogprobs] = []  # as far as they are known, of the tokens behind the first
        self.partial: Any = None  # what its runner keeps from one part of the prompt to the next
        self.status = Status.WAITING
        self.row: int | None = None  # its place in the device's tables, while it runs
        self.num_computed = 0
        self.num_pending = 0
        self.num_cached: int | None = None
        self.started: float | None = None  # monotonic seconds, once it ran
        self.block_tables: list[list[int]] = [[]]  # others are added with the first block of one (`BlockManager`)
        self.block_hashes: list[bytes] = []
        self.chain: list[tuple[bytes, bytes]] = []  # name and tokens of each full block, as far as they were hashed
        self.kept: list[bytes] = []  # names of blocks that the host keeps for it while it is preempted
        self.load: Load | None = None  # from the host, that it waits for: its own, or another's of the same blocks

    @property
    def block_table(self) -> list[int]:
        """The first: of the layers that keep all tokens, if there are any."""
        return self.block_tables[0]

    @block_table.setter
    def block_table(self, blocks: list[int]) -> None:
        self.block_tables[0] = blocks

    @property
    def order(self) -> tuple[int, int]:
        """First come, first served within a priority."""
        return self.priority, self.arrival

    @property
    def num_uncomputed(self) -> int:
        return len(self.tokens) + self.num_pending - self.num_computed

    @property
    def num_runnable(self) -> int:
        """Tokens a step could compute: none once its last token is drawn, even if the id is still to come."""
        length = len(self.tokens) + self.num_pending
        return length - self.num_computed if length < self.max_length else 0

    @property
    def num_output(self) -> int:
        return len(self.tokens) - self.num_prompt

    @property
    def may_not_end(self) -> bool:
        """The next token that is drawn may not be one that ends it."""
        return bool(self.ends) and self.num_output + self.num_pending < self.params.min_tokens

    @property
    def may_adopt(self) -> bool:
        """Whether blocks of others serve it: not while log probabilities of its prompt are to be computed."""
        return self.params.prompt_logprobs is None or len(self.prompt_logprobs) >= self.num_prompt - 1

    @property
    def is_held(self) -> bool:
        """It cannot run yet: a token of it is still to come from the device, its grammar is being compiled, its
        leader's prompt is not computed, its own is still to come from another backend, or blocks that it begins with
        are on their way from the host."""
        coming = self.fetching or (self.load is not None and not self.load.over)
        if self.num_pending or coming:
            return True
        return (self.matcher is not None and not self.matcher.ready) or self.waits_for_leader

    @property
    def awaits_blocks(self) -> bool:
        """Nothing can be done for it before blocks have come from another backend."""
        leader = self.leader
        return self.fetching or (leader is not None and leader.status is not Status.FINISHED and leader.fetching)

    @property
    def waits_for_leader(self) -> bool:
        """Until the leader's prompt is computed or the leader is gone."""
        leader = self.leader
        return leader is not None and leader.status is not Status.FINISHED and leader.num_computed < leader.num_prompt
