"""Blocks of KV cache: who holds which, and which hold a prefix worth keeping.

PagedAttention (Kwon et al. 2023): a sequence's keys and values are in blocks of `block_size` tokens, listed in its
block table. A full block is named by a hash chained over all tokens before it; a new sequence takes over blocks of a
prefix it shares. A block is written by one sequence only, and only before it is full and named; so sharing one needs no
copy. A fork shares its leader's full blocks whether they are named or not, and copies the one that it will write to.

A sequence has a block table for each group of layers (`models.layer_groups`), all of blocks of the same pool. In the
table of a window, blocks that it has passed are given back while the sequence runs: once no token that is still to be
computed, the guessed ones included, attends to any of theirs. A prefix is found if the tables without a window have all
of its blocks, and the others those that their windows reach from its end.

Nothing of a sequence outlives it but what the prefix cache keeps: a block that loses its last holder without a name, or
its name, is put on `dirty`, to be zeroed before the next step. With a `tier`, a block that loses its name because
another sequence needs it is copied to the host first.
"""

from array import array
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import blake2b

from backend.engine.core.host_tier import HostTier, Load
from backend.engine.core.sequence import NO_BLOCK, Sequence
from backend.models.layer_groups import reached_from

Known = Callable[[bytes, bytes], bool]  # name and tokens of a block


class Block:
    """``hash`` and ``tokens`` are set while its content can be found by later sequences."""

    __slots__ = ("hash", "ref_count", "tokens")

    def __init__(self) -> None:
        self.ref_count = 0
        self.hash: bytes | None = None
        self.tokens = b""  # as `_packed` gives them


@dataclass(frozen=True, slots=True)
class Recall:
    """The longest known prefix of a sequence, `count` blocks long, some blocks of which are on the host: of each its
    name and, if it is there, its block on the device, table by table; of a window those that it reaches. load: one
    under way that brings some of them already."""

    count: int
    names: list[bytes]
    blocks: list[int | None]
    load: Load | None


class BlockManager:
    """Hands out block ids 0 … num_blocks-1.

    A block with references is used; one without is free, and, if it still has a hash, may be revived. Free blocks are
    reused least recently freed first, a sequence's tail before its head, so that what survives is the start of prompts.
    """

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        *,
        prefix_cache: bool = True,
        salt: bytes = b"",
        tier: HostTier | None = None,
        windows: tuple[int | None, ...] = (None,),
    ) -> None:
        """tier: where evicted blocks go; None: they are lost. windows: of each table (`LayerGroups.windows`)."""
        self.tier = tier
        self.windows = windows
        self.block_size = block_size
        self.prefix_cache = prefix_cache
        self.blocks = [Block() for _ in range(num_blocks)]
        self._free: OrderedDict[int, None] = OrderedDict.fromkeys(range(num_blocks))
        self._by_hash: dict[bytes, int] = {}
        self._salt = salt
        self.copies: list[tuple[int, int]] = []  # (from, to), to be made before the next step runs
        self.dirty: list[int] = []  # to be zeroed before that

    @property
    def num_free(self) -> int:
        return len(self._free)

    @property
    def num_used(self) -> int:
        return len(self.blocks) - len(self._free)

    def adopt_prefix(self, sequence: Sequence) -> int:
        """Take over every cached block of the longest known prefix, for a sequence that holds none.

        At least one token is left to compute, because its logits are needed. Sets ``block_table`` and
        ``num_computed``; returns the number of tokens found.
        """
        if not self.prefix_cache or not sequence.may_adopt:
            return 0
        count = self._longest(sequence, lambda name, tokens: self._found(name, tokens) is not None)
        chain = self._adoptable(sequence)[:count]
        for table, own in enumerate(self._tables(sequence)):
            first = self._first(table, count)
            own += [NO_BLOCK] * first
            for name, tokens in chain[first:]:
                found = self._found(name_in(table, name), tokens)
                assert found is not None  # noqa: S101 -- `_longest` has looked
                self._take(found)
                own.append(found)
        sequence.block_hashes += [name for name, _ in chain]
        sequence.num_computed = count * self.block_size
        return sequence.num_computed

    def _longest(self, sequence: Sequence, known: Known) -> int:
        """Blocks of the longest prefix for which every table has what it needs."""
        chain = self._adoptable(sequence)
        count = len(chain)
        for table, window in enumerate(self.windows):
            if window is None:
                pairs = enumerate(chain[:count])
                count = next((i for i, (name, tokens) in pairs if not known(name_in(table, name), tokens)), count)
        windowed = [table for table, window in enumerate(self.windows) if window is not None]
        before = None
        while count != before:  # a shorter prefix needs other blocks of the other windows
            before = count
            for table in windowed:
                count = self._known_up_to(table, chain, count, known)
        return count

    def _known_up_to(self, table: int, chain: list[tuple[bytes, bytes]], count: int, known: Known) -> int:
        """The largest number of blocks, up to `count`, from whose end the window reaches known blocks only."""
        at = count
        while at > self._first(table, count):
            at -= 1
            name, tokens = chain[at]
            if not known(name_in(table, name), tokens):
                count = at
        return count

    def _first(self, table: int, count: int) -> int:
        """The first block that is needed of a prefix of `count` blocks."""
        return reached_from(self.windows[table], count * self.block_size, self.block_size)

    def _tables(self, sequence: Sequence) -> list[list[int]]:
        found = sequence.block_tables
        while len(found) < len(self.windows):
            found.append([])
        return found

    def recallable(self, sequence: Sequence) -> Recall | None:
        """What `recall` would bring; None if no block of the longest known prefix is on the host alone, or if it is
        faster to compute them."""
        tier = self.tier
        held = sequence.block_table or not sequence.may_adopt  # its blocks came from another backend
        if tier is None or not tier.used or not self.prefix_cache or held:
            return None
        count = self._longest(
            sequence, lambda name, tokens: self._found(name, tokens) is not None or tier.holds(name, tokens)
        )
        chain = self._adoptable(sequence)[:count]
        needed = [
            (name_in(table, name), tokens)
            for table in range(len(self.windows))
            for name, tokens in chain[self._first(table, count) :]
        ]
        names = [name for name, _ in needed]
        blocks = [self._found(name, tokens) for name, tokens in needed]
        missing = [name for name, found in zip(names, blocks, strict=True) if found is None]
        if not missing or not tier.pays():
            return None
        return Recall(count, names, blocks, tier.underway(missing))

    def has_room(self, recall: Recall) -> bool:
        """Whether there are blocks for it, and one more in each table to compute in."""
        there = [found for found in recall.blocks if found is not None]
        free = len(self._free) - sum(self.blocks[found].ref_count == 0 for found in there)
        return self.needed(recall) - len(there) <= free

    def needed(self, recall: Recall) -> int:
        """Blocks of a sequence that begins so, to compute in included."""
        return len(recall.blocks) + len(self.windows)

    def recall(self, sequence: Sequence, recall: Recall) -> Load:
        """Take over what is on the device, and begin to bring the rest from the host, for a sequence that holds none.

        Its blocks are its own, and not to be read, until `land`.
        """
        assert self.tier is not None  # noqa: S101 -- where it comes from has looked
        for found in recall.blocks:
            if found is not None:
                self._take(found)
        missing = [name for name, found in zip(recall.names, recall.blocks, strict=True) if found is None]
        load, brought = self.tier.load(missing, self._claim_to_overwrite, recall.count)
        over = set(brought)
        self.dirty = [block_id for block_id in self.dirty if block_id not in over]
        fresh = iter(brought)
        blocks = iter([next(fresh) if found is None else found for found in recall.blocks])
        for table, own in enumerate(self._tables(sequence)):
            first = self._first(table, recall.count)
            own += [NO_BLOCK] * first
            own += [next(blocks) for _ in range(first, recall.count)]
        sequence.num_computed = recall.count * self.block_size
        return load

    def land(self, sequence: Sequence) -> None:
        """What was brought for it has arrived: others may find it, too."""
        for index in range(len(sequence.block_table)):
            self._publish(sequence, index)

    def _claim_to_overwrite(self) -> tuple[int, bytes | None, bytes]:
        """A block, with the name and tokens that it had: what is in it need not be zeroed."""
        block_id, _ = self._free.popitem(last=False)
        block = self.blocks[block_id]
        had = block.hash, block.tokens
        self._forget(block)
        block.ref_count = 1
        return block_id, *had

    def can_fork(self, leader: Sequence, sequence: Sequence) -> bool:
        """Whether `leader` still holds all of their prompt that `fork` would share."""
        first = [reached_from(window, sequence.num_prompt - 1, self.block_size) for window in self.windows]
        end = -(-(sequence.num_prompt - 1) // self.block_size)
        return all(NO_BLOCK not in own[at:end] for own, at in zip(self._tables(leader), first, strict=True))

    def fork(self, leader: Sequence, sequence: Sequence) -> bool:
        """Share what `leader` computed of their prompt, all but the last token, with one that holds nothing.

        Copy on write: full blocks have one more holder, the block that both would write to is copied. False, and
        nothing done, if there is no block for that.
        """
        if len(self._free) < len(self.windows):
            return False
        whole, rest = divmod(sequence.num_prompt - 1, self.block_size)
        for window, theirs, own in zip(self.windows, self._tables(leader), self._tables(sequence), strict=True):
            first = reached_from(window, sequence.num_prompt - 1, self.block_size)
            own += [NO_BLOCK] * min(first, whole)
            for block_id in theirs[first:whole]:
                self._take(block_id)
                own.append(block_id)
            if rest:
                self.copies.append((theirs[whole], self._claim()))
                own.append(self.copies[-1][1])
        sequence.block_hashes += leader.block_hashes[:whole]
        sequence.num_computed = sequence.num_prompt - 1
        return True

    def missing(self, sequence: Sequence, num_tokens: int) -> int:
        """How many blocks `sequence` lacks to compute `num_tokens` more."""
        return self._places_missing(sequence, num_tokens) * len(self.windows)

    def _places_missing(self, sequence: Sequence, num_tokens: int) -> int:
        """Of each table."""
        needed = -(-(sequence.num_computed + num_tokens) // self.block_size)
        return max(0, needed - len(sequence.block_table))

    def grow(self, sequence: Sequence, num_tokens: int) -> bool:
        """Give it the blocks it lacks for `num_tokens` more; all or, returning False, none. Those that windows have
        passed are given back first.

        Steps in flight may read these still: what is written into them next is written behind those steps.
        """
        self._pass(sequence)
        places = self._places_missing(sequence, num_tokens)
        if places * len(self.windows) > len(self._free):
            return False
        for own in self._tables(sequence) if places else ():
            own += [self._claim() for _ in range(places)]
        return True

    def _pass(self, sequence: Sequence) -> None:
        """Give back what no token from `num_computed` on attends to."""
        for window, own in zip(self.windows, sequence.block_tables, strict=False):
            at = min(reached_from(window, sequence.num_computed, self.block_size), len(own)) - 1
            while at >= 0 and own[at] != NO_BLOCK:
                self._give_back(own[at])
                own[at] = NO_BLOCK
                at -= 1

    def reserve(self, sequence: Sequence, spare: int) -> bool:
        """Give it the blocks that it lacks to compute its last token, once all before it have come from elsewhere; of
        a window those that it reaches from there. All or, returning False, none, if not so many are left to others."""
        last = len(sequence.tokens) - 1
        needed = last // self.block_size + 1
        firsts = [reached_from(window, last, self.block_size) for window in self.windows]
        tables = self._tables(sequence)
        missing = sum(needed - max(len(own), first) for own, first in zip(tables, firsts, strict=True))
        if missing + spare > len(self._free):
            return False
        for own, first in zip(tables, firsts, strict=True):
            for at, block_id in enumerate(own[:first]):
                if block_id != NO_BLOCK:
                    self._give_back(block_id)
                    own[at] = NO_BLOCK
            own += [NO_BLOCK] * (first - len(own))
            own += [self._claim() for _ in range(len(own), needed)]
        return True

    def _claim(self) -> int:
        block_id, _ = self._free.popitem(last=False)
        block = self.blocks[block_id]
        if block.hash is not None:
            if self.tier is not None and (slot := self.tier.admit(block.hash, block.tokens)) is not None:
                self.tier.store(block_id, slot)
            self._forget(block)
            self.dirty.append(block_id)
        block.ref_count = 1
        return block_id

    def publish(self, sequence: Sequence, num_tokens: int = 0) -> None:
        """Name the blocks that are full once `num_tokens` more are computed, so that others can find them.

        To be called when the step that computes them is certain to run, before it or after it. A hit, even one in the
        same step, reads what is written: steps run in order, and within a step each layer writes the keys and values
        of all its tokens before any attention reads. So prompts that arrive together compute a shared beginning once.
        """
        if not self.prefix_cache:
            return
        certain = min(sequence.num_computed + num_tokens, len(sequence.tokens)) // self.block_size
        for index in range(len(sequence.block_hashes), certain):
            self._publish(sequence, index)

    def _publish(self, sequence: Sequence, index: int) -> None:
        name, tokens = self._chained(sequence)[index]
        sequence.block_hashes.append(name)
        for table, own in enumerate(sequence.block_tables):
            if own[index] != NO_BLOCK:
                self._name(own[index], name_in(table, name), tokens)

    def _name(self, block_id: int, name: bytes, tokens: bytes) -> None:
        if name not in self._by_hash:  # else a twin computed the same; ours stays private
            block = self.blocks[block_id]
            block.hash, block.tokens = name, tokens
            self._by_hash[name] = block_id

    def forget_prefixes(self) -> None:
        """Remove all blocks from the prefix cache: no later sequence finds what was computed so far."""
        for block in self.blocks:
            self._forget(block)

    def disown(self, sequence: Sequence) -> None:
        """Remove its blocks from the prefix cache, also if it was preempted: what was computed is invalid."""
        names = [name_in(table, name) for table in range(len(self.windows)) for name, _ in sequence.chain]
        if self.tier is not None:
            self.tier.drop(names)
        for name in names:
            block_id = self._by_hash.get(name)
            if block_id is not None:
                self._forget(self.blocks[block_id])
                if block_id in self._free:
                    self.dirty.append(block_id)

    def private(self, sequence: Sequence) -> list[int]:
        """Its blocks that no other sequence holds."""
        held = [block_id for own in sequence.block_tables for block_id in own if block_id != NO_BLOCK]
        return [block_id for block_id in held if self.blocks[block_id].ref_count == 1]

    def named(self, sequence: Sequence) -> list[bytes]:
        """Names of the blocks that it holds, as far as they were published."""
        return [
            name_in(table, name)
            for table, own in enumerate(sequence.block_tables)
            for name, block_id in zip(sequence.block_hashes, own, strict=False)
            if block_id != NO_BLOCK
        ]

    def release(self, sequence: Sequence) -> None:
        """Give all its blocks back. Harmless when it holds none."""
        for own in sequence.block_tables:
            for block_id in reversed(own):  # the tail is freed, and so reused, first
                if block_id != NO_BLOCK:
                    self._give_back(block_id)
            own.clear()
        sequence.block_hashes.clear()
        sequence.num_computed = 0

    def _give_back(self, block_id: int) -> None:
        block = self.blocks[block_id]
        block.ref_count -= 1
        if block.ref_count == 0:
            self._free[block_id] = None
            if block.hash is None:
                self._free.move_to_end(block_id, last=False)  # nothing in it to keep
                self.dirty.append(block_id)

    def hold(self, ids: list[int]) -> None:
        """Keep used blocks as they are, whatever becomes of their sequences, until `let_go`."""
        for block_id in ids:
            self._take(block_id)

    def let_go(self, ids: list[int]) -> None:
        """Give back what was held."""
        for block_id in reversed(ids):
            self._give_back(block_id)

    def forget_free(self) -> list[int]:
        """Drop unused blocks from the prefix cache; returns the ids of all free blocks."""
        for block_id in self._free:
            self._forget(self.blocks[block_id])
        return list(self._free)

    def free_of(self, ids: list[int]) -> list[int]:
        """Those of them that are free and zeroed, and that the prefix cache does not keep."""
        dirty = set(self.dirty)
        return [id for id in ids if id in self._free and self.blocks[id].hash is None and id not in dirty]

    def _adoptable(self, sequence: Sequence) -> list[tuple[bytes, bytes]]:
        """Name and tokens of the blocks that others may have computed for it; a token is left, for its logits."""
        return self._chained(sequence)[: (len(sequence.tokens) - 1) // self.block_size]

    def _chained(self, sequence: Sequence) -> list[tuple[bytes, bytes]]:
        """Name and tokens of each full block. Hashed once: a sequence's tokens stay."""
        chain, size = sequence.chain, self.block_size
        for at in range(len(chain) * size, len(sequence.tokens) // size * size, size):
            tokens = _packed(sequence.tokens[at : at + size])
            chain.append((_chain(chain[-1][0] if chain else self._root(sequence), tokens), tokens))
        return chain

    def _found(self, name: bytes, tokens: bytes) -> int | None:
        found = self._by_hash.get(name)
        return found if found is not None and self.blocks[found].tokens == tokens else None

    def _root(self, sequence: Sequence) -> bytes:
        return blake2b(sequence.cache_root, key=self._salt[:64], digest_size=16).digest()

    def _take(self, block_id: int) -> None:
        block = self.blocks[block_id]
        if block.ref_count == 0:
            del self._free[block_id]
        block.ref_count += 1

    def _forget(self, block: Block) -> None:
        if block.hash is not None:
            del self._by_hash[block.hash]
            block.hash, block.tokens = None, b""


def name_in(table: int, name: bytes) -> bytes:
    """Of a block of that table, whose sequence's tokens have such a name."""
    return name + bytes((table,)) if table else name


def _packed(tokens: list[int]) -> bytes:
    return array("q", tokens).tobytes()


def _chain(parent: bytes, tokens: bytes) -> bytes:
    return blake2b(tokens, key=parent, digest_size=16).digest()
